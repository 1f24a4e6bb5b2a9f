/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A running daemon as an attacker meets it: what it has left of its privileges, and who may look
 * into it; and the privileged process beside it: what it has, and what somebody could do with it.
 * unit/test_sandbox_filter tries each rule of the daemon's filter, unit/test_control_socket has who
 * may ask the daemon, and service_systemd.py how the two processes outlive each other.
 */
#include "forward_rig.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "base/built_with.h"
#include "hold.h"
#include "relay/marked_sockets.h"

#define TEST_SECONDS 240
#define NOBODY 65534
#define CONF "[culvert]\nuser = nobody\nworkers = 3\n" FORWARD("one", ONE, "")

/* Lines in the status of each thread. */
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
};

/* In /proc/PID/status, PID being a process or a thread; not there: it has gone. */
static bool status_has(pid_t pid, const char *line)
{
	FILE *f = fopen(textf("/proc/%d/status", (int)pid), "re");
	char text[4096] = "";

	if (!f)
		return false;
	(void)!fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	return strstr(text, line);
}

/* The status of PID has the N lines, and its filter, which no sanitizer would stand. */
static void is_confined(pid_t pid, const char *const *lines, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!status_has(pid, lines[i]))
			fail_msg("thread %d lacks: %s", (int)pid, lines[i]);
	assert_true(BUILT_WITH_SANITIZER || status_has(pid, "Seccomp:\t2\n"));
}

ROW_ONCE(every_thread_is_confined)
{
	struct daemon *d = rig_start(*state, CONF);
	pid_t tids[64];
	size_t n = hold_threads(rig_pid(d), tids, 64);

	for (size_t i = 0; i < n; i++)
		is_confined(tids[i], confinement, sizeof(confinement) / sizeof(confinement[0]));
	assert_true(n >= 5); /* main, control, three workers */
	rig_stop(d);
}

static bool can_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* In a process of the daemon's own account: what it can do that it must not; 0: nothing. */
static int look_in(pid_t pid)
{
	alarm(RIG_PATIENCE_MS / 1000);
	if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return 100;
	if (can_open(textf("/proc/%d/mem", (int)pid), O_RDWR))
		return 1;
	if (can_open(textf("/proc/%d/fd/0", (int)pid), O_RDONLY))
		return 2;
	return ptrace(PTRACE_SEIZE, pid, NULL, NULL) ? 0 : 3;
}

/* `nobody` is often shared. */
ROW_ONCE(the_same_account_cannot_look_in)
{
	struct daemon *d = rig_start(*state, CONF);
	pid_t daemon = rig_pid(d), pid = fork();
	int status;

	if (pid == 0)
		_exit(look_in(daemon));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	rig_stop(d);
}

/* --- the privileged process --- */

#define LISTEN "127.0.0.1:443"
#define TEXT FORWARD("web", LISTEN, "")

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

	is_confined(pid, has, sizeof(has) / sizeof(has[0]));
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
	rig_wait_log(d, "cannot make sockets with a mark or for transparent forwarding: the "
			"privileged process has not answered in time");
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

#ifdef __x86_64__ /* the registers of others are not known here */
static int to_next_stop(pid_t pid)
{
	int status;

	if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) || waitpid(pid, &status, __WALL) != pid)
		return -errno;
	return WIFSTOPPED(status) ? 0 : -ESRCH;
}

static void set_call(struct user_regs_struct *regs, long nr, const long args[6])
{
	regs->rip -= 2;
	regs->rax = (unsigned long long)nr;
	regs->orig_rax = (unsigned long long)-1; /* no restart of the old one */
	regs->rdi = (unsigned long long)args[0];
	regs->rsi = (unsigned long long)args[1];
	regs->rdx = (unsigned long long)args[2];
	regs->r10 = (unsigned long long)args[3];
	regs->r8 = (unsigned long long)args[4];
	regs->r9 = (unsigned long long)args[5];
}

static int call_stopped(pid_t pid, long nr, const long args[6], long *ret)
{
	struct user_regs_struct saved, regs;
	int r;

	if (ptrace(PTRACE_GETREGS, pid, NULL, &saved))
		return -errno;
	if ((long)saved.orig_rax < 0)
		return -EAGAIN; /* it is not in a system call, so there is no instruction for one */
	regs = saved;
	set_call(&regs, nr, args);
	if (ptrace(PTRACE_SETREGS, pid, NULL, &regs))
		return -errno;
	r = to_next_stop(pid);      /* before it */
	r = r ?: to_next_stop(pid); /* after it */
	if (r)
		return r;
	if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) || ptrace(PTRACE_SETREGS, pid, NULL, &saved))
		return -errno;
	*ret = (long)regs.rax;
	return 0;
}

/*
 * Make thread PID, which waits in a system call, make another: its own `syscall` instruction is run
 * again with other registers.  RET gets what the kernel says.  Returns 0, or -errno if PID could
 * not be made to.  A call that kills PID counts as made.
 */
static int takeover_call(pid_t pid, long nr, const long args[6], long *ret)
{
	int r;

	do {
		r = hold_begin(pid) ?: call_stopped(pid, nr, args, ret);
		hold_end(pid);
	} while (r == -EAGAIN && !poll(NULL, 0, 1));
	return r;
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

	if (BUILT_WITH_SANITIZER) {
		printf("skip: no filter with this sanitizer\n");
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
#endif

int main(void)
{
	return rig_run("test_security", TEST_SECONDS);
}
