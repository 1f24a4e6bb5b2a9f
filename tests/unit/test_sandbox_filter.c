/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon's seccomp filter, applied to a child that then tries what somebody would who has taken
 * over the daemon.  The calls are made raw, so that nothing depends on the C library.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/sched.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "unit.h"
#include "base/built_with.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "base/sandbox.h"

#define ALL (PART_SOCKMAP | PART_NOTIFY | PART_SESSION_LOG)
#define X32_BIT 0x40000000L
#define NOTHING (-1) /* a descriptor that is none */

/* Links every module of the daemon into this program, and with it its table. */
static int (*volatile whole_daemon)(int, char **) = daemon_run;

enum verdict {
	ALLOWED, /* the kernel looks at it, whatever it then says */
	REFUSED, /* ENOSYS or SIGSYS, by mode */
	DEADLY,  /* SIGSYS in both */
	DENIED,  /* EACCES in both */
};

struct attempt {
	const char *what;
	enum verdict verdict;
	long call;
	long args[6];
};

#define ADDRESS(x) ((long)(uintptr_t)(x))

static void enter(enum filter_mode mode, unsigned int parts)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		_exit(125);
	if (syscall_filter_enter(mode, NULL, parts))
		_exit(126);
}

/*
 * _exit(2) of a confined process.  Not by that name: before a function that does not return
 * AddressSanitizer makes calls of its own.
 */
static void leave(int code)
{
	syscall(SYS_exit_group, code);
}

/* Of the child: errno of the call, or 1000 + signal. */
static int outcome(pid_t pid)
{
	int status;

	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int try(const struct attempt *a, enum filter_mode mode, unsigned int parts)
{
	pid_t pid = fork();

	if (pid == 0) {
		enter(mode, parts);
		errno = 0;
		syscall(a->call, a->args[0], a->args[1], a->args[2], a->args[3], a->args[4],
			a->args[5]);
		leave(errno);
	}
	return outcome(pid);
}

/*
 * ThreadSanitizer has a thread of its own, in the child too, and the filter may kill that for its
 * calls at any time.
 */
#define MODES (BUILT_WITH_TSAN ? 1 : 2)

static void expect(const struct attempt *a, enum verdict verdict, unsigned int parts)
{
	for (int kill = 0; kill < MODES; kill++) {
		int got = try(a, kill ? FILTER_KILL : FILTER_ERRNO, parts);
		int want = verdict == DENIED                                 ? EACCES :
			   verdict == DEADLY || (verdict == REFUSED && kill) ? 1000 + SIGSYS :
									       ENOSYS;

		if (verdict == ALLOWED ? got == ENOSYS || got >= 125 : got != want)
			fail_msg("%s (%s): %d", a->what, kill ? "kill" : "errno", got);
	}
}

#define STREAM (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
#define APPENDS (O_WRONLY | O_APPEND | O_NOFOLLOW)
#define PATH ADDRESS("/nowhere/at/all")
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS), NOTHING, 0
#define SOCKET_OPTION(name) NOTHING, SOL_SOCKET, name
#define DIRECTORY (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define LOG_FLAGS (APPENDS | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

static const struct attempt attempts[] = {
	/* other programs, other processes */
	{ "execve", DEADLY, SYS_execve, { ADDRESS("/bin/true") } },
	{ "ptrace", DEADLY, SYS_ptrace, { 16, 1 } },
	{ "clone", REFUSED, SYS_clone, { SIGCHLD } },
	{ "clone3", REFUSED, SYS_clone3, { 0, 0 } },
	{ "kill", REFUSED, SYS_kill, { 1, 0 } },
	{ "tgkill, another process", REFUSED, SYS_tgkill, { 1, 1, 0 } },
	{ "pidfd_open", REFUSED, SYS_pidfd_open, { 1 } },
	{ "prctl", REFUSED, SYS_prctl, { PR_SET_DUMPABLE, 1 } },
	/* files */
	{ "openat, read", DENIED, SYS_openat, { AT_FDCWD, PATH, O_RDONLY | O_CLOEXEC } },
	{ "openat, read and append", DENIED, SYS_openat, { AT_FDCWD, PATH, O_APPEND | O_NOFOLLOW } },
	{ "openat, both", REFUSED, SYS_openat, { AT_FDCWD, PATH, O_RDWR | O_APPEND | O_NOFOLLOW } },
	{ "openat, anywhere", REFUSED, SYS_openat, { AT_FDCWD, PATH, O_WRONLY | O_NOFOLLOW } },
	{ "openat, follow", REFUSED, SYS_openat, { AT_FDCWD, PATH, O_WRONLY | O_APPEND } },
	{ "openat, shorten", REFUSED, SYS_openat, { AT_FDCWD, PATH, APPENDS | O_TRUNC } },
	{ "openat, O_TMPFILE", REFUSED, SYS_openat, { AT_FDCWD, PATH, APPENDS | O_TMPFILE } },
	{ "openat2", REFUSED, SYS_openat2, { AT_FDCWD, ADDRESS("/etc/passwd") } },
	{ "memfd_create", REFUSED, SYS_memfd_create, { ADDRESS("x") } },
	{ "fchmodat", REFUSED, SYS_fchmodat, { AT_FDCWD, ADDRESS("/x"), 0777 } },
	{ "mount", DEADLY, SYS_mount, { ADDRESS("x"), ADDRESS("/") } },
	/* privileges */
	{ "setuid", DEADLY, SYS_setuid, { 0 } },
	{ "setgroups", DEADLY, SYS_setgroups, { 0, 0 } },
	{ "capset", DEADLY, SYS_capset, { 0, 0 } },
	{ "unshare", DEADLY, SYS_unshare, { CLONE_NEWUSER } },
	{ "keyctl", DEADLY, SYS_keyctl, { 0 } },
	/* the kernel's wide surfaces */
	{ "bpf, load a program", REFUSED, SYS_bpf, { BPF_PROG_LOAD } },
	{ "bpf, create a map", REFUSED, SYS_bpf, { BPF_MAP_CREATE } },
	{ "bpf, read a map", REFUSED, SYS_bpf, { BPF_MAP_LOOKUP_ELEM } },
	{ "bpf, attach", REFUSED, SYS_bpf, { BPF_PROG_ATTACH } },
	{ "perf_event_open", DEADLY, SYS_perf_event_open, { 0 } },
	{ "io_uring_setup", DEADLY, SYS_io_uring_setup, { 1 } },
	{ "userfaultfd", DEADLY, SYS_userfaultfd, { 0 } },
	{ "finit_module", DEADLY, SYS_finit_module, { NOTHING } },
	{ "seccomp", REFUSED, SYS_seccomp, { 0 } },
	/* memory that could be run */
	{ "mmap, executable", REFUSED, SYS_mmap, { 0, 4096, PROT_READ | PROT_EXEC, ANONYMOUS } },
	{ "mmap, of a file", REFUSED, SYS_mmap, { 0, 4096, PROT_READ, MAP_PRIVATE, 0, 0 } },
	{ "mprotect, executable", REFUSED, SYS_mprotect, { 0, 4096, PROT_READ | PROT_EXEC } },
	/* the network */
	{ "socket, packet", REFUSED, SYS_socket, { AF_PACKET, SOCK_RAW, 0 } },
	{ "socket, netlink", REFUSED, SYS_socket, { AF_NETLINK, SOCK_RAW, 0 } },
	{ "socket, raw", REFUSED, SYS_socket, { AF_INET, SOCK_RAW, IPPROTO_ICMP } },
	{ "socket, UDP", REFUSED, SYS_socket, { AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0 } },
	{ "socket, MPTCP", REFUSED, SYS_socket, { AF_INET, STREAM, 262 } },
	{ "listen", REFUSED, SYS_listen, { NOTHING, 1 } },
	{ "setsockopt, SO_MARK", REFUSED, SYS_setsockopt, { SOCKET_OPTION(SO_MARK) } },
	{ "setsockopt, TCP_REPAIR", REFUSED, SYS_setsockopt, { NOTHING, IPPROTO_TCP, TCP_REPAIR } },
	{ "setsockopt, another level", REFUSED, SYS_setsockopt, { NOTHING, IPPROTO_IP, SO_LINGER } },
	{ "reuseport, EBPF", REFUSED, SYS_setsockopt, { SOCKET_OPTION(SO_ATTACH_REUSEPORT_EBPF) } },
	{ "ioctl", REFUSED, SYS_ioctl, { NOTHING, SIOCGIFCONF } },
	{ "fcntl", REFUSED, SYS_fcntl, { 0, F_SETFL, 0 } },
	{ "pipe2, packets", REFUSED, SYS_pipe2, { 0, O_DIRECT } },
	/* what the modules do */
	{ "accept4", ALLOWED, SYS_accept4, { NOTHING } },
	{ "socket, IPv4", ALLOWED, SYS_socket, { AF_INET, STREAM, 0 } },
	{ "connect", ALLOWED, SYS_connect, { NOTHING } },
	{ "sendto", ALLOWED, SYS_sendto, { NOTHING } },
	{ "splice", ALLOWED, SYS_splice, { NOTHING, 0, NOTHING, 0, 1 } },
	{ "pipe2", ALLOWED, SYS_pipe2, { 0, O_CLOEXEC | O_NONBLOCK } },
	{ "setsockopt, TCP_NODELAY", ALLOWED, SYS_setsockopt, { NOTHING, IPPROTO_TCP, TCP_NODELAY } },
	{ "sendmsg", ALLOWED, SYS_sendmsg, { NOTHING } },
	{ "recvmsg, which takes descriptors", ALLOWED, SYS_recvmsg, { NOTHING } },
	{ "reuseport, CBPF", REFUSED, SYS_setsockopt, { SOCKET_OPTION(SO_ATTACH_REUSEPORT_CBPF) } },
	{ "getsockopt, TCP_INFO", ALLOWED, SYS_getsockopt, { NOTHING, IPPROTO_TCP, TCP_INFO } },
	{ "ioctl, SIOCOUTQ", ALLOWED, SYS_ioctl, { NOTHING, SIOCOUTQ } },
	{ "clock_gettime", ALLOWED, SYS_clock_gettime, { CLOCK_THREAD_CPUTIME_ID, 0 } },
	{ "mmap", ALLOWED, SYS_mmap, { 0, 4096, PROT_READ | PROT_WRITE, ANONYMOUS } },
	{ "bind", ALLOWED, SYS_bind, { NOTHING } },
	{ "socket, unix", ALLOWED, SYS_socket, { AF_UNIX, STREAM, 0 } },
};

/* What only some configurations need is refused in the others. */
static const struct {
	unsigned int part;
	struct attempt attempt;
} in_parts[] = {
	{ PART_SESSION_LOG, { "append", ALLOWED, SYS_openat, { AT_FDCWD, PATH, LOG_FLAGS } } },
	{ PART_SESSION_LOG, { "directory", ALLOWED, SYS_openat, { AT_FDCWD, PATH, DIRECTORY } } },
	{ PART_SESSION_LOG, { "ftruncate", ALLOWED, SYS_ftruncate, { NOTHING } } },
	{ PART_SOCKMAP, { "bpf, update", ALLOWED, SYS_bpf, { BPF_MAP_UPDATE_ELEM } } },
	{ PART_SOCKMAP, { "bpf, delete", ALLOWED, SYS_bpf, { BPF_MAP_DELETE_ELEM } } },
	{ PART_SOCKMAP,
	  { "attach BPF", ALLOWED, SYS_setsockopt, { SOCKET_OPTION(SO_ATTACH_BPF) } } },
	{ PART_NOTIFY,
	  { "socket, notify", ALLOWED, SYS_socket, { AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0 } } },
	{ PART_PRIVILEGED,
	  { "transparent", ALLOWED, SYS_setsockopt, { NOTHING, IPPROTO_IP, IP_TRANSPARENT } } },
};

TEST(test_attempts)
{
	assert_non_null(whole_daemon);
	if (MODES < 2)
		printf("skip: mode kill: built with -fsanitize=thread\n");
	for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++)
		expect(&attempts[i], attempts[i].verdict, ALL);
	for (size_t i = 0; i < sizeof(in_parts) / sizeof(in_parts[0]); i++) {
		expect(&in_parts[i].attempt, ALLOWED, in_parts[i].part);
		expect(&in_parts[i].attempt, REFUSED, ALL & ~in_parts[i].part);
	}
}

/* Who looks at a call by its number only is fooled by another ABI's numbers. */
TEST(test_other_abi)
{
#ifdef __x86_64__
	static const struct attempt x32 = { "x32 getpid", DEADLY, SYS_getpid | X32_BIT, { 0 } };
	pid_t pid = fork();
	int got;

	if (pid == 0) {
		long r = 20; /* getpid(2) of i386 */

		signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the next test */
		enter(FILTER_ERRNO, ALL);
		__asm__ volatile("int $0x80" : "+a"(r) : : "memory", "r8", "r9", "r10", "r11");
		leave(0);
	}
	got = outcome(pid);
	/* a kernel without the 32-bit ABI faults */
	if (got != 1000 + SIGSYS && got != 1000 + SIGSEGV)
		fail_msg("int 0x80: %d", got);
	expect(&x32, DEADLY, ALL);
#else
	(void)state;
	printf("skip: the other ABIs of this architecture are not known here\n");
	skip();
#endif
}

enum { CREATED, RUNNING, CONFINED };

static void *wait_and_try(void *arg)
{
	int *stage = arg;

	__atomic_store_n(stage, RUNNING, __ATOMIC_RELEASE);
	while (__atomic_load_n(stage, __ATOMIC_ACQUIRE) != CONFINED)
		sched_yield();
	errno = 0;
	syscall(SYS_memfd_create, "x", 0);
	leave(errno);
	return NULL;
}

/* Threads that ran before are confined too. */
TEST(test_all_threads)
{
	static int stage = CREATED;
	pthread_t thread;
	pid_t pid = fork();

	if (pid == 0) {
		if (pthread_create(&thread, NULL, wait_and_try, &stage))
			_exit(124);
		/*
		 * the C library's and the sanitizers' start of a thread needs more than the filter
		 * allows
		 */
		while (__atomic_load_n(&stage, __ATOMIC_ACQUIRE) != RUNNING)
			sched_yield();
		enter(FILTER_ERRNO, ALL);
		__atomic_store_n(&stage, CONFINED, __ATOMIC_RELEASE);
		for (;;)
			sched_yield();
	}
	assert_int_equal(outcome(pid), ENOSYS);
}

static void skip_if_instrumented(void)
{
	const char *sanitizer = BUILT_WITH_SANITIZER;

	if (!sanitizer)
		return;
	printf("skip: built with -fsanitize=%s\n", sanitizer);
	skip();
}

/* A daemon that finds itself broken ends as it would without a filter. */
TEST(test_abort)
{
	pid_t pid;

	skip_if_instrumented();
	pid = fork();
	if (pid == 0) {
		enter(FILTER_KILL, 0);
		abort();
	}
	assert_int_equal(outcome(pid), 1000 + SIGABRT);
}

/* Without no_new_privs and without root the kernel takes no filter, and that is an error. */
TEST(test_no_filter_is_an_error)
{
	char err[256] = "";
	pid_t pid = fork();
	int r;

	if (pid == 0) {
		if (geteuid() == 0 && setresuid(65534, 65534, 65534))
			_exit(124);
		log_keep_complaint(err, sizeof(err));
		r = syscall_filter_enter(FILTER_ERRNO, NULL, 0);
		_exit(r == -EACCES && err[0] ? 0 : 1);
	}
	assert_int_equal(outcome(pid), 0);
}

UNIT_MAIN(NULL, NULL)
