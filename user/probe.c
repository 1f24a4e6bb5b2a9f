// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the checks (probe_checks.h) run one after the other in a child process,
 * which sends a report for each through a pipe.  So the parent stays as it was, whatever they do:
 * load programs, move to another network namespace, start threads.  And a kernel that hangs or
 * kills a check is one more result, not the end of the caller.
 */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exit_codes.h"
#include "log.h"
#include "probe_checks.h"

/* What a check may wait for, all in all. */
#define CHECK_MS 2000
/* Without a report for so long, the child hangs.  Loading has no bound, and emulators are slow. */
#define HANG_MS 10000
/* A killed process that hangs in the kernel cannot be waited for. */
#define REAP_MS 1000
#define NEEDS_MAX 4
#define BUFFER_SIZE (64 * 1024)
#define SOFT_LIMIT (1024 * 1024)
#define HARD_LIMIT (4 * 1024 * 1024)

struct check {
	const char *name;
	const char *shows;            /* what must hold */
	const char *why;              /* what goes wrong if it does not */
	const char *since;            /* where the kernel's history tells; else NULL */
	const char *needs[NEEDS_MAX]; /* earlier checks without which this one means nothing */
	int (*run)(struct probe *p);
};

static const struct check checks[] = {
	{ "load", "the verdict program passes the verifier and attaches to a sockmap",
	  "without it nothing can be redirected",
	  "Linux 5.10, ef5659280eb1: verdict without parser",
	  { NULL }, probe_check_load },
	{ "loopback", "TCP connections can be made on 127.0.0.1",
	  "nothing else can be tried",
	  NULL, { NULL }, probe_check_loopback },
	{ "insert", "a connection in ESTABLISHED may be put into the maps",
	  "no flow could ever enter the kernel",
	  NULL, { "load", "loopback" }, probe_check_insert },
	{ "insert-after-fin", "after the peer's FIN it is refused, without harm",
	  "a short request would be torn instead of staying in user space",
	  NULL, { "insert" }, probe_check_insert_after_fin },
	{ "counters", "counters and limits are shared with the program through mapped memory",
	  "user space could not know what was redirected",
	  "Linux 5.5, fc9702273e2e", { "insert" }, probe_check_counters },
	{ "events", "the program's events arrive through a ring buffer and wake the reader",
	  "limits would be noticed too late",
	  "Linux 5.8, 457f44363a88", { "counters" }, probe_check_events },
	{ "redirect", "redirected bytes arrive unchanged and in order, both ways",
	  "payload would be corrupted",
	  NULL, { "counters" }, probe_check_redirect },
	{ "early-bytes", "a peek makes the program see bytes that came before the insertion",
	  "early bytes would wait until more come, perhaps for ever",
	  NULL, { "redirect" }, probe_check_early_bytes },
	{ "fin", "a FIN in one direction does not break the other",
	  "answers would be truncated",
	  NULL, { "redirect" }, probe_check_fin },
	{ "accounting", "tcpi_bytes_acked and SIOCOUTQ tell what TCP has accepted, to the byte",
	  "a flow would be taken for drained too early or never: truncated, or hung",
	  NULL, { "insert" }, probe_check_accounting },
	{ "backlog", "a socket keeps its backlog when it leaves one of its two maps",
	  "what is queued for the opposite direction would be lost",
	  NULL, { "redirect", "accounting" }, probe_check_backlog },
	{ "unread", "MSG_PEEK|MSG_TRUNC counts the unread bytes of a socket in a map",
	  "a removal could not be audited",
	  NULL, { "insert" }, probe_check_unread },
	{ "receive-buffer", "SO_BUF_LOCK keeps SO_RCVLOWAT from growing the receive buffer",
	  "each removal would cost kernel memory, or lose bytes without its fence",
	  "Linux 5.15, 04190bf8944d", { "loopback" }, probe_check_receive_buffer },
	{ "hard-limit", "over the hard limit bytes are passed to user space, and order is kept",
	  "a receiver that stalls would fill the kernel's memory",
	  NULL, { "redirect", "accounting", "events" }, probe_check_hard_limit },
	{ "fence", "a socket filter keeps data out for a moment, and nothing is lost",
	  "the program might run during a removal, which then loses bytes",
	  "Linux 3.19, 89aa075832b0", { "redirect" }, probe_check_fence },
	{ "read-ahead", "a flow with a stalled target can leave: passed bytes can be read at once",
	  "a source that is faster than its target would hold the flow for ever",
	  NULL, { "hard-limit", "unread", "receive-buffer", "fence" }, probe_check_read_ahead },
	{ "leave", "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space",
	  NULL, { "accounting", "unread", "receive-buffer", "fence" }, probe_check_leave },
	{ "wake-ups", "redirected data does not wake a thread that waits for EPOLLRDHUP; FIN does",
	  "each segment would cost a switch to user space, which is slower than copying",
	  NULL, { "redirect" }, probe_check_wake_ups },
	{ "unprivileged", "all this goes on after every privilege has been given up",
	  "the daemon would have to stay root",
	  "Linux 5.19, c8644cd0efe7: where unprivileged BPF is disabled",
	  { "leave", "events" }, probe_check_unprivileged },
};

#define N_CHECKS (sizeof(checks) / sizeof(checks[0]))

enum outcome {
	SKIPPED, /* or not reported: a child that ends early leaves it so */
	HOLDS,
	FAILS,
};

/* One for each check; the child writes them to the pipe in this form. */
struct result {
	uint32_t outcome;
	char detail[PROBE_DETAIL];
};

static const char *forced_failure(void)
{
	return getenv("CULVERT_PROBE_FAIL");
}

static size_t find(const char *name)
{
	size_t i = 0;

	while (i < N_CHECKS && strcmp(checks[i].name, name))
		i++;
	return i;
}

/* --- in the child --- */

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

static const char *unmet(const struct check *c, const struct result *results)
{
	for (size_t i = 0; i < NEEDS_MAX && c->needs[i]; i++)
		if (results[find(c->needs[i])].outcome != HOLDS)
			return c->needs[i];
	return NULL;
}

static void run_check(struct probe *p, size_t i, struct result *results)
{
	const struct check *c = &checks[i];
	const char *need = unmet(c, results), *forced = forced_failure();
	struct result *ret = &results[i];
	int r;

	if (need) {
		ret->outcome = SKIPPED;
		snprintf(ret->detail, sizeof(ret->detail), "needs %s", need);
		return;
	}
	if (forced && !strcmp(forced, c->name)) {
		ret->outcome = FAILS;
		snprintf(ret->detail, sizeof(ret->detail), "forced by CULVERT_PROBE_FAIL");
		return;
	}
	p->config = (struct config){ .soft_limit = SOFT_LIMIT, .hard_limit = HARD_LIMIT };
	policy_init(&p->policy, ENGINE_SOCKMAP, 0);
	p->deadline_ms = rig_now_ms() + CHECK_MS;
	p->detail[0] = '\0';
	r = c->run(p);
	rig_close(p);
	ret->outcome = r ? FAILS : HOLDS;
	if (r && !p->detail[0])
		rig_note(p, "%s", strerror(-r));
	memcpy(ret->detail, p->detail, sizeof(ret->detail));
}

static void run_checks(int report)
{
	static struct result results[N_CHECKS];
	static struct probe p = { .rig = { .client = -1, .a = -1, .b = -1, .server = -1 } };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pool_init(&p.pool, BUFFER_SIZE);
	p.own_net = enter_namespace();
	for (size_t i = 0; i < N_CHECKS; i++) {
		run_check(&p, i, results);
		if (write(report, &results[i], sizeof(results[i])) < 0)
			break;
	}
	kernel_close(p.kernel);
	pool_close(&p.pool);
	_exit(0);
}

/* --- in the parent --- */

/* The reports that come in time: their number. */
static size_t receive(int report, struct result *results)
{
	size_t n = 0;

	for (uint64_t end = rig_now_ms() + HANG_MS; n < N_CHECKS;) {
		struct pollfd pfd = { .fd = report, .events = POLLIN };
		uint64_t now = rig_now_ms();
		int r = poll(&pfd, 1, now < end ? (int)(end - now) : 0);

		if (r < 0 && errno == EINTR)
			continue;
		/* a report is less than PIPE_BUF: it is written and read as a whole */
		if (r <= 0 || read(report, &results[n], sizeof(results[n])) != sizeof(results[n]))
			break;
		n++;
		end = rig_now_ms() + HANG_MS;
	}
	return n;
}

static pid_t wait_some(pid_t pid, int *ret_status)
{
	uint64_t end = rig_now_ms() + REAP_MS;
	pid_t r;

	while (!(r = waitpid(pid, ret_status, WNOHANG)) && rig_now_ms() < end)
		usleep(200);
	return r;
}

/* End the child; DETAIL says how it has ended. */
static void reap(pid_t pid, char *detail, size_t len)
{
	int status = 0;

	if (!wait_some(pid, &status)) {
		snprintf(detail, len, "no result within %d s", HANG_MS / 1000);
		kill(pid, SIGKILL);
		wait_some(pid, &status);
	} else if (WIFSIGNALED(status)) {
		snprintf(detail, len, "the process that tried it was killed: %s",
			 strsignal(WTERMSIG(status)));
	} else {
		snprintf(detail, len, "the process that tried it has ended");
	}
}

/* The first check that fails; N_CHECKS if all hold. */
static size_t first_failure(const struct result *results)
{
	size_t i = 0;

	while (i < N_CHECKS && results[i].outcome != FAILS)
		i++;
	return i;
}

/* True while the machine has no room for TCP's buffers: then any check may fail by it. */
static bool is_tcp_memory_short(void)
{
	unsigned long used = 0, pressure = ULONG_MAX;
	FILE *stat = fopen("/proc/net/sockstat", "re");
	FILE *limits = fopen("/proc/sys/net/ipv4/tcp_mem", "re");
	char line[256];

	while (stat && fgets(line, sizeof(line), stat)) {
		const char *mem = strstr(line, " mem ");

		if (mem && !strncmp(line, "TCP:", 4))
			used = strtoul(mem + 5, NULL, 10);
	}
	if (limits && fscanf(limits, "%*u %lu", &pressure) != 1)
		pressure = ULONG_MAX;
	if (stat)
		fclose(stat);
	if (limits)
		fclose(limits);
	return used >= pressure; /* both in pages */
}

/* A failure may come from a shortage that will pass: say so. */
static void add_hint(struct result *result)
{
	size_t len = strlen(result->detail);

	snprintf(result->detail + len, sizeof(result->detail) - len,
		 " (the machine is short of TCP memory just now)");
}

/* Run all checks. */
static void collect(struct result *results)
{
	char *detail = results[0].detail;
	size_t n = 0;
	int report[2];
	pid_t pid = -1;

	memset(results, 0, N_CHECKS * sizeof(*results));
	if (!pipe2(report, O_CLOEXEC)) {
		pid = fork();
		if (!pid)
			run_checks(report[1]);
		close(report[1]);
	}
	if (pid < 0) {
		snprintf(detail, PROBE_DETAIL, "cannot start a process for it: %s",
			 strerror(errno));
	} else {
		char ended[PROBE_DETAIL];

		n = receive(report[0], results);
		reap(pid, ended, sizeof(ended));
		if (n < N_CHECKS)
			memcpy(results[n].detail, ended, sizeof(ended));
		close(report[0]);
	}
	if (n < N_CHECKS)
		results[n].outcome = FAILS;
	for (size_t i = n + 1; i < N_CHECKS; i++)
		snprintf(results[i].detail, PROBE_DETAIL, "not tried after %s", checks[n].name);
	if (first_failure(results) < N_CHECKS && is_tcp_memory_short())
		add_hint(&results[first_failure(results)]);
}

int probe_sockmap(char *why, size_t len)
{
	struct result results[N_CHECKS];
	size_t i;

	collect(results);
	i = first_failure(results);
	if (i == N_CHECKS)
		return 0;
	snprintf(why, len, "%s does not hold: %s", checks[i].name, results[i].detail);
	return -EOPNOTSUPP;
}

/* --- the command --- */

static bool is_usable(const struct result *results)
{
	return first_failure(results) == N_CHECKS;
}

static void print_table(const char *kernel, const struct result *results, FILE *out)
{
	static const char *const words[] = {
		[SKIPPED] = "skip",
		[HOLDS] = "ok",
		[FAILS] = "FAIL",
	};

	fprintf(out, "Linux %s\n\n", kernel);
	for (size_t i = 0; i < N_CHECKS; i++) {
		const struct check *c = &checks[i];

		fprintf(out, "%-4s  %-16s  %s%s\n", words[results[i].outcome], c->name,
			results[i].outcome == SKIPPED ? "skipped: " : "", results[i].detail);
		if (results[i].outcome != FAILS)
			continue;
		fprintf(out, "%24sexpected: %s%s%s%s\n", "", c->shows, c->since ? " (since " : "",
			c->since ? c->since : "", c->since ? ")" : "");
		fprintf(out, "%24sotherwise: %s; so culvert does not use the sockmap carrier\n", "",
			c->why);
	}
	fprintf(out, "\n%s\n",
		is_usable(results) ?
			"the sockmap carrier can be used here" :
			"culvert run --engine auto will carry everything in user space");
}

static struct json_object *check_json(const struct check *c, const struct result *result)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, "name", json_object_new_string(c->name));
	json_object_object_add(o, "ok", result->outcome == SKIPPED ?
						NULL :
						json_object_new_boolean(result->outcome == HOLDS));
	json_object_object_add(o, "detail", json_object_new_string(result->detail));
	json_object_object_add(o, "why", json_object_new_string(c->why));
	return o;
}

static void print_json(const char *kernel, const struct result *results, FILE *out)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_object_object_add(o, "kernel", json_object_new_string(kernel));
	json_object_object_add(o, "usable", json_object_new_boolean(is_usable(results)));
	for (size_t i = 0; i < N_CHECKS; i++)
		json_object_array_add(list, check_json(&checks[i], &results[i]));
	json_object_object_add(o, "checks", list);
	fprintf(out, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN |
								JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
}

void probe_help(void)
{
	puts("Usage: culvert probe [options]\n\n"
	     "Try each kernel behaviour that the sockmap carrier relies on, on loopback\n"
	     "connections of its own. Needs the privileges of `culvert run`. Ends with 0 if all\n"
	     "hold, 3 if not.\n\n"
	     "Options:\n"
	     "  --json            print the results as JSON\n"
	     "  --help            show this help\n\n"
	     "Checks:");
	for (size_t i = 0; i < N_CHECKS; i++)
		printf("  %-16s  %s\n", checks[i].name, checks[i].shows);
}

int probe_run(int argc, char **argv)
{
	struct result results[N_CHECKS];
	const char *forced = forced_failure();
	struct utsname uts = { .release = "?" };
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
	if (forced && find(forced) == N_CHECKS)
		return log_complain(EXIT_CODE_USAGE, "CULVERT_PROBE_FAIL: no check is called "
				    "\"%.256s\"", forced);
	uname(&uts);
	collect(results);
	if (json)
		print_json(uts.release, results, stdout);
	else
		print_table(uts.release, results, stdout);
	if (fflush(stdout) || ferror(stdout))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the results: %s",
				    strerror(errno));
	return is_usable(results) ? EXIT_CODE_OK : EXIT_CODE_UNSUPPORTED;
}
