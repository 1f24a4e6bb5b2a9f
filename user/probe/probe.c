// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a child process tries the behaviours one after the other, and writes each
 * result to a pipe.  So the parent stays as it was, whatever they do: move to another network
 * namespace, start threads, give up privileges.  A kernel that hangs or kills the child is one more
 * result.
 */
#include "probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/advice.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/json_add.h"
#include "base/log.h"
#include "probe/behaviours.h"
#include "probe/rig.h"

/* All behaviours together. */
#define TOTAL_MS 60000
/* A killed process that hangs in the kernel cannot be waited for. */
#define REAP_MS 1000
#define LOAD 0 /* index of the behaviour that the parent tries */

enum outcome {
	UNASKED, /* not to be tried */
	HOLDS,
	FAILS,
	SKIPPED, /* not tried: one before it does not hold, or the process has ended */
};

/* Less than PIPE_BUF: written and read as a whole. */
struct result {
	enum outcome outcome;
	char detail[PROBE_DETAIL];
};

struct results {
	struct result of[BEHAVIOURS];
	unsigned int carriers; /* that are asked about */
	unsigned int took_ms;
};

/* --- trying --- */

/* A namespace of its own, so that firewalls and others do not matter; or the current one. */
static void enter_namespace(void)
{
	cap_flag_value_t has = CAP_CLEAR;
	cap_t caps = cap_get_proc();

	/* without it, lo would stay down */
	if (caps)
		cap_get_flag(caps, CAP_NET_ADMIN, CAP_EFFECTIVE, &has);
	cap_free(caps);
	if (has == CAP_SET && !unshare(CLONE_NEWNET))
		rig_lo_up();
}

/* The first behaviour before I without which each carrier that relies on I is lost; or NULL. */
static const char *failed_before(const struct results *results, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (results->of[k].outcome == FAILS &&
		    !(behaviours[i].carriers & ~behaviours[k].carriers))
			return behaviours[k].name;
	return NULL;
}

static void try_one(struct kernel *kernel, struct results *results, size_t i)
{
	struct result *r = &results->of[i];
	const char *failed = failed_before(results, i);

	if (failed) {
		r->outcome = SKIPPED;
		snprintf(r->detail, sizeof(r->detail), "needs %s", failed);
	} else {
		snprintf(r->detail, sizeof(r->detail), "%s", behaviours[i].shows);
		r->outcome = behaviour_holds(&behaviours[i], kernel, false, r->detail) ? HOLDS :
											 FAILS;
	}
}

static bool is_asked(const struct results *results, size_t i)
{
	return behaviours[i].carriers & results->carriers;
}

/* In the child: RESULTS, too, are its own. */
static _Noreturn void try_each(struct results *results, struct kernel *kernel, int to)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	enter_namespace();
	for (size_t i = LOAD + 1; i < BEHAVIOURS; i++) {
		if (!is_asked(results, i))
			continue;
		try_one(kernel, results, i);
		if (write(to, &results->of[i], sizeof(results->of[i])) < 0)
			break;
	}
	_exit(0);
}

/* Read the next result; false if the child has ended, or there is none before END. */
static bool await_result(int from, uint64_t end, struct result *ret)
{
	struct pollfd pfd = { .fd = from, .events = POLLIN };
	uint64_t now;
	int r = 0;

	while ((now = clock_ms()) < end && (r = poll(&pfd, 1, (int)(end - now))) < 0 &&
	       errno == EINTR)
		;
	return r > 0 && read(from, ret, sizeof(*ret)) == (ssize_t)sizeof(*ret);
}

/* Reap the child, which has ended or HANGS; say why it has told no more. */
static void reap(pid_t pid, bool hangs, char *why, size_t len)
{
	uint64_t end = clock_ms() + REAP_MS;
	int status = 0;
	pid_t r;

	if (hangs)
		kill(pid, SIGKILL);
	while (!(r = waitpid(pid, &status, WNOHANG)) && clock_ms() < end)
		usleep(200);
	snprintf(why, len, hangs ? "no result in time: it hangs" :
				   "the process that tried it has ended");
	if (!hangs && r > 0 && WIFSIGNALED(status))
		snprintf(why, len, "the process that tried it was killed: %s%s",
			 strsignal(WTERMSIG(status)), WTERMSIG(status) == SIGKILL ?
			 " (is there memory, or a limit such as MemoryMax= of the unit?)" : "");
}

/* No result has come of those that are asked about from behaviour I on: the first has failed. */
static void no_more(struct results *results, size_t i, const char *why)
{
	enum outcome outcome = FAILS;

	for (; i < BEHAVIOURS; i++) {
		if (!is_asked(results, i))
			continue;
		results->of[i].outcome = outcome;
		snprintf(results->of[i].detail, PROBE_DETAIL, "%s", why);
		outcome = SKIPPED;
	}
}

/* Try in a child what RESULTS asks about.  KERNEL: what is loaded, or NULL. */
static void try_behaviours(struct kernel *kernel, struct results *results)
{
	uint64_t start = clock_ms(), end = start + TOTAL_MS;
	int fds[2] = { -1, -1 };
	pid_t pid = pipe2(fds, O_CLOEXEC) ? -1 : fork();
	char why[PROBE_DETAIL] = "";
	size_t i = LOAD + 1;

	if (!pid)
		try_each(results, kernel, fds[1]);
	if (pid < 0)
		snprintf(why, sizeof(why), "cannot start a process for it: %s%s", strerror(errno),
			 advice_process(errno));
	close(fds[1]);
	while (i < BEHAVIOURS && (!is_asked(results, i) ||
				  (pid > 0 && await_result(fds[0], end, &results->of[i]))))
		i++;
	if (pid > 0)
		reap(pid, clock_ms() >= end, why, sizeof(why));
	close(fds[0]);
	no_more(results, i, why);
	results->took_ms = (unsigned int)(clock_ms() - start);
}

/* Load the program, which is the first behaviour. */
static void load(const struct kernel_limits *limits, struct kernel **ret_kernel,
		 struct results *results)
{
	struct result *r = &results->of[LOAD];

	snprintf(r->detail, sizeof(r->detail), "%s", behaviours[LOAD].shows);
	r->outcome = kernel_open(limits, ret_kernel, r->detail, sizeof(r->detail)) ? FAILS : HOLDS;
}

/* The first that CARRIERS rely on and that was found not to hold, or skipped; BEHAVIOURS: none. */
static size_t first_bad(const struct results *results, unsigned int carriers)
{
	size_t i = 0;

	while (i < BEHAVIOURS && (!(behaviours[i].carriers & carriers) ||
				  results->of[i].outcome <= HOLDS))
		i++;
	return i;
}

static bool holds(const struct results *results, unsigned int carriers)
{
	return first_bad(results, carriers) == BEHAVIOURS;
}

/* --- at the start of the daemon --- */

static unsigned int carriers_of(const struct config *c)
{
	if (config_forward_with(c, ENGINE_AUTO) || config_forward_with(c, ENGINE_SOCKMAP))
		return PROBE_BOTH;
	return config_forward_with(c, ENGINE_SPLICE) ? PROBE_SPLICE : 0;
}

static void judge(const struct results *results, enum probe_carrier carrier,
		  struct probe_finding *ret)
{
	size_t bad = first_bad(results, carrier);
	const struct behaviour *b = &behaviours[bad];

	if (bad == BEHAVIOURS) {
		*ret = (struct probe_finding){ .verdict = PROBE_OK };
		return;
	}
	ret->verdict = PROBE_BROKEN;
	snprintf(ret->why, sizeof(ret->why), "\"%s\" fails: %s (expected: %s; otherwise %s)",
		 b->name, results->of[bad].detail, b->shows, b->why);
}

static void summarise(const struct results *results, struct probe_start *ret)
{
	size_t held = 0, asked = 0;

	for (size_t i = 0; i < BEHAVIOURS; i++) {
		asked += is_asked(results, i);
		held += results->of[i].outcome == HOLDS;
	}
	snprintf(ret->summary, sizeof(ret->summary), "%zu of %zu behaviours hold, tried in %u ms",
		 held, asked, results->took_ms);
}

/* An engine that was asked for by name must work; the others have a substitute: MEANWHILE. */
static int announce(const struct config *c, enum engine engine, const struct probe_finding *f,
		    const char *meanwhile)
{
	if (f->verdict != PROBE_BROKEN)
		return 0;
	if (!config_forward_with(c, engine)) {
		log_warning("%s: %s", meanwhile, f->why);
		return 0;
	}
	log_error("engine %s cannot be used: %s", engine_name(engine), f->why);
	return EXIT_CODE_UNSUPPORTED;
}

int probe_start(const struct config *c, struct kernel **ret_kernel, struct probe_start *ret)
{
	struct kernel_limits limits = { c->max_sessions, c->workers, c->kernel_memory };
	struct results results = { .carriers = carriers_of(c) };
	const char *unasked = c->probe ? "no forward's engine uses it" : "not tried: --probe no";

	*ret_kernel = NULL;
	*ret = (struct probe_start){ { PROBE_UNASKED, "" }, { PROBE_UNASKED, "" },
				     "no behaviour was tried" };
	snprintf(ret->sockmap.why, sizeof(ret->sockmap.why), "%s", unasked);
	snprintf(ret->splice.why, sizeof(ret->splice.why), "%s", unasked);
	if (results.carriers & PROBE_SOCKMAP)
		load(&limits, ret_kernel, &results);
	if (c->probe && results.carriers) {
		try_behaviours(*ret_kernel, &results);
		judge(&results, PROBE_SPLICE, &ret->splice);
		summarise(&results, ret);
	}
	if (results.carriers & PROBE_SOCKMAP)
		judge(&results, PROBE_SOCKMAP, &ret->sockmap);
	if (ret->sockmap.verdict == PROBE_BROKEN) {
		kernel_close(*ret_kernel);
		*ret_kernel = NULL;
	}
	return announce(c, ENGINE_SOCKMAP, &ret->sockmap,
			"everything is carried in user space") ?:
	       announce(c, ENGINE_SPLICE, &ret->splice,
			"copy is used where splice would be better");
}

/* --- the command --- */

static void print_table(const char *kernel, const struct results *results)
{
	static const char *const words[] = { [SKIPPED] = "skip", [HOLDS] = "ok", [FAILS] = "FAIL" };

	printf("Linux %s\n\n", kernel);
	for (size_t i = 0; i < BEHAVIOURS; i++) {
		const struct behaviour *b = &behaviours[i];
		const struct result *r = &results->of[i];

		printf("%-4s  %-16s  %s%s\n", words[r->outcome], b->name,
		       r->outcome == SKIPPED ? "skipped: " : "", r->detail);
		if (r->outcome == FAILS)
			printf("%24sexpected: %s\n%24sotherwise: %s; so culvert does not use the "
			       "%s carrier\n", "", b->shows, "", b->why,
			       b->carriers & PROBE_SOCKMAP ? "sockmap" : "splice");
	}
	printf("\n%s\n", holds(results, PROBE_SOCKMAP) ?
				 "the sockmap carrier can be used here" :
				 "culvert run --engine auto will carry everything in user space");
	if (!holds(results, PROBE_SPLICE))
		printf("copy will be used where splice would be better\n");
}

static void print_json(const char *kernel, const struct results *results)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_add_text(o, "kernel", kernel);
	json_add_bool(o, "usable", holds(results, PROBE_SOCKMAP));
	json_add_bool(o, "splice_usable", holds(results, PROBE_SPLICE));
	for (size_t i = 0; i < BEHAVIOURS; i++) {
		const struct result *r = &results->of[i];
		struct json_object *check = json_object_new_object();

		json_add_text(check, "name", behaviours[i].name);
		if (r->outcome == SKIPPED)
			json_add_null(check, "ok");
		else
			json_add_bool(check, "ok", r->outcome == HOLDS);
		json_add_text(check, "detail", r->detail);
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
	puts("Usage: culvert probe [options]\n\n"
	     "Try each kernel behaviour that the sockmap and splice carriers rely on, on loopback\n"
	     "connections of its own, as `culvert run` does when it starts. Needs the privileges\n"
	     "of `culvert run`. Ends with 0 if all hold, 3 if not.\n\n"
	     "Options:\n"
	     "  --json            print the results as JSON\n"
	     "  --help            show this help\n\n"
	     "Checks:");
	for (size_t i = 0; i < BEHAVIOURS; i++)
		printf("  %-16s  %s\n", behaviours[i].name, behaviours[i].shows);
}

int probe_run(int argc, char **argv)
{
	const struct kernel_limits limits = { .pairs = 1, .workers = 1 };
	struct results results = { .carriers = PROBE_BOTH };
	struct utsname uts = { .release = "?" };
	struct kernel *kernel = NULL;
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
	load(&limits, &kernel, &results);
	try_behaviours(kernel, &results);
	kernel_close(kernel);
	if (json)
		print_json(uts.release, &results);
	else
		print_table(uts.release, &results);
	if (fflush(stdout) || ferror(stdout))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the results: %s",
				    strerror(errno));
	return holds(&results, PROBE_BOTH) ? EXIT_CODE_OK : EXIT_CODE_UNSUPPORTED;
}
