// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the checks (probe_checks.h) run one after the other in a child process, which
 * sends a report for each through a pipe.  So the parent stays as it was, whatever they do: load
 * programs, move to another network namespace, start threads.  And a kernel that hangs or kills a
 * check is one more result, not the end of the caller.
 */
#include "probe.h"

#include <errno.h>
#include <json-c/json.h>
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
/* Without a report for so long, the child hangs.  Loading cannot be bounded, and emulators are slow. */
#define HANG_MS 10000
/* A killed process that hangs in the kernel cannot be waited for. */
#define REAP_MS 1000
#define NEEDS_MAX 4
#define BUFFER_SIZE (64 * 1024)

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
	{ "leave", "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space",
	  NULL, { "redirect", "accounting", "unread", "receive-buffer" }, probe_check_leave },
	{ "wake-ups", "redirected data does not wake a thread that waits for EPOLLRDHUP; FIN does",
	  "each segment would cost a switch to user space, which is slower than copying",
	  NULL, { "redirect" }, probe_check_wake_ups },
	{ "unprivileged", "all this goes on after every privilege has been given up",
	  "the daemon would have to stay root",
	  "Linux 5.19, c8644cd0efe7: where unprivileged BPF is disabled",
	  { "leave" }, probe_check_unprivileged },
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

/* A namespace of its own, so that firewalls and other programs do not matter; or the current one. */
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
	p->config = (struct config){ .soft_limit = MIB, .hard_limit = 4 * MIB };
	policy_init(&p->policy, ENGINE_SOCKMAP);
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

/* End the child.  DETAIL says how it has ended if that was not its own doing. */
static void reap(pid_t pid, bool complete, char *detail, size_t len)
{
	uint64_t end = rig_now_ms() + (complete ? CHECK_MS : 0);
	int status = 0;
	pid_t r;

	while (!(r = waitpid(pid, &status, WNOHANG)) && rig_now_ms() < end)
		usleep(200);
	if (r == pid && WIFSIGNALED(status)) {
		snprintf(detail, len, "the process that tried it was killed: %s",
			 strsignal(WTERMSIG(status)));
		return;
	}
	snprintf(detail, len, "no answer within %d s", HANG_MS / 1000);
	if (r)
		return;
	kill(pid, SIGKILL);
	for (end = rig_now_ms() + REAP_MS; !waitpid(pid, NULL, WNOHANG) && rig_now_ms() < end;)
		usleep(1000);
}

/* Run all checks. */
static void collect(struct result *results)
{
	int report[2] = { -1, -1 };
	size_t n = 0;
	pid_t pid;

	memset(results, 0, N_CHECKS * sizeof(*results));
	fflush(NULL);
	if (pipe2(report, O_CLOEXEC) || (pid = fork()) < 0) {
		snprintf(results[0].detail, sizeof(results[0].detail), "cannot start: %s",
			 strerror(errno));
	} else if (!pid) {
		close(report[0]);
		run_checks(report[1]);
	} else {
		char detail[PROBE_DETAIL];

		close(report[1]);
		report[1] = -1;
		n = receive(report[0], results);
		reap(pid, n == N_CHECKS, detail, sizeof(detail));
		if (n < N_CHECKS)
			memcpy(results[n].detail, detail, sizeof(detail));
	}
	for (int i = 0; i < 2; i++)
		if (report[i] >= 0)
			close(report[i]);
	if (n < N_CHECKS)
		results[n].outcome = FAILS;
	for (size_t i = n + 1; i < N_CHECKS; i++)
		snprintf(results[i].detail, sizeof(results[i].detail), "needs %s", checks[n].name);
}

/* The first check that fails; N_CHECKS if all hold. */
static size_t first_failure(const struct result *results)
{
	size_t i = 0;

	while (i < N_CHECKS && results[i].outcome != FAILS)
		i++;
	return i;
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
