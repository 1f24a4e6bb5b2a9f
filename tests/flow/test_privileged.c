/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The privileged process beside a running daemon: what it has, how the two outlive each other, and
 * whether its sockets can join those that were made at the start, under both kinds of start.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/built_with.h"
#include "daemon.h"
#include "daemon/privileged_client.h"
#include "base/sandbox.h"
#include "daemon/syscall_filter.h"
#include "daemon_log.h"
#include "env.h"
#include "peer.h"
#include "relay/listener.h"
#include "relay/socket_stock.h"
#include "takeover.h"

#define TEST_SECONDS 120
#define PATIENCE_MS 10000
#define LISTEN "127.0.0.1:443"
#define UPSTREAM "127.0.0.1:9100"
#define ACCOUNT 61234
#define TEXT "[forward web]\nlisten = " LISTEN "\nupstream = " UPSTREAM "\n"

static int upstream_fd;
static char file[128];
static struct daemon *running;

static void write_file(const char *text)
{
	FILE *f = fopen(file, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static struct daemon *start(const char *const *args)
{
	struct daemon_conf conf = { .engine = "copy", .args = args };
	struct daemon *d = NULL;
	char why[1024];

	write_file(TEXT);
	if (daemon_start(&conf, &d, why, sizeof(why)))
		fail_msg("the daemon does not start: %s", why);
	running = d;
	return d;
}

#define START(...) start((const char *const[]){ __VA_ARGS__, NULL })

static void stop(struct daemon *d)
{
	char why[1024];

	running = NULL;
	if (daemon_stop(d, PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
}

/* After a failure it still runs. */
static int clean(void **state)
{
	(void)state;
	daemon_kill(running);
	running = NULL;
	return 0;
}

/* In /proc/PID/status; not there: it has gone. */
static bool status_has(pid_t pid, const char *line)
{
	char path[64], text[4096] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	(void)!fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	return strstr(text, line);
}

static void wait_gone(pid_t pid)
{
	int64_t deadline = now_ms() + PATIENCE_MS;

	/* whoever has inherited a child of the daemon may take time to notice its end */
	while (status_has(pid, "Name:\tculvert-priv\n") && !status_has(pid, "State:\tZ")) {
		if (now_ms() >= deadline)
			fail_msg("it is still there");
		poll(NULL, 0, 5);
	}
}

static void wait_log(struct daemon *d, const char *text)
{
	if (!daemon_log_has(d, text, PATIENCE_MS))
		fail_msg("not logged: %s", text);
}

/* A session, open at both ends. */
static void dial(int ends[2])
{
	struct pollfd p = { .fd = upstream_fd, .events = POLLIN };
	struct sockaddr_storage a;
	socklen_t len;

	assert_int_equal(net_addr(LISTEN, &a, &len), 0);
	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(ends[0], (struct sockaddr *)&a, len), 0);
	assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	ends[1] = accept4(upstream_fd, NULL, NULL, SOCK_CLOEXEC);
	assert_true(ends[1] >= 0);
}

static void talk(const int ends[2])
{
	char c = 0;

	assert_int_equal(send(ends[0], "x", 1, MSG_NOSIGNAL), 1);
	assert_int_equal(recv(ends[1], &c, 1, 0), 1);
	assert_int_equal(c, 'x');
}

static void hang_up(const int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

/* --- beside the daemon --- */

static void it_has_little(void **state)
{
	struct daemon *d = START("--config", file, "--user", "nobody");
	pid_t pid = daemon_privileged(d);
	static const char *const has[] = {
		"Name:\tculvert-priv\n", "Uid:\t0\t0\t0\t0\n", "Groups:\t \n",
		"CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n",
		BUILT_WITH_TSAN ? "" : "Threads:\t1\n", /* whose run-time library has one */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++)
		if (!status_has(pid, has[i]))
			fail_msg("lacks %s", has[i]);
	if (!syscall_filter_hindrance())
		assert_true(status_has(pid, "Seccomp:\t2\n"));
	stop(d);
	wait_gone(pid);
}

static void it_can_be_done_without(void **state)
{
	struct daemon *d = START("--config", file, "--privileged-process", "no");

	(void)state;
	assert_int_equal(daemon_privileged(d), -1);
	stop(d);
	d = START(LISTEN, UPSTREAM); /* nothing can need it */
	assert_int_equal(daemon_privileged(d), -1);
	stop(d);
}

static void the_daemon_outlives_it(void **state)
{
	struct daemon *d = START("--config", file);
	pid_t pid = daemon_privileged(d);
	int first[2], second[2];

	(void)state;
	dial(first);
	talk(first);
	assert_int_equal(kill(pid, SIGKILL), 0);
	wait_log(d, "the privileged process was ended by signal 9: no reload");
	wait_gone(pid);
	talk(first);
	dial(second);
	talk(second);
	hang_up(first);
	hang_up(second);
	stop(d);
}

/* A stop of it, as by a terminal, is no end of it. */
static void a_stop_is_no_end(void **state)
{
	struct daemon *d = START("--config", file);
	pid_t pid = daemon_privileged(d);
	int ends[2];

	(void)state;
	assert_int_equal(kill(pid, SIGSTOP), 0);
	dial(ends);
	talk(ends);
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_false(daemon_log_has(d, "no reload", 0));
	hang_up(ends);
	stop(d);
	wait_gone(pid);
}

/*
 * Nor is one of both, as by `docker pause`, for longer than an answer may take: the clock goes on,
 * but neither has had the time.  One session has made the daemon ask for another socket.
 */
static void a_stop_of_both_is_no_end(void **state)
{
	struct daemon *d = START("--config", file, "--mark", "7");
	pid_t pid = daemon_privileged(d);
	int ends[2];

	(void)state;
	assert_int_equal(kill(pid, SIGSTOP), 0);
	dial(ends);
	talk(ends);
	hang_up(ends);
	daemon_signal(d, SIGSTOP);
	poll(NULL, 0, PRIVILEGED_SOCKETS_S * 1000 + 500); /* it is this that is tested */
	daemon_signal(d, SIGCONT);
	assert_int_equal(kill(pid, SIGCONT), 0);
	for (int i = 0; i < 2 * SOCKET_STOCK; i++) {
		dial(ends);
		talk(ends);
		hang_up(ends);
	}
	daemon_signal(d, SIGHUP);
	wait_log(d, "reload: 0 forwards added, 0 changed");
	assert_false(daemon_log_has(d, "does not answer", 0));
	stop(d);
}

static void it_does_not_outlive_the_daemon(void **state)
{
	struct daemon *d = START("--config", file);
	pid_t pid = daemon_privileged(d);

	(void)state;
	running = NULL;
	daemon_kill(d);
	wait_gone(pid);
}

/* What there is no file for says so, and not that something else is missing. */
static void without_a_file(void **state)
{
	struct daemon *d = START("127.0.0.1:9006", "127.0.0.1:9007");

	(void)state;
	daemon_signal(d, SIGHUP);
	wait_log(d, "reload: nothing has changed: there is no configuration file");
	stop(d);
}

/* Its filter: what somebody may still do who has got into it. */
static const struct {
	const char *what;
	long want, nr, args[6];
} taken_over[] = {
	{ "openat, to write", -ENOSYS, SYS_openat, { AT_FDCWD, 0, O_WRONLY } },
	{ "openat, to create", -ENOSYS, SYS_openat, { AT_FDCWD, 0, O_RDONLY | O_CREAT } },
	{ "openat2", -ENOSYS, SYS_openat2, { AT_FDCWD, 0 } },
	{ "socket, netlink", -ENOSYS, SYS_socket, { AF_NETLINK, SOCK_RAW, 0 } },
	{ "socket, packet", -ENOSYS, SYS_socket, { AF_PACKET, SOCK_RAW, 0 } },
	{ "recvfrom", -ENOSYS, SYS_recvfrom, { 3, 0, 0 } },
	{ "setsockopt, SO_ATTACH_FILTER", -ENOSYS, SYS_setsockopt, { 3, SOL_SOCKET, 26 } },
	{ "ioctl, SIOCSIFFLAGS", -ENOSYS, SYS_ioctl, { 3, 0x8914 } },
	{ "clone", -ENOSYS, SYS_clone, { SIGCHLD } },
	{ "kill", -ENOSYS, SYS_kill, { 1, 0 } },
	{ "bpf", -ENOSYS, SYS_bpf, { 0 } },
	{ "chmod", -ENOSYS, SYS_fchmodat, { AT_FDCWD, 0, 0 } },
	{ "rename", -ENOSYS, SYS_renameat2, { AT_FDCWD, 0, AT_FDCWD, 0 } },
	{ "mmap, executable", -ENOSYS, SYS_mmap,
	  { 0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0 } },
	/* the tool works: this is allowed */
	{ "openat, to read", -EFAULT, SYS_openat, { AT_FDCWD, 0, O_RDONLY } },
};

static void it_is_confined(void **state)
{
	struct daemon *d;
	long got = 0;
	pid_t pid;

	(void)state;
	if (syscall_filter_hindrance() || takeover_hindrance()) {
		printf("skip: %s\n", takeover_hindrance() ?: "no filter with this sanitizer");
		skip();
	}
	d = START("--config", file, "--seccomp", "errno");
	pid = daemon_privileged(d);
	for (size_t i = 0; i < sizeof(taken_over) / sizeof(taken_over[0]); i++) {
		assert_int_equal(takeover_call(pid, taken_over[i].nr, taken_over[i].args, &got), 0);
		if (got != taken_over[i].want)
			fail_msg("%s: %ld", taken_over[i].what, got);
	}
	takeover_call(pid, SYS_execve, (const long[6]){ 0 }, &got);
	wait_log(d, "the privileged process was ended by signal 31"); /* SIGSYS */
	stop(d);
}

/* Without the capability a mark cannot be had: that is said at the start, not to each client. */
static void it_needs_the_privilege(void **state)
{
	char *words[] = { (char *)"culvert", (char *)"run", (char *)"--engine", (char *)"copy",
			  (char *)"--mark", (char *)"7", (char *)"--control", (char *)"/none/none",
			  (char *)"127.0.0.1:9555", (char *)UPSTREAM, NULL };
	char culvert[PATH_MAX];
	int fd, status;
	pid_t pid;

	(void)state;
	beside_test(BUILT_CULVERT, culvert, sizeof(culvert));
	fd = open(culvert, O_RDONLY | O_CLOEXEC); /* whose path the account may not see */
	assert_true(fd >= 0);
	pid = fork();
	if (pid == 0) {
		if (setgroups(0, NULL) || setresgid(ACCOUNT, ACCOUNT, ACCOUNT) ||
		    setresuid(ACCOUNT, ACCOUNT, ACCOUNT))
			_exit(100);
		fexecve(fd, words, environ);
		_exit(101);
	}
	close(fd);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 3);
}

/* --- sockets that join those of the start --- */

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%d: %s: %s; %s\n", __LINE__, #cond, err,                  \
				strerror(errno));                                                  \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/*
 * In a child, which is the daemon: made at the start by whoever started it, more of the group by
 * the privileged process once the daemon has given up what it had.
 */
static void be_daemon(bool change_account)
{
	char *words[] = { (char *)"run", (char *)"--config", file, (char *)"--seccomp",
			  (char *)"kill" };
	struct account account = { .uid = ACCOUNT, .gid = ACCOUNT };
	struct privileged *p = NULL;
	struct config c;
	struct addr *a;
	char err[512] = "";
	int first, more[3], other;

	CHECK(!config_parse(5, words, &c));
	a = &c.forwards[0].listen.addrs[0];
	CHECK(!privileged_start(&c, 5, words, &p, err, sizeof(err)));
	CHECK(!listener_sockets(&c.forwards[0], a, false, 1, &first));
	CHECK(!sandbox_enter(&account, err, sizeof(err)));
	CHECK(!change_account || geteuid() == ACCOUNT);
	CHECK(listener_sockets(&c.forwards[0], a, true, 1, &other) == -EACCES);
	CHECK(!privileged_listen(p, c.generation, 0, a, true, 3, more, err, sizeof(err)));
	close(first);
	for (int i = 0; i < 3; i++)
		close(more[i]);
	/* and a new one */
	CHECK(!privileged_listen(p, c.generation, 0, a, false, 1, more, err, sizeof(err)));
	_exit(0);
}

static void in_child(void (*fn)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		fn();
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void started_by_root(void)
{
	be_daemon(true);
}

/* As scripts/culvert.service does it: never root, but capabilities that are ambient. */
static void started_by_unit(void)
{
	static const cap_value_t bind_low = CAP_NET_BIND_SERVICE;
	cap_t caps = cap_init();
	char err[1] = "";

	CHECK(!chown(file, ACCOUNT, ACCOUNT) && !chown(env_dir(), ACCOUNT, ACCOUNT));
	CHECK(!prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
	CHECK(!setgroups(0, NULL) && !setresgid(ACCOUNT, ACCOUNT, ACCOUNT) &&
	      !setresuid(ACCOUNT, ACCOUNT, ACCOUNT));
	cap_set_flag(caps, CAP_PERMITTED, 1, &bind_low, CAP_SET);
	cap_set_flag(caps, CAP_EFFECTIVE, 1, &bind_low, CAP_SET);
	cap_set_flag(caps, CAP_INHERITABLE, 1, &bind_low, CAP_SET);
	CHECK(!cap_set_proc(caps));
	CHECK(!cap_set_ambient(bind_low, CAP_SET));
	be_daemon(false);
}

static void groups_of_root(void **state)
{
	(void)state;
	write_file(TEXT);
	in_child(started_by_root);
}

static void groups_of_an_account(void **state)
{
	(void)state;
	write_file(TEXT);
	in_child(started_by_unit);
	assert_int_equal(chown(file, 0, 0), 0);
	assert_int_equal(chown(env_dir(), 0, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(it_has_little, clean),
		cmocka_unit_test_teardown(it_can_be_done_without, clean),
		cmocka_unit_test_teardown(it_is_confined, clean),
		cmocka_unit_test_teardown(it_needs_the_privilege, clean),
		cmocka_unit_test_teardown(the_daemon_outlives_it, clean),
		cmocka_unit_test_teardown(a_stop_is_no_end, clean),
		cmocka_unit_test_teardown(a_stop_of_both_is_no_end, clean),
		cmocka_unit_test_teardown(it_does_not_outlive_the_daemon, clean),
		cmocka_unit_test_teardown(without_a_file, clean),
		cmocka_unit_test(groups_of_root),
		cmocka_unit_test(groups_of_an_account),
	};

	env_enter("test_privileged", TEST_SECONDS);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	snprintf(file, sizeof(file), "%s/privileged.conf", env_dir());
	upstream_fd = net_listen(UPSTREAM, 100);
	if (upstream_fd < 0) {
		fprintf(stderr, "%s: %s\n", UPSTREAM, strerror(-upstream_fd));
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
