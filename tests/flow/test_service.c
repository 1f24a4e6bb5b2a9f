// SPDX-License-Identifier: BSD-2-Clause
/* What culvert does for systemd: the watchdog. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"
#include "forward_rig.h"
#include "peer.h"

#define TEST_SECONDS 240
#define ONE "127.0.0.1:9001"
#define TO_UPSTREAM "upstream = " RIG_UPSTREAM "\n"
#define FORWARD_ONE "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM

#define WATCHDOG_USEC "200000"
#define QUIET_MS 500 /* more than twice that */
#define MESSAGES 12    /* of threads that are not watched, before that is taken for granted */
#define THREADS_MAX 64

static int notify_fd = -1;

static void listen_for_messages(void)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	snprintf(un.sun_path, sizeof(un.sun_path), "%s/notify", env_dir());
	unlink(un.sun_path);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_true(notify_fd >= 0);
	assert_int_equal(bind(notify_fd, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_int_equal(chmod(un.sun_path, 0666), 0);
	setenv("NOTIFY_SOCKET", un.sun_path, 1);
	setenv("WATCHDOG_USEC", WATCHDOG_USEC, 1);
}

static int close_messages(void **state)
{
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	close(notify_fd);
	return rig_clean(state);
}

/* Is there a "WATCHDOG=1" within MS?  Other messages do not count. */
static bool hear(int ms)
{
	struct pollfd p = { .fd = notify_fd, .events = POLLIN };
	char text[256];
	ssize_t n;

	while (poll(&p, 1, ms) == 1) {
		n = recv(notify_fd, text, sizeof(text) - 1, 0);
		if (n < 0)
			continue;
		text[n] = '\0';
		if (strstr(text, "WATCHDOG=1"))
			return true;
	}
	return false;
}

static void forget_messages(void)
{
	while (hear(0))
		;
}

static size_t count_text(struct daemon *d, const char *text)
{
	char *log = daemon_stderr(d), *at = log;
	size_t n = 0;

	while (at && (at = strstr(at, text))) {
		n++;
		at += strlen(text);
	}
	free(log);
	return n;
}

/*
 * Stop thread TID until a thread is said to hang, and let it go on again: then there must be
 * messages.  Were there none before?  (If it is not watched, another may have been late.)
 */
static bool silent_without(struct daemon *d, pid_t tid)
{
	size_t before = count_text(d, " has hung");
	bool noticed = false, silent = false;
	int status;

	assert_int_equal(ptrace(PTRACE_SEIZE, tid, NULL, NULL), 0);
	assert_int_equal(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), 0);
	assert_int_equal(waitpid(tid, &status, __WALL), tid);
	for (int i = 0; i < MESSAGES && !noticed; i++) {
		hear(QUIET_MS);
		noticed = count_text(d, " has hung") > before;
	}
	if (noticed) {
		forget_messages();
		silent = !hear(QUIET_MS);
	}
	assert_int_equal(ptrace(PTRACE_DETACH, tid, NULL, NULL), 0);
	if (!hear(RIG_PATIENCE_MS))
		fail_msg("systemd is not told that all is well again");
	return silent;
}

static size_t list_threads(pid_t pid, pid_t *tids)
{
	struct dirent *e;
	char path[64];
	size_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	assert_non_null(dir);
	while ((e = readdir(dir)) && n < THREADS_MAX) {
		pid_t tid = (pid_t)strtol(e->d_name, NULL, 10);

		if (tid && tid != pid)
			tids[n++] = tid;
	}
	closedir(dir);
	return n;
}

static void watchdog(void **state)
{
	pid_t pid, tids[THREADS_MAX];
	size_t n, silent = 0;
	struct daemon *d;

	listen_for_messages();
	d = rig_start(*state, "[culvert]\nworkers = 2\n" FORWARD_ONE);
	for (int i = 0; i < 3; i++)
		assert_true(hear(RIG_PATIENCE_MS)); /* of an idle daemon */
	pid = (pid_t)rig_status(d, "pid");
	n = list_threads(pid, tids);
	for (size_t i = 0; i < n; i++)
		silent += silent_without(d, tids[i]);
	assert_true(silent >= 3);
	assert_true(count_text(d, "worker 0 has hung") > 0);
	assert_true(count_text(d, "worker 1 has hung") > 0);
	assert_true(count_text(d, "the control thread has hung") > 0);
	/* the one that tells systemd; nobody is left to notice */
	assert_int_equal(kill(pid, SIGSTOP), 0);
	forget_messages();
	hear(100); /* one may have been on its way */
	assert_false(hear(QUIET_MS));
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_true(hear(RIG_PATIENCE_MS));
	rig_stop(d);
}

/* Without WATCHDOG_USEC there is nothing to tell. */
static void no_watchdog(void **state)
{
	struct daemon *d;

	listen_for_messages();
	unsetenv("WATCHDOG_USEC");
	d = rig_start(*state, FORWARD_ONE);
	assert_false(hear(QUIET_MS / 2));
	rig_stop(d);
}

int main(void)
{
	static char engine[] = "auto";
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate_setup_teardown(watchdog, NULL, close_messages, engine),
		cmocka_unit_test_prestate_setup_teardown(no_watchdog, NULL, close_messages, engine),
	};

	env_enter("test_service", TEST_SECONDS);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	rig_listen();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
