// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the checks (probe_checks.h) run one after the other in a child process,
 * which sends a report for each through a pipe.  So the parent stays as it was, whatever they do:
 * load programs, move to another network namespace, start threads.  And a kernel that hangs or
 * kills a check is one more result, not the end of the caller.
 */
#include "probe/probe_try.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "config/advice.h"

/* What a check may wait for, all in all. */
#define CHECK_MS 4000
/* A killed process that hangs in the kernel cannot be waited for. */
#define REAP_MS 1000
#define SLOW_MAX 100
#define BUFFER_SIZE (64 * 1024)
#define SOFT_LIMIT (1024 * 1024)
#define HARD_LIMIT (4 * 1024 * 1024)

/* What PROBE_SLOW_VARIABLE says; 0: nonsense. */
static unsigned int slow_factor(void)
{
	const char *text = getenv(PROBE_SLOW_VARIABLE);
	size_t len = text ? strlen(text) : 0;
	unsigned long factor;

	if (!text)
		return 1;
	if (!len || len > 3 || strspn(text, "0123456789") != len)
		return 0;
	factor = strtoul(text, NULL, 10);
	return factor <= SLOW_MAX ? (unsigned int)factor : 0;
}

static uint64_t slow(uint64_t ms)
{
	return ms * (slow_factor() ?: 1);
}

/* --- forced failures --- */

/* The next word of a list with commas: its length; *LIST moves on behind it. */
static size_t next_word(const char **list, const char **ret_word)
{
	size_t len = strcspn(*list, ",");

	*ret_word = *list;
	*list += len;
	if (**list)
		(*list)++;
	return len;
}

/*
 * How a check shall fail: NULL if it need not; else "", ":hang" or ":crash", and then what follows.
 */
static const char *forced_how(const char *name)
{
	const char *list = getenv(PROBE_FAIL_VARIABLE), *word;
	size_t n = strlen(name);

	while (list && *list) {
		size_t len = next_word(&list, &word);

		if (len >= n && !strncmp(word, name, n) && (len == n || word[n] == ':'))
			return word + n;
	}
	return NULL;
}

int probe_check_variable(char *err, size_t errlen)
{
	const char *list = getenv(PROBE_FAIL_VARIABLE), *word;

	if (!slow_factor()) {
		snprintf(err, errlen,
			 PROBE_SLOW_VARIABLE ": \"%.64s\" is not a whole number from 1 to %d",
			 getenv(PROBE_SLOW_VARIABLE), SLOW_MAX);
		return -EINVAL;
	}
	while (list && *list) {
		size_t len = next_word(&list, &word);
		size_t name = strcspn(word, ":,");
		size_t how = len - name;

		if (probe_find(word, name) == PROBE_CHECKS) {
			snprintf(err, errlen, PROBE_FAIL_VARIABLE ": no check is called \"%.*s\"",
				 (int)(name < 64 ? name : 64), word);
			return -EINVAL;
		}
		word += name;
		if (how && !(how == 5 && !strncmp(word, ":hang", how)) &&
		    !(how == 6 && !strncmp(word, ":crash", how))) {
			snprintf(err, errlen,
				 PROBE_FAIL_VARIABLE ": \"%.*s\" is neither :hang nor :crash",
				 (int)(how < 64 ? how : 64), word);
			return -EINVAL;
		}
	}
	return 0;
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

static const char *unmet(const struct probe_check *c, const struct probe_results *results)
{
	for (size_t i = 0; i < PROBE_NEEDS && c->needs[i]; i++)
		if (results->of[probe_find(c->needs[i], strlen(c->needs[i]))].outcome !=
		    PROBE_HOLDS)
			return c->needs[i];
	return NULL;
}

static int fail(struct probe *p, const char *how)
{
	if (!strncmp(how, ":hang", 5))
		for (;;)
			pause();
	if (!strncmp(how, ":crash", 6)) {
		signal(SIGSEGV, SIG_DFL); /* a sanitizer has it */
		raise(SIGSEGV);
	}
	rig_note(p, "forced by " PROBE_FAIL_VARIABLE);
	return -ECANCELED;
}

static void run_check(struct probe *p, size_t i, struct probe_results *results)
{
	const struct probe_check *c = &probe_checks[i];
	const char *need = unmet(c, results), *forced = forced_how(c->name);
	struct probe_result *ret = &results->of[i];
	int r;

	if (!(c->carriers & results->carriers)) {
		snprintf(ret->detail, sizeof(ret->detail), "not asked for");
		return;
	}
	if (need) {
		snprintf(ret->detail, sizeof(ret->detail), "needs %s", need);
		return;
	}
	p->limits = (struct forward_conf){ .soft_limit = SOFT_LIMIT, .hard_limit = HARD_LIMIT };
	policy_init(&p->policy, ENGINE_SOCKMAP, 0, 0);
	p->deadline_ms = clock_ms() + slow(CHECK_MS);
	p->detail[0] = '\0';
	r = forced ? fail(p, forced) : c->run(p);
	ret->late = r && clock_ms() >= p->deadline_ms;
	rig_close(p);
	ret->outcome = r ? PROBE_FAILS : PROBE_HOLDS;
	if (r && !p->detail[0])
		rig_note(p, "%s", strerror(-r));
	memcpy(ret->detail, p->detail, sizeof(ret->detail));
}

static _Noreturn void run_checks(struct probe_results *results, int report)
{
	static struct probe p = { .rig = { .client = -1, .a = -1, .b = -1, .server = -1 } };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pool_init(&p.pool, BUFFER_SIZE);
	p.own_net = enter_namespace();
	for (size_t i = 0; i < PROBE_CHECKS; i++) {
		run_check(&p, i, results);
		if (write(report, &results->of[i], sizeof(results->of[i])) < 0)
			break;
	}
	kernel_close(p.kernel);
	pool_close(&p.pool);
	_exit(0);
}

/* --- in the parent --- */

/* The reports that come in time: their number. */
static size_t receive(int report, struct probe_results *results)
{
	uint64_t now = clock_ms(), total = now + slow(PROBE_TOTAL_MS);
	uint64_t end = now + slow(PROBE_HANG_MS);
	size_t n = 0;

	while (n < PROBE_CHECKS) {
		struct pollfd pfd = { .fd = report, .events = POLLIN };
		struct probe_result *next = &results->of[n];
		int r;

		now = clock_ms();
		r = poll(&pfd, 1, now < end ? (int)(end - now) : 0);
		if (r < 0 && errno == EINTR)
			continue;
		/* a report is less than PIPE_BUF: it is written and read as a whole */
		if (r <= 0 || read(report, next, sizeof(*next)) != sizeof(*next))
			break;
		n++;
		end = clock_ms() + slow(PROBE_HANG_MS);
		if (end > total)
			end = total;
	}
	return n;
}

static pid_t wait_some(pid_t pid, int *ret_status)
{
	uint64_t end = clock_ms() + REAP_MS;
	pid_t r;

	while (!(r = waitpid(pid, ret_status, WNOHANG)) && clock_ms() < end)
		usleep(200);
	return r;
}

/* End the child; DETAIL says how it has ended. */
static void reap(pid_t pid, char *detail, size_t len)
{
	int status = 0;

	if (!wait_some(pid, &status)) {
		snprintf(detail, len, "no result in time: it hangs");
		kill(pid, SIGKILL);
		wait_some(pid, &status);
	} else if (WIFSIGNALED(status)) {
		snprintf(detail, len, "the process that tried it was killed: %s%s",
			 strsignal(WTERMSIG(status)), WTERMSIG(status) == SIGKILL ?
			 " (is there memory, or a limit such as MemoryMax= of the unit?)" : "");
	} else {
		snprintf(detail, len, "the process that tried it has ended");
	}
}

/*
 * True while the machine has no room for TCP's buffers: then any check may fail by it.  The kernel
 * says so in the column "press".  (/proc/sys/net/ipv4/tcp_mem has the limits, but a service may be
 * shown no more of /proc than the directories of processes.)
 */
static bool is_tcp_memory_short(void)
{
	FILE *f = fopen("/proc/self/net/protocols", "re");
	char line[256], name[32], pressure[8];
	bool is_short = false;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%31s %*s %*s %*s %7s", name, pressure) == 2 &&
		    !strcmp(name, "TCP"))
			is_short = !strcmp(pressure, "yes");
	if (f)
		fclose(f);
	return is_short;
}

size_t probe_first_bad(const struct probe_results *results, unsigned int carrier)
{
	static const enum probe_outcome order[] = { PROBE_FAILS, PROBE_SKIPPED };

	for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++)
		for (size_t i = 0; i < PROBE_CHECKS; i++)
			if (probe_checks[i].carriers & carrier &&
			    results->of[i].outcome == order[k])
				return i;
	return PROBE_CHECKS;
}

/* The child has ended, or has to, after N reports: what becomes of the other checks. */
static void settle(struct probe_results *results, size_t n, pid_t pid)
{
	char ended[PROBE_DETAIL];

	reap(pid, ended, sizeof(ended));
	if (n == PROBE_CHECKS)
		return;
	memcpy(results->of[n].detail, ended, sizeof(ended));
	results->of[n].outcome = PROBE_FAILS;
	for (size_t i = n + 1; i < PROBE_CHECKS; i++)
		snprintf(results->of[i].detail, PROBE_DETAIL, "not tried after %s",
			 probe_checks[n].name);
}

void probe_try(unsigned int carriers, struct probe_results *ret)
{
	uint64_t start = clock_ms();
	int report[2] = { -1, -1 };
	pid_t pid = -1;

	memset(ret, 0, sizeof(*ret));
	ret->carriers = carriers;
	if (!pipe2(report, O_CLOEXEC))
		pid = fork();
	if (!pid)
		run_checks(ret, report[1]);
	if (pid < 0) {
		int error = errno;

		for (size_t i = 0; i < PROBE_CHECKS; i++)
			snprintf(ret->of[i].detail, PROBE_DETAIL,
				 "cannot start a process for it: %s%s", strerror(error),
				 advice_process(error));
	}
	if (report[1] >= 0)
		close(report[1]);
	if (pid > 0)
		settle(ret, receive(report[0], ret), pid);
	if (report[0] >= 0)
		close(report[0]);
	ret->tcp_memory_short = is_tcp_memory_short();
	ret->took_ms = (unsigned int)(clock_ms() - start);
}
