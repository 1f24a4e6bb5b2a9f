// SPDX-License-Identifier: BSD-2-Clause
/*
 * What culvert does for and with systemd: listening sockets that it is given (socket activation),
 * on every engine, and the watchdog.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
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
#define TWO "127.0.0.1:9002"
#define TO_UPSTREAM "upstream = " RIG_UPSTREAM "\n"
#define FORWARD_ONE "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM

/* --- socket activation --- */

/* What the next daemon is given; each descriptor stays ours, too. */
static void give(const int *fds, size_t n)
{
	rig_given = fds;
	rig_n_given = n;
}

static int give_nothing(void **state)
{
	give(NULL, 0);
	return rig_clean(state);
}

static int open_listener(const char *addr)
{
	int fd = net_listen(addr, 100);

	if (fd < 0)
		fail_msg("%s: %s", addr, strerror(-fd));
	return fd;
}

/* On [::]:9001, for IPv4 clients as well or not. */
static int listen_on_any(int v6only)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(9001) };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof(v6only));
	assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any)), 0);
	assert_int_equal(listen(fd, 100), 0);
	return fd;
}

/* The session that CLIENT has got must be that of FORWARD, and carry. */
static void serve(struct daemon *d, const char *engine, const char *forward, int client)
{
	int server = rig_accept();

	rig_talk_until(d, forward, rig_carrier(d, engine), client, server);
	rig_reset(client);
	assert_int_equal(rig_end(server, RIG_PATIENCE_MS), ECONNRESET);
}

/* It is the given socket that accepts; and who comes while no daemon runs is served by the next. */
static void given(void **state)
{
	int fd = open_listener(ONE), waiting;
	struct daemon *d;

	give(&fd, 1);
	d = rig_start(*state, FORWARD_ONE "[forward two]\nlisten = " TWO "\n" TO_UPSTREAM);
	serve(d, *state, "one", rig_dial(NULL, ONE));
	serve(d, *state, "two", rig_dial(NULL, TWO)); /* opened by itself */
	rig_stop(d);

	waiting = rig_dial(NULL, ONE);
	rig_accept_none();
	d = rig_start(*state, FORWARD_ONE);
	serve(d, *state, "one", waiting);
	rig_stop(d);
	close(fd);
}

/* One socket for every address of each family. */
static void given_families(void **state)
{
	int fds[] = { open_listener("0.0.0.0:9001"), listen_on_any(1) };
	struct daemon *d;

	give(fds, 2);
	d = rig_start(*state, "[forward one]\nlisten = :9001\n" TO_UPSTREAM);
	serve(d, *state, "one", rig_dial(NULL, "127.0.0.1:9001"));
	serve(d, *state, "one", rig_dial(NULL, "[::1]:9001"));
	rig_stop(d);
	close(fds[0]);
	close(fds[1]);
}

/* A forward that goes and comes back has its socket again, and the client that came between. */
static void given_reload(void **state)
{
	int fd = open_listener(ONE), waiting;
	struct daemon *d;

	give(&fd, 1);
	d = rig_start(*state, FORWARD_ONE);
	serve(d, *state, "one", rig_dial(NULL, ONE));
	rig_reload_good(d, "[forward two]\nlisten = " TWO "\n" TO_UPSTREAM);
	serve(d, *state, "two", rig_dial(NULL, TWO));
	waiting = rig_dial(NULL, ONE);
	rig_accept_none();
	rig_reload_good(d, FORWARD_ONE);
	serve(d, *state, "one", waiting);
	rig_stop(d);
	close(fd);
}

/* Its file is systemd's: it stays. */
static void given_unix(void **state)
{
	char addr[128], text[300];
	struct daemon *d;
	struct stat st;
	int fd, client, server;

	snprintf(addr, sizeof(addr), "unix:%s/given.sock", env_dir());
	unlink(addr + strlen("unix:"));
	fd = open_listener(addr);
	give(&fd, 1);
	snprintf(text, sizeof(text), "[forward one]\nlisten = %s\n" TO_UPSTREAM, addr);
	d = rig_start(*state, text);
	client = rig_dial(NULL, addr);
	server = rig_accept();
	rig_talk(client, server, 5);
	rig_stop(d);
	assert_int_equal(stat(addr + strlen("unix:"), &st), 0);
	rig_dial(NULL, addr); /* and somebody still listens */
	close(fd);
}

static void refuse(const char *text, const char *what)
{
	const char *args[] = { "--config", rig_write(text), NULL };
	struct daemon_conf conf = { .args = args, .given = rig_given, .n_given = rig_n_given };
	struct daemon *d = NULL;
	char why[1024];
	int r;

	r = daemon_start(&conf, &d, why, sizeof(why));
	if (!r)
		daemon_kill(d);
	assert_int_equal(r, -EIO);
	if (!strstr(why, what))
		fail_msg("\"%s\" is not in: %s", what, why);
}

static void useless_descriptors(void **state)
{
	int fd = open_listener(TWO), pair[2], both[2];

	(void)state;
	give(&fd, 1);
	refuse(FORWARD_ONE, "no forward listens on " TWO ", which systemd has opened for culvert "
			    "(\"unknown\")");
	both[0] = fd;
	both[1] = STDIN_FILENO;
	give(both, 2);
	refuse(FORWARD_ONE, "descriptor 4, \"unknown\", which systemd has opened for culvert: not "
			    "a socket");
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	give(pair, 1);
	refuse(FORWARD_ONE, "not listening (Accept=no is needed)");
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
	give(pair, 1);
	refuse(FORWARD_ONE, "not a stream socket");
	close(pair[0]);
	close(pair[1]);
	close(fd);
	/* systemd's ListenStream=PORT */
	fd = listen_on_any(0);
	give(&fd, 1);
	refuse("[forward one]\nlisten = :9001\n" TO_UPSTREAM, "takes IPv4 clients, too");
	close(fd);
}

/* --- the watchdog --- */

#define WATCHDOG_USEC "120000"
#define QUIET_MS 300 /* more than twice that */
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

static const struct rig_row rows[] = {
	{ "given", given },
	{ "given-families", given_families },
	{ "given-reload", given_reload },
	{ "given-unix", given_unix },
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))
#define N_OTHERS 3

int main(void)
{
	static struct CMUnitTest tests[N_ROWS * RIG_ENGINES + N_OTHERS] = {
		cmocka_unit_test_teardown(useless_descriptors, give_nothing),
		cmocka_unit_test_prestate_setup_teardown(watchdog, NULL, close_messages,
							 rig_engines[0]),
		cmocka_unit_test_prestate_setup_teardown(no_watchdog, NULL, close_messages,
							 rig_engines[0]),
	};
	static char names[N_ROWS * RIG_ENGINES][48];

	for (size_t i = 0; i < N_ROWS * RIG_ENGINES; i++) {
		struct CMUnitTest *t = &tests[N_OTHERS + i];
		char *name = rig_engines[i / N_ROWS];

		snprintf(names[i], sizeof(names[i]), "%s_%s", name, rows[i % N_ROWS].name);
		t->name = names[i];
		t->test_func = rows[i % N_ROWS].run;
		t->teardown_func = give_nothing;
		t->initial_state = name;
	}
	env_need_ipv6("test_service");
	env_enter("test_service", TEST_SECONDS);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	rig_listen();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
