// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a child process tries the behaviours one after the other, without privileges
 * as the daemon will be, and writes the results to memory that it shares with the parent.  So the
 * parent stays as it was, and a kernel that hangs or kills the child is one more result.  The
 * daemon's start does not wait for the child: carriers are used once the child has ended.
 */
#include "probe/probe.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "probe/behaviours.h"

#define EACH_S 60 /* for a behaviour that shows progress, and never ends */

SYSCALLS_ALLOWED(SYSCALL(wait4), SYSCALL(close));

/* Indices of behaviours that the parent tries. */
#define LOAD 0
#define PACKET_PROGRAMS 6

enum outcome {
	UNASKED, /* not to be tried */
	HOLDS,
	FAILS,
	SKIPPED, /* not tried: one before it does not hold, or the process has ended */
};

struct results {
	struct {
		enum outcome outcome;
		char detail[PROBE_DETAIL];
	} of[BEHAVIOURS];
	unsigned int carriers; /* to be tried */
	size_t at;             /* the behaviour that the child tries */
	bool ended;            /* the child has ended early */
};

/* Memory that a child shares. */
static struct results *results_new(unsigned int carriers)
{
	struct results *results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	results = allocated(results == MAP_FAILED ? NULL : results);
	results->carriers = carriers;
	return results;
}

/* --- trying --- */

static _Noreturn void try_each(struct sockmap *k, struct graft_table *gs, const struct account *a,
			       struct results *results)
{
	unsigned int failed = (k ? 0 : PROBE_SOCKMAP) | (gs ? 0 : PROBE_GRAFT); /* carriers */

	signal(SIGALRM, SIG_DFL); /* the daemon ignores it */
	log_keep_complaint(results->of[results->at].detail, PROBE_DETAIL);
	if (sandbox_enter(a, 0))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 0; i < BEHAVIOURS; i++) {
		const struct behaviour *b = &behaviours[i];

		if (!b->plan || !(b->carrier & results->carriers & ~failed))
			continue;
		results->at = i;
		alarm(EACH_S);
		if (behaviour_holds(b, k, gs, false, results->of[i].detail)) {
			results->of[i].outcome = HOLDS;
		} else {
			failed |= b->carrier;
			results->of[i].outcome = FAILS;
		}
	}
	_exit(0);
}

/*
 * Begin to try the behaviours of RESULTS in a child, as A.  KERNEL, GRAFTS: loaded programs, or
 * NULL.
 */
static pid_t begin(struct sockmap *kernel, struct graft_table *grafts, const struct account *a,
		   struct results *results)
{
	char *detail = results->of[LOAD + 1].detail;
	pid_t pid;

	for (size_t i = 0; i < BEHAVIOURS; i++)
		if (behaviours[i].plan && behaviours[i].carrier & results->carriers)
			results->of[i].outcome = SKIPPED;
	results->at = LOAD + 1;
	pid = fork();
	if (!pid)
		try_each(kernel, grafts, a, results);
	if (pid < 0)
		snprintf(detail, PROBE_DETAIL, "cannot start a process for it: %s%s",
			 strerror(errno), error_hint(HINT_RESOURCES, errno));
	return pid;
}

/* Wait for the child PID; negative: there is none. */
static void end(pid_t pid, struct results *results)
{
	int status = 0;

	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		snprintf(results->of[results->at].detail, PROBE_DETAIL,
			 "the process that tried it was killed: %s", strsignal(WTERMSIG(status)));
	results->ended = pid < 0 || status;
	if (results->ended)
		results->of[results->at].outcome = FAILS;
}

/*
 * Load the programs of the carriers that RESULTS asks about.  -errno: the programs of both carriers
 * cannot be loaded, for this same reason.
 */
static int load_programs(struct results *results, const struct sockmap_limits *limits,
			 const struct graft_limits *graft, struct sockmap **ret_kernel,
			 struct graft_table **ret_grafts)
{
	int r = 0, e = 0;

	if (results->carriers & PROBE_SOCKMAP)
		r = sockmap_open(limits, ret_kernel, results->of[LOAD].detail, PROBE_DETAIL);
	if (results->carriers & PROBE_GRAFT)
		e = graft_table_open(graft, ret_grafts, results->of[PACKET_PROGRAMS].detail,
				     PROBE_DETAIL);
	results->of[LOAD].outcome = r ? FAILS : HOLDS;
	results->of[PACKET_PROGRAMS].outcome = e ? FAILS : HOLDS;
	return r == e ? r : 0;
}

/* The first behaviour of CARRIERS that does not hold, or was skipped; BEHAVIOURS: none. */
static size_t first_bad(const struct results *results, unsigned int carriers)
{
	size_t i = 0;

	while (i < BEHAVIOURS &&
	       (!(behaviours[i].carrier & carriers) || results->of[i].outcome <= HOLDS))
		i++;
	return i;
}

static const char *detail_of(const struct results *results, size_t i)
{
	if (results->of[i].outcome == HOLDS)
		return behaviours[i].shows;
	if (results->of[i].outcome == FAILS)
		return results->of[i].detail;
	return results->ended && i > results->at ? results->of[results->at].detail :
						   "one before it fails";
}

static bool holds(const struct results *results, unsigned int carriers)
{
	return first_bad(results, carriers) == BEHAVIOURS;
}

/* --- at the start of the daemon --- */

static unsigned int carriers_of(const struct config *c)
{
	if (config_forward_with(c, ENGINE_AUTO) || config_forward_with(c, ENGINE_SOCKMAP))
		return PROBE_SOCKMAP | PROBE_SPLICE;
	return config_forward_with(c, ENGINE_SPLICE) ? PROBE_SPLICE : 0;
}

static const struct {
	enum engine engine;
	const char *meanwhile;
} carriers[] = {
	[PROBE_SOCKMAP] = { ENGINE_SOCKMAP, "everything is carried in user space" },
	[PROBE_SPLICE] = { ENGINE_SPLICE, "copy is used where splice would be better" },
	[PROBE_GRAFT] = { ENGINE_GRAFT, "no session is grafted" },
};

/*
 * Judge CARRIER by RESULTS.  If it cannot be used, an engine that was asked for by name fails, and
 * any other has a substitute.  TOLD: a warning has told of the cause.
 */
static int judge(const struct config *c, const struct results *results, enum probe_carrier carrier,
		 bool told, struct probe_start *p)
{
	struct probe_finding *ret = &p->of[carriers[carrier].engine];
	size_t bad = first_bad(results, carrier);

	if (!(results->carriers & carrier)) {
		*ret = (struct probe_finding){ false, PROBE_UNUSED };
		return 0;
	}
	*ret = (struct probe_finding){ .usable = bad == BEHAVIOURS };
	if (ret->usable)
		return 0;
	snprintf(ret->why, sizeof(ret->why), "\"%s\" fails: %s", behaviours[bad].name,
		 detail_of(results, bad));
	if (config_forward_with(c, carriers[carrier].engine))
		return log_failure(EXIT_CODE_UNSUPPORTED, "engine %s cannot be used: %s",
				   engine_name(carriers[carrier].engine), ret->why);
	if (!told)
		log_warning("%s: %s; see `culvert probe`", carriers[carrier].meanwhile, ret->why);
	return 0;
}

int probe_start(const struct config *c, const struct account *account,
		const struct graft_limits *graft, struct sockmap **ret_kernel,
		struct graft_table **ret_grafts, struct probe_start *ret)
{
	struct sockmap_limits limits = { c->max_sessions, c->workers, c->kernel_memory };
	struct results *results = results_new(carriers_of(c) | (graft ? PROBE_GRAFT : 0));
	bool tries_grafts;
	int r, load_error;

	*ret = (struct probe_start){ .summary = "no behaviour was tried", .fd = -1 };
	load_error = load_programs(results, &limits, graft, ret_kernel, ret_grafts);
	r = judge(c, results, PROBE_SOCKMAP, false, ret)        ?:
		    judge(c, results, PROBE_SPLICE, false, ret) ?:
		    judge(c, results, PROBE_GRAFT, load_error, ret);
	if (!c->probe)
		ret->of[ENGINE_SPLICE] = (struct probe_finding){ true, "not tried: --probe no" };
	if (!ret->of[ENGINE_SOCKMAP].usable) {
		sockmap_close(*ret_kernel);
		*ret_kernel = NULL;
	}
	if (!ret->of[ENGINE_GRAFT].usable) {
		graft_table_close(*ret_grafts, true);
		*ret_grafts = NULL;
	}
	ret->tried = !r && c->probe && results->carriers;
	if (!ret->tried) {
		munmap(results, sizeof(*results));
		return r;
	}
	ret->results = results;
	ret->began_ms = clock_ms();
	/* the daemon before this one grafts, so it has tried that, on this kernel */
	tries_grafts = *ret_grafts && !graft->takes_over;
	ret->pid = begin(*ret_kernel, tries_grafts ? *ret_grafts : NULL, account, results);
	for (size_t i = 0; *ret_grafts && !tries_grafts && i < BEHAVIOURS; i++)
		if (behaviours[i].carrier == PROBE_GRAFT)
			results->of[i].outcome = HOLDS;
	ret->fd = (int)syscall(SYS_pidfd_open, ret->pid, 0);
	if (ret->fd < 0) /* no child, or no pidfd: then wait for the child */
		return probe_end(c, ret);
	if (tries_grafts)
		graft_table_skip_slot(*ret_grafts);
	ret->runs = true;
	return 0;
}

int probe_end(const struct config *c, struct probe_start *p)
{
	struct results *results = p->results;
	int r = 0;

	end(p->pid, results);
	close(p->fd);
	p->fd = -1;
	snprintf(p->summary, sizeof(p->summary), "tried in %u ms",
		 (unsigned int)(clock_ms() - p->began_ms));
	for (enum probe_carrier carrier = PROBE_SOCKMAP; carrier < PROBE_ALL; carrier <<= 1)
		if (p->of[carriers[carrier].engine].usable)
			r = judge(c, results, carrier, false, p) ?: r;
	munmap(results, sizeof(*results));
	p->runs = false;
	return r;
}

const char *probe_hindrance(const struct probe_start *p, enum engine engine)
{
	if (p->runs)
		return "whether it works here is still being tried";
	return p->of[engine].usable ? NULL : p->of[engine].why;
}

bool probe_has_failed(const struct probe_start *p, enum engine engine)
{
	return !p->runs && !p->of[engine].usable;
}

/* --- the command --- */

static void print_finding(const struct results *results, enum probe_carrier carrier)
{
	size_t bad = first_bad(results, carrier);
	const struct behaviour *b = &behaviours[bad];

	if (bad < BEHAVIOURS)
		printf("\n%s: \"%s\" fails: %s (expected: %s; otherwise %s)\n",
		       carriers[carrier].meanwhile, b->name, detail_of(results, bad), b->shows,
		       b->why);
	else
		printf("\nthe %s carrier can be used here\n",
		       engine_name(carriers[carrier].engine));
}

static void print_table(const char *kernel, const struct results *results)
{
	static const char *const words[] = { [SKIPPED] = "skip", [HOLDS] = "ok", [FAILS] = "FAIL" };

	printf("Linux %s\n\n", kernel);
	for (size_t i = 0; i < BEHAVIOURS; i++)
		printf("%-4s  %-16s  %s\n", words[results->of[i].outcome], behaviours[i].name,
		       detail_of(results, i));
	print_finding(results, PROBE_SOCKMAP);
	print_finding(results, PROBE_SPLICE);
	print_finding(results, PROBE_GRAFT);
}

static void print_json(const char *kernel, const struct results *results)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_add_text(o, "kernel", kernel);
	json_add_bool(o, "usable", holds(results, PROBE_SOCKMAP));
	json_add_bool(o, "splice_usable", holds(results, PROBE_SPLICE));
	json_add_bool(o, "graft_usable", holds(results, PROBE_GRAFT));
	for (size_t i = 0; i < BEHAVIOURS; i++) {
		enum outcome outcome = results->of[i].outcome;
		struct json_object *check = json_object_new_object();

		json_add_text(check, "name", behaviours[i].name);
		if (outcome == SKIPPED)
			json_add_null(check, "ok");
		else
			json_add_bool(check, "ok", outcome == HOLDS);
		json_add_text(check, "detail", detail_of(results, i));
		json_add_text(check, "why", behaviours[i].why);
		json_append(list, check);
	}
	json_add(o, "checks", list);
	puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN |
						       JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
}

void probe_help(void)
{
	puts("\nChecks:");
	for (size_t i = 0; i < BEHAVIOURS; i++)
		printf("  %-16s  %s\n", behaviours[i].name, behaviours[i].shows);
}

int probe_run(int argc, char **argv)
{
	const struct sockmap_limits limits = { .pairs = 1, .workers = 1 };
	const struct graft_limits graft_limits = { .slots = 4, .workers = 1, .on_loopback = true };
	struct results *results = results_new(PROBE_ALL);
	struct utsname uts = { .release = "?" };
	struct sockmap *kernel = NULL;
	struct graft_table *grafts = NULL;
	struct account account;
	bool json = argc > 1 && !strcmp(argv[1], "--json");

	if (argc > 1 + json)
		return log_complain(EXIT_CODE_USAGE,
				    "\"%.256s\": unknown argument (`culvert help probe` lists them)",
				    argv[1 + json]);
	if (account_find(NULL, &account))
		return EXIT_CODE_USAGE;
	uname(&uts);
	load_programs(results, &limits, &graft_limits, &kernel, &grafts);
	end(begin(kernel, grafts, &account, results), results);
	graft_table_close(grafts, false);
	sockmap_close(kernel);
	if (json)
		print_json(uts.release, results);
	else
		print_table(uts.release, results);
	if (fflush(stdout) || ferror(stdout))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the results: %s",
				    strerror(errno));
	return holds(results, PROBE_ALL) ? EXIT_CODE_OK : EXIT_CODE_UNSUPPORTED;
}
