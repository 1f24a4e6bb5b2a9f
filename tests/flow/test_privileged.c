// SPDX-License-Identifier: BSD-2-Clause
/*
 * The privileged process beside a running daemon: what it has, what somebody could do with it, and
 * how the two outlive each other.
 */
#include "forward_rig.h"

#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/built_with.h"
#include "daemon/privileged.h"
#include "base/sandbox.h"
#include "relay/marked_sockets.h"
#include "takeover.h"

#define TEST_SECONDS 120
#define LISTEN "127.0.0.1:443"
#define ACCOUNT 61234
#define TEXT "[forward web]\nlisten = " LISTEN "\n" TO_UPSTREAM

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
	/* whoever has inherited a child of the daemon may take time to notice its end */
	RIG_WAIT(!status_has(pid, "Name:\tculvert-priv\n") || status_has(pid, "State:\tZ"),
		 "it is still there");
}

ROW_ONCE(it_has_little)
{
	struct daemon *d = rig_start(*state, "[culvert]\nuser = nobody\n" TEXT);
	pid_t pid = daemon_privileged(d);
	static const char *const has[] = {
		"Name:\tculvert-priv\n",
		"Uid:\t0\t0\t0\t0\n",
		"Groups:\t \n",
		"CapInh:\t0000000000000000\n",
		"CapPrm:\t0000000000001400\n", /* CAP_NET_ADMIN, CAP_NET_BIND_SERVICE */
		"CapEff:\t0000000000001400\n",
		"CapBnd:\t0000000000001400\n",
		"CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n",
		BUILT_WITH_TSAN ? "" : "Threads:\t1\n", /* whose run-time library has one */
	};

	for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++)
		if (!status_has(pid, has[i]))
			fail_msg("lacks %s", has[i]);
	if (!BUILT_WITH_SANITIZER)
		assert_true(status_has(pid, "Seccomp:\t2\n"));
	rig_stop(d);
	wait_gone(pid);
}

ROW_ONCE(it_can_be_done_without)
{
	static const char *const plain[] = { LISTEN, RIG_UPSTREAM, NULL };
	struct daemon *d = rig_start(*state, "[culvert]\nprivileged-process = no\n" TEXT);

	assert_int_equal(daemon_privileged(d), -1);
	rig_stop(d);
	d = rig_start_with(*state, plain, NULL); /* nothing can need it */
	assert_int_equal(daemon_privileged(d), -1);
	daemon_signal(d, SIGHUP);
	rig_wait_log(d, "reload: nothing has changed: this needs the privileged process");
	rig_stop(d);
}

ROW_ONCE(the_daemon_outlives_it)
{
	struct daemon *d = rig_start(*state, TEXT);
	pid_t pid = daemon_privileged(d);
	struct ends first = rig_open(LISTEN);

	assert_int_equal(kill(pid, SIGKILL), 0);
	wait_gone(pid);
	daemon_signal(d, SIGHUP);
	rig_wait_log(d, "the privileged process has ended: until culvert");
	rig_talk_on(first, 5);
	is_served(LISTEN);
	rig_stop(d);
}

/*
 * A stop of the privileged process, as by a terminal, is no end of it.  One session has made the
 * daemon ask for another socket meanwhile.
 */
ROW_ONCE(a_stop_is_no_end)
{
	struct daemon *d = rig_start(*state, "[culvert]\nmark = 7\n" TEXT);
	pid_t pid = daemon_privileged(d);

	assert_int_equal(kill(pid, SIGSTOP), 0);
	is_served(LISTEN);
	assert_int_equal(kill(pid, SIGCONT), 0);
	for (int i = 0; i < 2 * MARKED_SOCKETS; i++)
		is_served(LISTEN);
	daemon_signal(d, SIGHUP);
	rig_wait_log(d, "reload: 0 forwards added, 0 changed");
	rig_not_logged(d, "not answered in time");
	rig_not_logged(d, "no reload");
	rig_stop(d);
	wait_gone(pid);
}

/*
 * Its answer comes too late, as on a busy machine: it is that of no other request.  A reload waits
 * longer.
 */
ROW_ONCE(a_late_answer_fails_its_request_only)
{
	struct daemon *d = rig_start(*state, "[culvert]\nmark = 7\n" TEXT);
	pid_t pid = daemon_privileged(d);

	assert_int_equal(kill(pid, SIGSTOP), 0);
	is_served(LISTEN); /* the stock is to be filled again */
	rig_wait_log(d, "no more sockets with a mark or for transparent forwarding: the privileged "
			"process has not answered in time");
	daemon_signal(d, SIGHUP);
	is_served(LISTEN);
	assert_int_equal(kill(pid, SIGCONT), 0);
	rig_wait_log(d, "reload: 0 forwards added, 0 changed");
	for (int i = 0; i < 2 * MARKED_SOCKETS; i++)
		is_served(LISTEN);
	rig_not_logged(d, "has ended");
	rig_stop(d);
	wait_gone(pid);
}

ROW_ONCE(it_does_not_outlive_the_daemon)
{
	struct daemon *d = rig_start(*state, TEXT);
	pid_t pid = daemon_privileged(d);

	running = NULL;
	daemon_kill(d);
	wait_gone(pid);
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
	{ "recvmsg", -ENOSYS, SYS_recvmsg, { 3, 0, 0 } },
	{ "setsockopt, SO_ATTACH_BPF", -ENOSYS, SYS_setsockopt, { 3, SOL_SOCKET, 50 } },
	{ "ioctl, SIOCSIFFLAGS", -ENOSYS, SYS_ioctl, { 3, 0x8914 } },
	{ "clone", -ENOSYS, SYS_clone, { SIGCHLD } },
	{ "kill", -ENOSYS, SYS_kill, { 1, 0 } },
	{ "bpf", -ENOSYS, SYS_bpf, { 0 } },
	{ "chmod", -ENOSYS, SYS_fchmodat, { AT_FDCWD, 0, 0 } },
	{ "rename", -ENOSYS, SYS_renameat2, { AT_FDCWD, 0, AT_FDCWD, 0 } },
	{ "mmap, executable",
	  -ENOSYS,
	  SYS_mmap,
	  { 0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0 } },
	/* the tool works: this is allowed */
	{ "openat, to read", -EFAULT, SYS_openat, { AT_FDCWD, 0, O_RDONLY } },
};

ROW_ONCE(it_is_confined)
{
	static const char *const options[] = { "--seccomp", "errno", NULL };
	struct daemon *d;
	long got = 0;
	pid_t pid;

	if (BUILT_WITH_SANITIZER || takeover_hindrance()) {
		printf("skip: %s\n", takeover_hindrance() ?: "no filter with this sanitizer");
		skip();
	}
	d = rig_start_with(*state, options, TEXT);
	pid = daemon_privileged(d);
	for (size_t i = 0; i < sizeof(taken_over) / sizeof(taken_over[0]); i++) {
		assert_int_equal(takeover_call(pid, taken_over[i].nr, taken_over[i].args, &got), 0);
		if (got != taken_over[i].want)
			fail_msg("%s: %ld", taken_over[i].what, got);
	}
	takeover_call(pid, SYS_execve, (const long[6]){ 0 }, &got);
	wait_gone(pid); /* SIGSYS */
	rig_stop(d);
}

/* Without the capability a mark cannot be had: that is said at the start, not to each client. */
ROW_ONCE(it_needs_the_privilege)
{
	char *words[] = { (char *)"culvert",
			  (char *)"run",
			  (char *)"--engine",
			  (char *)"copy",
			  (char *)"--mark",
			  (char *)"7",
			  (char *)"--control",
			  (char *)"/tmp/culvert-7",
			  (char *)"127.0.0.1:9555",
			  (char *)RIG_UPSTREAM,
			  NULL };
	char culvert[PATH_MAX];
	int fd, status;
	pid_t pid;

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

int main(void)
{
	return rig_run("test_privileged", TEST_SECONDS);
}
