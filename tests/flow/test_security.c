/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A running daemon as an attacker meets it: what it has left of its privileges, what it may still
 * do once somebody else decides what it does, who may look into it, and who may ask it.
 */
#include "forward_rig.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/bpf.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/sandbox.h"
#include "hold.h"
#include "takeover.h"

#define TEST_SECONDS 240
#define NOBODY 65534
#define OTHER 61236
#define ONE_FORWARD "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM

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

static void check_thread(pid_t pid, pid_t tid)
{
	size_t n = sizeof(confinement) / sizeof(confinement[0]);
	char path[300], text[4096] = "";
	ssize_t len;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", (int)pid, (int)tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	len = read(fd, text, sizeof(text) - 1);
	assert_true(len > 0);
	close(fd);
	if (BUILT_WITH_SANITIZER)
		n--; /* Seccomp is the last */
	for (size_t i = 0; i < n; i++)
		if (!strstr(text, confinement[i]))
			fail_msg("thread %d lacks: %s\n%s", (int)tid, confinement[i], text);
}

ROW_ONCE(every_thread_is_confined)
{
	struct daemon *d = rig_start(*state, "[culvert]\nuser = nobody\nworkers = 3\n" ONE_FORWARD);
	pid_t pid = rig_pid(d);
	pid_t tids[64];
	size_t n = hold_threads(pid, tids, 64);

	for (size_t i = 0; i < n; i++)
		check_thread(pid, tids[i]);
	assert_true(n >= 5); /* main, control, three workers */
	rig_stop(d);
}

/* In a process of its own, which becomes account ID: what FN returns. */
static int as_account(unsigned int id, int (*fn)(struct daemon *d, pid_t pid), struct daemon *d)
{
	pid_t daemon = rig_pid(d), pid = fork();
	int status;

	if (pid == 0) {
		alarm(RIG_PATIENCE_MS / 1000);
		if (setgroups(0, NULL) || setresgid(id, id, id) || setresuid(id, id, id))
			_exit(100);
		_exit(fn(d, daemon));
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static bool can_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int look_in(struct daemon *d, pid_t pid)
{
	char path[64];

	(void)d;
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	if (can_open(path, O_RDWR))
		return 1;
	snprintf(path, sizeof(path), "/proc/%d/fd/0", (int)pid);
	if (can_open(path, O_RDONLY))
		return 2;
	return ptrace(PTRACE_SEIZE, pid, NULL, NULL) ? 0 : 3;
}

/* Another process of the daemon's own account: `nobody` is often shared. */
ROW_ONCE(the_same_account_cannot_look_in)
{
	struct daemon *d = rig_start(*state, "[culvert]\nuser = nobody\n" ONE_FORWARD);

	assert_int_equal(as_account(NOBODY, look_in, d), 0);
	rig_stop(d);
}

/* --- what the process itself may still do; unit/test_sandbox_filter tries each rule --- */

static struct daemon *start_refusing(const char *engine)
{
	static const char *const options[] = { "--seccomp", "errno", NULL };

	if (BUILT_WITH_SANITIZER || takeover_hindrance()) {
		printf("skip: %s\n", takeover_hindrance() ?: "no filter with this sanitizer");
		skip();
	}
	return rig_start_with(engine, options, ONE_FORWARD);
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
	{ "listen", -ENOSYS, SYS_listen, { 0, 1 } },
	{ "bpf, detach", -ENOSYS, SYS_bpf, { BPF_PROG_DETACH } },
	{ "clone", -ENOSYS, SYS_clone, { SIGCHLD } },
	{ "kill", -ENOSYS, SYS_kill, { 1, 0 } },
	{ "mprotect, executable", -ENOSYS, SYS_mprotect, { 0, 4096, PROT_EXEC } },
	/* the tool works: this is allowed */
	{ "shutdown", -EBADF, SYS_shutdown, { -1, SHUT_WR } },
};

ROW_ONCE(a_daemon_taken_over_is_refused)
{
	struct daemon *d = start_refusing(*state);
	pid_t pid = rig_pid(d);

	for (size_t i = 0; i < sizeof(takeover) / sizeof(takeover[0]); i++) {
		long got = make_call(pid, takeover[i].nr, takeover[i].args);

		if (got != takeover[i].want)
			fail_msg("%s: %ld, expected %ld", takeover[i].what, got, takeover[i].want);
	}
	is_served(ONE);
	rig_stop(d);
}

ROW_ONCE(a_daemon_taken_over_dies)
{
	static const long deadly[] = { SYS_execve, SYS_setuid, SYS_unshare }, none[6];
	char why[1024];

	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++) {
		struct daemon *d = start_refusing(*state);

		make_call(rig_pid(d), deadly[i], none);
		running = NULL;
		assert_int_not_equal(daemon_join(d, RIG_PATIENCE_MS, why, sizeof(why)), 0);
		/* SIGSYS, without or with the mark of a core dump */
		if (!strstr(why, "wait status 0x1f") && !strstr(why, "wait status 0x9f"))
			fail_msg("call %ld: %s", deadly[i], why);
	}
}

/* --- the control socket --- */

/* 0: refused with a reason; else what happened instead. */
static int ask_as_other(struct daemon *d, pid_t pid)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	static const char request[] = "{\"command\":\"reload\"}\n";
	char buf[4096] = "";
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)pid;
	strcpy(un.sun_path, daemon_control(d));
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)))
		return 1;
	if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0 ||
	    recv(fd, buf, sizeof(buf) - 1, 0) <= 0)
		return 2;
	return strstr(buf, "permission denied") ? 0 : 3;
}

/* The file keeps them out; where it is open to all, they may change nothing. */
ROW_ONCE(others_get_no_answer)
{
	struct daemon *d = rig_start(*state, "[culvert]\nuser = nobody\n" ONE_FORWARD);
	struct stat st;

	assert_int_equal(stat(daemon_control(d), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_gid, NOBODY);
	assert_int_equal(as_account(OTHER, ask_as_other, d), 1);
	assert_int_equal(chmod(daemon_control(d), 0666), 0);
	assert_int_equal(as_account(OTHER, ask_as_other, d), 0);
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_security", TEST_SECONDS);
}
