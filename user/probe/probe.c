// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the behaviours are tried one after the other in a child process, which
 * writes its results to memory that it shares with the parent.  So the parent stays as it was,
 * whatever they do: load programs, move to another network namespace, start threads.  And a kernel
 * that hangs or kills a behaviour is one more result, not the end of the caller.
 */
#include "probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/advice.h"
#include "probe/behaviours.h"

/* All behaviours together.  Loading a program has no bound of its own. */
#define TOTAL_MS 60000
/* A killed process that hangs in the kernel cannot be waited for. */
#define REAP_MS 1000
/* A shortage of TCP memory, or of CPU time, may pass before the second and last try. */
#define SHORTAGE_MS 500
#define ALL (PROBE_SOCKMAP | PROBE_SPLICE)

enum outcome {
	SKIPPED, /* not tried: something that it needs does not hold, or the process has ended */
	HOLDS,
	FAILS,
};

struct result {
	bool asked;
	enum outcome outcome;
	bool late; /* it failed when its time was over, so perhaps the machine is only busy */
	char detail[PROBE_DETAIL];
};

struct results {
	struct result of[BEHAVIOURS];
	size_t n; /* that have a result; the child is at the next one */
	bool memory_short;
	unsigned int took_ms;
};

/* --- trying --- */

/* A namespace of its own, so that firewalls and others do not matter; or the current one. */
static bool enter_namespace(void)
{
	cap_flag_value_t has = CAP_CLEAR;
	cap_t caps = cap_get_proc();

	/* without it, lo would stay down */
	if (caps)
		cap_get_flag(caps, CAP_NET_ADMIN, CAP_EFFECTIVE, &has);
	cap_free(caps);
	return has == CAP_SET && !unshare(CLONE_NEWNET) && !rig_lo_up();
}

/* What B needs and does not hold; NULL: nothing.  What was not asked about is taken to hold. */
static const char *unmet(const struct behaviour *b, const struct results *results)
{
	for (size_t i = 0; i < BEHAVIOUR_NEEDS && b->needs[i]; i++) {
		const struct result *need = &results->of[behaviour_find(b->needs[i])];

		if (need->asked && need->outcome != HOLDS)
			return b->needs[i];
	}
	return NULL;
}

static void try_one(struct probe *p, const struct behaviour *b, const struct results *results,
		    struct result *ret)
{
	const char *need = unmet(b, results);

	if (!ret->asked || ret->outcome != SKIPPED)
		return;
	if (need) {
		snprintf(ret->detail, sizeof(ret->detail), "needs %s", need);
		return;
	}
	ret->outcome = behaviour_holds(p, b) ? HOLDS : FAILS;
	ret->late = ret->outcome == FAILS && clock_ms() >= p->deadline_ms;
	memcpy(ret->detail, p->detail, sizeof(ret->detail));
}

static _Noreturn void try_each(struct results *results, struct kernel *kernel)
{
	static struct probe p;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	behaviours_begin(&p, kernel);
	p.brief = kernel != NULL;
	p.own_net = enter_namespace();
	for (; results->n < BEHAVIOURS; results->n++)
		try_one(&p, &behaviours[results->n], results, &results->of[results->n]);
	behaviours_end(&p);
	_exit(0);
}

/* Wait until the child PID has closed the pipe ALIVE, which it does when it ends; then end it. */
static void await_end(pid_t pid, int alive, char *detail, size_t len)
{
	struct pollfd pfd = { .fd = alive };
	uint64_t end = clock_ms() + TOTAL_MS, now;
	int status = 0;
	pid_t r;

	while ((now = clock_ms()) < end && poll(&pfd, 1, (int)(end - now)) < 0 && errno == EINTR)
		;
	snprintf(detail, len, "the process that tried it has ended");
	if (!pfd.revents) {
		snprintf(detail, len, "no result in time: it hangs");
		kill(pid, SIGKILL);
	}
	end = clock_ms() + REAP_MS;
	while (!(r = waitpid(pid, &status, WNOHANG)) && clock_ms() < end)
		usleep(200);
	if (pfd.revents && r > 0 && WIFSIGNALED(status))
		snprintf(detail, len, "the process that tried it was killed: %s%s",
			 strsignal(WTERMSIG(status)), WTERMSIG(status) == SIGKILL ?
			 " (is there memory, or a limit such as MemoryMax= of the unit?)" : "");
}

/* Fork the process that tries the behaviours; RET_WHY says why it did not get through all. */
static void fork_and_try(struct results *shared, struct kernel *kernel, char *ret_why, size_t len)
{
	int alive[2];
	pid_t pid = -1;

	if (!pipe2(alive, O_CLOEXEC)) {
		pid = fork();
		if (!pid)
			try_each(shared, kernel);
		if (pid < 0)
			close(alive[0]);
		close(alive[1]);
	}
	if (pid > 0) {
		await_end(pid, alive[0], ret_why, len);
		close(alive[0]);
	} else {
		snprintf(ret_why, len, "cannot start a process for it: %s%s", strerror(errno),
			 advice_process(errno));
	}
}

/* Ask about what CARRIERS rely on, and of that only about what decides if AT_START. */
static void ask(unsigned int carriers, bool at_start, struct results *ret)
{
	*ret = (struct results){ .n = 0 };
	for (size_t i = 0; i < BEHAVIOURS; i++)
		ret->of[i].asked = behaviours[i].carriers & carriers &&
				   (behaviours[i].at_start || !at_start);
}

/* Try what is asked about and has no outcome yet.  KERNEL: what is loaded, or NULL. */
static void try_behaviours(struct kernel *kernel, struct results *results)
{
	struct results *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t start = clock_ms();
	char why[PROBE_DETAIL] = "out of memory";
	bool begun = false;

	if (shared != MAP_FAILED) {
		*shared = *results;
		fork_and_try(shared, kernel, why, sizeof(why));
		*results = *shared;
		munmap(shared, sizeof(*shared));
	}
	for (size_t i = results->n; i < BEHAVIOURS; i++) {
		struct result *r = &results->of[i];

		if (!r->asked || r->outcome != SKIPPED)
			continue;
		r->outcome = begun ? SKIPPED : FAILS;
		snprintf(r->detail, sizeof(r->detail), begun ? "not tried after another: %s" : "%s",
			 why);
		begun = true;
	}
	results->memory_short = rig_memory_short();
	results->took_ms = (unsigned int)(clock_ms() - start);
}

/*
 * The first behaviour that CARRIERS rely on and that fails; else the first that was not tried; else
 * BEHAVIOURS.
 */
static size_t first_bad(const struct results *results, unsigned int carriers)
{
	size_t bad = BEHAVIOURS;

	for (size_t i = 0; i < BEHAVIOURS; i++) {
		const struct result *r = &results->of[i];

		if (!(behaviours[i].carriers & carriers) || !r->asked || r->outcome == HOLDS)
			continue;
		if (r->outcome == FAILS)
			return i;
		if (bad == BEHAVIOURS)
			bad = i;
	}
	return bad;
}

/* --- at the start of the daemon --- */

static unsigned int carriers_of(const struct config *c)
{
	if (config_forward_with(c, ENGINE_AUTO) || config_forward_with(c, ENGINE_SOCKMAP))
		return PROBE_SOCKMAP | PROBE_SPLICE;
	return config_forward_with(c, ENGINE_SPLICE) ? PROBE_SPLICE : 0;
}

/* Failed, and a shortage can be the cause: not a wrong or lost byte, a crash or a hang. */
static bool may_pass(const struct results *results, size_t i)
{
	return results->of[i].outcome == FAILS && (results->memory_short || results->of[i].late);
}

/* Nothing was seen to be wrong with the carrier, but not everything could be tried. */
static bool is_unknown(const struct results *results, size_t bad)
{
	const char *name = behaviours[bad].name;

	if (results->of[bad].outcome == SKIPPED || !strcmp(name, "loopback"))
		return true;
	return results->memory_short && strcmp(name, "load") != 0; /* which needs none */
}

static void judge(const struct results *results, unsigned int carrier, struct probe_finding *ret)
{
	size_t bad = first_bad(results, carrier);
	const struct behaviour *b = &behaviours[bad];

	*ret = (struct probe_finding){ .verdict = PROBE_OK };
	if (bad == BEHAVIOURS)
		return;
	ret->may_pass = may_pass(results, bad);
	if (is_unknown(results, bad)) {
		ret->verdict = PROBE_UNKNOWN;
		snprintf(ret->why, sizeof(ret->why),
			 "it cannot be tried whether this kernel does what it must: \"%s\" fails: "
			 "%s%s (with --probe no culvert trusts the kernel unseen)",
			 b->name, results->of[bad].detail,
			 results->memory_short ?
				 "; the machine is short of TCP memory just now" : "");
	} else {
		ret->verdict = PROBE_BROKEN;
		snprintf(ret->why, sizeof(ret->why),
			 "\"%s\" does not hold on this kernel: %s (expected: %s; why it matters: "
			 "%s)",
			 b->name, results->of[bad].detail, b->shows, b->why);
	}
}

/* Load the program for the daemon itself, which is the first behaviour to be tried. */
static void load(const struct config *c, struct kernel **ret_kernel, struct result *ret)
{
	struct kernel_limits limits = { c->max_sessions, c->workers, c->kernel_memory };

	ret->outcome = kernel_open(&limits, ret_kernel, ret->detail, sizeof(ret->detail)) ? FAILS :
											  HOLDS;
}

/* Try; and once more if a shortage can be the cause of what failed first. */
static void try_twice(const struct config *c, unsigned int carriers, struct kernel **ret_kernel,
		      struct results *ret)
{
	struct results asked;
	size_t bad;

	ask(carriers, true, &asked);
	if (carriers & PROBE_SOCKMAP)
		load(c, ret_kernel, &asked.of[behaviour_find("load")]);
	*ret = asked;
	try_behaviours(*ret_kernel, ret);
	bad = first_bad(ret, carriers);
	if (bad == BEHAVIOURS || !may_pass(ret, bad))
		return;
	usleep(SHORTAGE_MS * 1000);
	*ret = asked;
	try_behaviours(*ret_kernel, ret);
}

static void say_unused(const struct config *c, char *buf, size_t size)
{
	size_t same = 0;

	while (same < c->n_forwards && c->forwards[same].engine == c->defaults.engine)
		same++;
	if (same == c->n_forwards)
		snprintf(buf, size, "not used by --engine %s", engine_name(c->defaults.engine));
	else
		snprintf(buf, size, "no forward's engine uses it");
}

static void unasked(struct probe_finding *f, const struct config *c)
{
	f->verdict = PROBE_UNASKED;
	if (c->probe)
		say_unused(c, f->why, sizeof(f->why));
	else
		snprintf(f->why, sizeof(f->why), "not tried: --probe no");
}

static void summarise(const struct results *results, struct probe_start *ret)
{
	size_t held = 0, asked = 0;

	for (size_t i = 0; i < BEHAVIOURS; i++) {
		asked += results->of[i].asked;
		held += results->of[i].outcome == HOLDS;
	}
	snprintf(ret->summary, sizeof(ret->summary), "%zu of %zu behaviours hold, tried in %u ms",
		 held, asked, results->took_ms);
}

/* FC's engine was asked for by name, and cannot be had. */
static int refuse(const struct config *c, const struct forward_conf *fc,
		  const struct probe_finding *f)
{
	const char *more = f->may_pass ?
		"; the machine may only be short of memory or time just now" : "";

	if (fc->engine == c->defaults.engine)
		log_error("--engine %s cannot be used: %s%s", engine_name(fc->engine), f->why, more);
	else
		log_error("engine %s of forward %s cannot be used: %s%s", engine_name(fc->engine),
			  forward_name(fc), f->why, more);
	return f->may_pass ? EXIT_CODE_FAILURE : EXIT_CODE_UNSUPPORTED;
}

/* What was asked for by name must work; all else has a substitute. */
static int announce(const struct config *c, const struct probe_start *found)
{
	const struct forward_conf *by_sockmap = config_forward_with(c, ENGINE_SOCKMAP);
	const struct forward_conf *by_splice = config_forward_with(c, ENGINE_SPLICE);

	if (by_sockmap && !probe_allows(&found->sockmap))
		return refuse(c, by_sockmap, &found->sockmap);
	if (by_splice && !probe_allows(&found->splice))
		return refuse(c, by_splice, &found->splice);
	if (!probe_allows(&found->sockmap))
		log_warning("everything is carried in user space: %s", found->sockmap.why);
	if (!probe_allows(&found->splice))
		log_warning("copy is used where splice would be better: %s", found->splice.why);
	return 0;
}

/* --probe no: what can be loaded is trusted. */
static void trust(const struct config *c, struct kernel **ret_kernel, struct probe_start *ret)
{
	struct result loaded;

	load(c, ret_kernel, &loaded);
	if (loaded.outcome == HOLDS)
		return;
	ret->sockmap.verdict = PROBE_BROKEN;
	snprintf(ret->sockmap.why, sizeof(ret->sockmap.why), "%s", loaded.detail);
}

int probe_start(const struct config *c, struct kernel **ret_kernel, struct probe_start *ret)
{
	unsigned int carriers = carriers_of(c);
	struct results results;

	*ret_kernel = NULL;
	*ret = (struct probe_start){ .summary = "no behaviour was tried" };
	unasked(&ret->sockmap, c);
	unasked(&ret->splice, c);
	if (c->probe && carriers) {
		try_twice(c, carriers, ret_kernel, &results);
		if (carriers & PROBE_SOCKMAP)
			judge(&results, PROBE_SOCKMAP, &ret->sockmap);
		judge(&results, PROBE_SPLICE, &ret->splice);
		summarise(&results, ret);
	} else if (carriers & PROBE_SOCKMAP) {
		trust(c, ret_kernel, ret);
	}
	if (!probe_allows(&ret->sockmap)) {
		kernel_close(*ret_kernel);
		*ret_kernel = NULL;
	}
	return announce(c, ret);
}

/* --- the command --- */

static bool holds(const struct results *results, unsigned int carriers)
{
	return first_bad(results, carriers) == BEHAVIOURS;
}

static void print_table(const char *kernel, const struct results *results)
{
	static const char *const words[] = { [SKIPPED] = "skip", [HOLDS] = "ok", [FAILS] = "FAIL" };

	printf("Linux %s\n\n", kernel);
	for (size_t i = 0; i < BEHAVIOURS; i++) {
		const struct behaviour *b = &behaviours[i];
		const struct result *r = &results->of[i];

		printf("%-4s  %-16s  %s%s\n", words[r->outcome], b->name,
		       r->outcome == SKIPPED ? "skipped: " : "", r->detail);
		if (r->outcome != FAILS)
			continue;
		printf("%24sexpected: %s%s%s%s\n", "", b->shows, b->since ? " (since " : "",
		       b->since ? b->since : "", b->since ? ")" : "");
		printf("%24sotherwise: %s; so culvert does not use the %s carrier\n", "", b->why,
		       b->carriers & PROBE_SOCKMAP ? "sockmap" : "splice");
	}
	printf("\n%s\n", holds(results, PROBE_SOCKMAP) ?
				 "the sockmap carrier can be used here" :
				 "culvert run --engine auto will carry everything in user space");
	if (!holds(results, PROBE_SPLICE))
		printf("copy will be used where splice would be better\n");
	if (results->memory_short && !holds(results, ALL))
		printf("the machine is short of TCP memory just now, which may be the cause\n");
}

static void print_json(const char *kernel, const struct results *results)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_object_object_add(o, "kernel", json_object_new_string(kernel));
	json_object_object_add(o, "usable", json_object_new_boolean(holds(results, PROBE_SOCKMAP)));
	json_object_object_add(o, "splice_usable",
			       json_object_new_boolean(holds(results, PROBE_SPLICE)));
	for (size_t i = 0; i < BEHAVIOURS; i++) {
		const struct result *r = &results->of[i];
		struct json_object *check = json_object_new_object(), *ok = NULL;

		if (r->outcome != SKIPPED)
			ok = json_object_new_boolean(r->outcome == HOLDS);
		json_object_object_add(check, "name", json_object_new_string(behaviours[i].name));
		json_object_object_add(check, "ok", ok);
		json_object_object_add(check, "detail", json_object_new_string(r->detail));
		json_object_object_add(check, "why", json_object_new_string(behaviours[i].why));
		json_object_array_add(list, check);
	}
	json_object_object_add(o, "checks", list);
	puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN |
						       JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
}

void probe_help(void)
{
	puts("Usage: culvert probe [options]\n\n"
	     "Try each kernel behaviour that the sockmap and splice carriers rely on, on loopback\n"
	     "connections of its own. Needs the privileges of `culvert run`, which tries those "
	     "that\n"
	     "decide about a carrier when it starts. Ends with 0 if all hold, 3 if not.\n\n"
	     "Options:\n"
	     "  --json            print the results as JSON\n"
	     "  --help            show this help\n\n"
	     "Checks:");
	for (size_t i = 0; i < BEHAVIOURS; i++)
		printf("  %-16s  %s\n", behaviours[i].name, behaviours[i].shows);
}

int probe_run(int argc, char **argv)
{
	struct utsname uts = { .release = "?" };
	struct results results;
	bool json = false;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			probe_help();
			return EXIT_CODE_OK;
		}
		if (strcmp(argv[i], "--json"))
			return log_complain(EXIT_CODE_USAGE,
					    "\"%.256s\": unknown argument (`culvert help probe` "
					    "lists them)", argv[i]);
		json = true;
	}
	uname(&uts);
	ask(ALL, false, &results);
	try_behaviours(NULL, &results);
	if (json)
		print_json(uts.release, &results);
	else
		print_table(uts.release, &results);
	if (fflush(stdout) || ferror(stdout))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the results: %s",
				    strerror(errno));
	return holds(&results, ALL) ? EXIT_CODE_OK : EXIT_CODE_UNSUPPORTED;
}
