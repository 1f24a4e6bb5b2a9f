/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A running daemon as an attacker meets it: what it has left of its privileges, what it may still
 * do once somebody else decides what it does, who may look into it, who may ask it, and how much of
 * it one client gets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon.h"
#include "daemon/syscall_filter.h"
#include "daemon_log.h"
#include "env.h"
#include "takeover.h"

#define TEST_SECONDS 240
#define PATIENCE_MS 10000
#define LISTEN "127.0.0.1:9000"
#define UPSTREAM "127.0.0.1:9100"
#define LISTEN_PORT 9000
#define UPSTREAM_PORT 9100
#define NOBODY 65534
#define OTHER 61236

static int upstream_fd;

static struct daemon *start(const char *const *args)
{
	struct daemon_conf conf = { .engine = "auto", .args = args };
	struct daemon *d = NULL;
	char why[1024];
	int r = daemon_start(&conf, &d, why, sizeof(why));

	if (r)
		fail_msg("the daemon does not start: %s", why);
	return d;
}

#define START(...) start((const char *const[]){ __VA_ARGS__, LISTEN, UPSTREAM, NULL })

static void stop(struct daemon *d)
{
	char why[1024];

	if (daemon_stop(d, PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
}

static int64_t status_int(struct daemon *d, const char *path)
{
	struct json_object *o = NULL;
	int64_t n;

	assert_int_equal(daemon_query(d, "status", PATIENCE_MS, &o), 0);
	n = json_int(o, path);
	json_object_put(o);
	return n;
}

static pid_t daemon_pid(struct daemon *d)
{
	return (pid_t)status_int(d, "pid");
}

/* --- privileges --- */

/* What must be there once in /proc/PID/task/TID/status of every thread. */
static const char *const confinement[] = {
	"Uid:\t65534\t65534\t65534\t65534\n",
	"Gid:\t65534\t65534\t65534\t65534\n",
	"Groups:\t \n",
	"CapInh:\t0000000000000000\n",
	"CapPrm:\t0000000000000000\n",
	"CapEff:\t0000000000000000\n",
	"CapBnd:\t0000000000000000\n",
	"CapAmb:\t0000000000000000\n",
	"NoNewPrivs:\t1\n",
	"Seccomp:\t2\n",
};

static void check_thread(pid_t pid, const char *tid)
{
	size_t n = sizeof(confinement) / sizeof(confinement[0]);
	char path[300], text[4096] = "";
	ssize_t len;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	len = read(fd, text, sizeof(text) - 1);
	assert_true(len > 0);
	close(fd);
	if (syscall_filter_hindrance())
		n--; /* Seccomp is the last */
	for (size_t i = 0; i < n; i++)
		if (!strstr(text, confinement[i]))
			fail_msg("thread %s lacks: %s\n%s", tid, confinement[i], text);
}

static void every_thread_is_confined(void **state)
{
	struct daemon *d = START("--user", "nobody", "--workers", "3");
	pid_t pid = daemon_pid(d);
	char path[64];
	struct dirent *e;
	int n = 0;
	DIR *dir;

	(void)state;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	assert_non_null(dir);
	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		check_thread(pid, e->d_name);
		n++;
	}
	closedir(dir);
	assert_true(n >= 5); /* main, control, three workers */
	stop(d);
}

static bool can_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* Another process of the daemon's own account: `nobody` is often shared. */
static int look_in(pid_t pid)
{
	char path[64];

	if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return 100;
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	if (can_open(path, O_RDWR))
		return 1;
	snprintf(path, sizeof(path), "/proc/%d/fd/0", (int)pid);
	if (can_open(path, O_RDONLY))
		return 2;
	return ptrace(PTRACE_SEIZE, pid, NULL, NULL) ? 0 : 3;
}

static void the_same_account_cannot_look_in(void **state)
{
	struct daemon *d = START("--user", "nobody");
	pid_t daemon = daemon_pid(d), pid = fork();
	int status;

	(void)state;
	if (pid == 0)
		_exit(look_in(daemon));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	stop(d);
}

/* --- what the process itself may still do --- */

static void skip_unless_takeover(void)
{
	if (syscall_filter_hindrance()) {
		printf("skip: built with -fsanitize=%s\n", syscall_filter_hindrance());
		skip();
	}
	if (takeover_hindrance()) {
		printf("skip: %s\n", takeover_hindrance());
		skip();
	}
}

static long make_call(pid_t pid, long nr, const long args[6])
{
	long result = 0;

	assert_int_equal(takeover_call(pid, nr, args, &result), 0);
	return result;
}

static const struct {
	const char *what;
	long want, nr, args[6];
} takeover[] = {
	{ "openat", -EACCES, SYS_openat, { AT_FDCWD, 0, O_RDONLY } },
	{ "socket, packet", -ENOSYS, SYS_socket, { AF_PACKET, SOCK_RAW, 0 } },
	{ "socket, unix", -ENOSYS, SYS_socket, { AF_UNIX, SOCK_STREAM, 0 } },
	{ "bind", -ENOSYS, SYS_bind, { 0, 0, 0 } },
	{ "listen", -ENOSYS, SYS_listen, { 0, 1 } },
	{ "bpf, load", -ENOSYS, SYS_bpf, { BPF_PROG_LOAD } },
	{ "bpf, detach", -ENOSYS, SYS_bpf, { BPF_PROG_DETACH } },
	{ "clone", -ENOSYS, SYS_clone, { SIGCHLD } },
	{ "clone3", -ENOSYS, SYS_clone3, { 0 } },
	{ "kill", -ENOSYS, SYS_kill, { 1, 0 } },
	{ "memfd_create", -ENOSYS, SYS_memfd_create, { 0 } },
	{ "mmap, executable", -ENOSYS, SYS_mmap,
	  { 0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0 } },
	{ "mprotect, executable", -ENOSYS, SYS_mprotect, { 0, 4096, PROT_EXEC } },
	{ "prctl, dumpable", -ENOSYS, SYS_prctl, { 4, 1 } },
	/* the tool works: these are allowed */
	{ "socket, TCP", 0, SYS_socket,
	  { AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0 } },
	{ "shutdown", -EBADF, SYS_shutdown, { -1, SHUT_WR } },
};

static const struct {
	const char *what;
	long nr;
} deadly[] = {
	{ "execve", SYS_execve },
	{ "setuid", SYS_setuid },
	{ "ptrace", SYS_ptrace },
	{ "unshare", SYS_unshare },
	{ "io_uring_setup", SYS_io_uring_setup },
};

static void a_daemon_taken_over_is_refused(void **state)
{
	struct daemon *d;
	pid_t pid;

	(void)state;
	skip_unless_takeover();
	d = START("--seccomp", "errno");
	pid = daemon_pid(d);
	for (size_t i = 0; i < sizeof(takeover) / sizeof(takeover[0]); i++) {
		long got = make_call(pid, takeover[i].nr, takeover[i].args);

		if (takeover[i].want ? got != takeover[i].want : got < 0)
			fail_msg("%s: %ld, expected %ld", takeover[i].what, got, takeover[i].want);
	}
	assert_true(daemon_pid(d) == pid); /* and it serves on */
	stop(d);
}

static void a_daemon_taken_over_dies(void **state)
{
	static const long none[6];
	char why[1024];

	(void)state;
	skip_unless_takeover();
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++) {
		struct daemon *d = START("--seccomp", "errno");

		make_call(daemon_pid(d), deadly[i].nr, none);
		assert_int_not_equal(daemon_join(d, PATIENCE_MS, why, sizeof(why)), 0);
		/* SIGSYS, without or with the mark of a core dump */
		if (!strstr(why, "wait status 0x1f") && !strstr(why, "wait status 0x9f"))
			fail_msg("%s: %s", deadly[i].what, why);
	}
}

/* --- the control socket --- */

static void become_other(void)
{
	if (setgroups(0, NULL) || setresgid(OTHER, OTHER, OTHER) ||
	    setresuid(OTHER, OTHER, OTHER))
		_exit(100);
}

/* 0: refused with a reason; else what happened instead. */
static int ask_as_other(const char *path)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	static const char request[] = "{\"command\":\"status\"}\n";
	char buf[4096] = "";
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	become_other();
	strcpy(un.sun_path, path);
	alarm(PATIENCE_MS / 1000);
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)))
		return 1;
	/* who may not ask is told so before it has asked */
	if ((send(fd, request, strlen(request), MSG_NOSIGNAL) < 0 && errno != EPIPE) ||
	    recv(fd, buf, sizeof(buf) - 1, 0) <= 0)
		return 2;
	return strstr(buf, "permission denied") ? 0 : 3;
}

static int in_child(int (*fn)(const char *), const char *path)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(fn(path));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void others_get_no_answer(void **state)
{
	struct daemon *d = START("--user", "nobody");
	struct stat st;

	(void)state;
	assert_int_equal(stat(daemon_control(d), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_uid, NOBODY);
	assert_int_equal(st.st_gid, NOBODY);
	assert_int_equal(in_child(ask_as_other, daemon_control(d)), 1);
	assert_int_equal(chmod(daemon_control(d), 0666), 0);
	assert_int_equal(in_child(ask_as_other, daemon_control(d)), 0);
	assert_true(daemon_pid(d) > 0);
	stop(d);
}

/* --- limits of one client --- */

/* From the local address 127.0.0.LAST. */
static int dial_from(unsigned int last)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	in.sin_addr.s_addr = htonl(0x7f000000U + last);
	assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	in.sin_port = htons(LISTEN_PORT);
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	return fd;
}

/* The upstream greets each session with one byte.  True: it came; false: RST did. */
static bool is_served(int fd)
{
	struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
			       { .fd = upstream_fd, .events = POLLIN } };
	char c;

	for (;;) {
		assert_true(poll(p, 2, PATIENCE_MS) > 0);
		if (p[1].revents) {
			int up = accept4(upstream_fd, NULL, NULL, SOCK_CLOEXEC);

			assert_true(up >= 0);
			assert_int_equal(send(up, "x", 1, MSG_NOSIGNAL), 1);
			continue; /* UP stays open until this program ends */
		}
		if (recv(fd, &c, 1, 0) == 1)
			return true;
		assert_int_equal(errno, ECONNRESET);
		return false;
	}
}

static void wait_sessions(struct daemon *d, int64_t n)
{
	int64_t deadline = now_ms() + PATIENCE_MS;

	while (status_int(d, "resources.sessions") != n) {
		assert_true(now_ms() < deadline);
		poll(NULL, 0, 5);
	}
}

static void reset(int fd)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(fd);
}

static void a_client_over_its_limit_is_refused(void **state)
{
	struct daemon *d = START("--max-sessions-per-client", "3", "--max-sessions", "20");
	int mine[3], others[3], fd;

	(void)state;
	for (int i = 0; i < 3; i++) {
		mine[i] = dial_from(1);
		assert_true(is_served(mine[i]));
	}
	for (int i = 0; i < 3; i++) {
		fd = dial_from(1);
		assert_false(is_served(fd));
		close(fd);
		others[i] = dial_from(2);
		assert_true(is_served(others[i]));
	}
	assert_int_equal(status_int(d, "errors.client-limit"), 3);
	assert_int_equal(status_int(d, "resources.clients"), 2);
	assert_int_equal(status_int(d, "resources.sessions"), 6);
	reset(mine[0]);
	wait_sessions(d, 5);
	mine[0] = dial_from(1);
	assert_true(is_served(mine[0]));
	for (int i = 0; i < 3; i++) {
		reset(mine[i]);
		reset(others[i]);
	}
	wait_sessions(d, 0);
	assert_int_equal(status_int(d, "resources.clients"), 0);
	assert_true(daemon_log_has(d, "refused 127.0.0.1:", PATIENCE_MS));
	assert_true(daemon_log_has(d, "--max-sessions-per-client", PATIENCE_MS));
	stop(d);
}

/* Nothing said: half of all. */
static void one_client_cannot_take_all_sessions(void **state)
{
	struct daemon *d = START("--max-sessions", "10");
	int fds[10], other, served = 0;

	(void)state;
	for (int i = 0; i < 10; i++) {
		fds[i] = dial_from(1);
		served += is_served(fds[i]);
	}
	assert_int_equal(served, 5);
	other = dial_from(2);
	assert_true(is_served(other));
	assert_int_equal(status_int(d, "max_sessions_per_client"), 5);
	for (int i = 0; i < 10; i++)
		reset(fds[i]);
	reset(other);
	wait_sessions(d, 0);
	stop(d);
}

static int listen_upstream(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(UPSTREAM_PORT) };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, (struct sockaddr *)&in, sizeof(in)) || listen(fd, 100)) {
		perror(UPSTREAM);
		exit(1);
	}
	return fd;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_thread_is_confined),
		cmocka_unit_test(the_same_account_cannot_look_in),
		cmocka_unit_test(a_daemon_taken_over_is_refused),
		cmocka_unit_test(a_daemon_taken_over_dies),
		cmocka_unit_test(others_get_no_answer),
		cmocka_unit_test(a_client_over_its_limit_is_refused),
		cmocka_unit_test(one_client_cannot_take_all_sessions),
	};

	env_enter("test_security", TEST_SECONDS);
	upstream_fd = listen_upstream();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
