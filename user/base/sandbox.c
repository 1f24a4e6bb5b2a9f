// SPDX-License-Identifier: BSD-2-Clause
/* How a process gives up its privileges for good, and the account that it becomes. */
#include "base/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/minmax.h"

int account_find_as_root(const char *name, struct account *ret)
{
	struct passwd *pw = getpwnam(name ?: "culvert");

	if (!pw && !name)
		pw = getpwnam("nobody");
	if (!pw)
		return log_complain(-ENOENT,
				    "no such account: %s (give another with --user, or start "
				    "culvert as an account that is not root)",
				    name ?: "culvert, nobody");
	if (pw->pw_uid == 0)
		return log_complain(-EINVAL,
				    "account %s is root: give an unprivileged one with --user",
				    pw->pw_name);
	*ret = (struct account){ .uid = pw->pw_uid, .gid = pw->pw_gid };
	snprintf(ret->name, sizeof(ret->name), "%s", pw->pw_name);
	return 0;
}

/* Root without capabilities (in a container) cannot become another account, and need not. */
static bool is_root(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct has[2];

	return geteuid() == 0 && (capget(&header, has) || has[0].permitted || has[1].permitted);
}

int account_find(const char *name, struct account *ret)
{
	const struct passwd *pw;

	if (is_root())
		return account_find_as_root(name, ret);
	pw = getpwuid(geteuid());
	if (name && (!pw || strcmp(name, pw->pw_name)))
		return log_complain(-EPERM, "--user %s: this needs root, with its capabilities",
				    name);
	*ret = (struct account){ .uid = geteuid(), .gid = getegid() };
	snprintf(ret->name, sizeof(ret->name), "%s", pw ? pw->pw_name : "?");
	return 0;
}

/*
 * Without CAP_SETPCAP the bounding set stays as it is.  An account other than root cannot use the
 * set.  Root without capabilities gains none by it, because of no_new_privs.
 */
static int reduce_bounding_set(uint64_t keep)
{
	for (cap_value_t c = 0; CAP_IS_SUPPORTED(c); c++)
		if (!(keep >> c & 1) && cap_get_bound(c) > 0 && cap_drop_bound(c) && is_root())
			return -errno;
	return 0;
}

/* Keep those of KEEP that the process has, and make none inheritable. */
static int reduce_capabilities(uint64_t keep)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct set[2];

	if (capget(&header, set))
		return -errno;
	for (int i = 0; i < 2; i++) {
		set[i].effective = set[i].permitted &= (uint32_t)(keep >> 32 * i);
		set[i].inheritable = 0;
	}
	return capset(&header, set) ? -errno : 0;
}

int sandbox_enter(const struct account *a, uint64_t keep)
{
	int r = reduce_bounding_set(keep);

	if (!r && is_root() &&
	    (setgroups(0, NULL) ||
	     (a && (setresgid(a->gid, a->gid, a->gid) || setresuid(a->uid, a->uid, a->uid)))))
		r = -errno;
	r = r ?: reduce_capabilities(keep);
	/*
	 * not dumpable: a process of the same account must not trace this one.  The kernel prevents
	 * that by itself only after a change of uid.
	 */
	if (!r && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)))
		r = -errno;
	if (!r && a && a->uid && setuid(0) == 0)
		r = -EPERM;
	return r ? log_complain(r,
				"cannot give up privileges: %s (root needs CAP_SETUID, CAP_SETGID "
				"and CAP_SETPCAP, and a user namespace must have the account %s: "
				"give another with --user, or start culvert as an account that is "
				"not root)",
				strerror(-r), a ? a->name : "of --user") :
		   0;
}

int sandbox_child(const char *name, int *fds, size_t n)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), behind = SANDBOX_CHILD_FD + (int)n;
	bool failed = null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0;
	sigset_t all;

	for (size_t i = 0; i < n; i++) /* out of the way */
		fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, behind);
	for (size_t i = 0; i < n; i++) {
		fds[i] = dup2(fds[i], SANDBOX_CHILD_FD + (int)i);
		failed = failed || fds[i] < 0;
	}
	if (failed)
		return log_complain(-errno, "process %s cannot renumber its descriptors: %s", name,
				    strerror(errno));
	closefrom(behind);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, name, 0, 0, 0);
	return 0;
}

unsigned long sandbox_raise_nofile(unsigned long want)
{
	struct rlimit rl, more = { .rlim_cur = want };

	if (getrlimit(RLIMIT_NOFILE, &rl))
		return 0;
	more.rlim_max = larger(want, rl.rlim_max); /* once lowered, it could not be raised */
	/* with CAP_SYS_RESOURCE beyond the hard limit, too */
	if (rl.rlim_cur < want && setrlimit(RLIMIT_NOFILE, &more)) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	getrlimit(RLIMIT_NOFILE, &rl);
	return rl.rlim_cur;
}

/* --- the filter of system calls --- */

/*
 * Theory of operation: an allow list is loaded when all threads run and all descriptors that need
 * opening are open.  So the list allows no new thread, process or listener, and no new file but a
 * session log that is opened anew.
 *
 * A call that is not on the list:
 *   errno  fails with ENOSYS, as on an older kernel.  A newer C library may try a newer call, and
 *          then uses the older one.  The kernel logs the refused call (audit type 1326).
 *   kill   ends the process with SIGSYS, which shows a forgotten call at once.
 * In both modes:
 *   - a call that neither culvert nor a library makes by itself (`never`), or a call in the ABI
 *     of another architecture, ends the process: an attacker is in control;
 *   - openat(2) to read fails with EACCES: glibc's malloc looks at /proc/sys/vm/overcommit_memory
 *     when it first gives back memory of a thread, and can do without.
 *
 * The calls of the payload path have no conditions on their arguments: then the kernel decides with
 * one look at a bitmap (seccomp_cache_check_allow()) and does not run the filter.
 */

/* The C library's own calls. */
SYSCALLS_ALLOWED(
	/* malloc: no executable memory, nothing mapped from files */
	SYSCALL(brk),
	SYSCALL(mmap, SYSCALL_ARG_BITS(2, PROT_EXEC, 0),
		SYSCALL_ARG_BITS(3, MAP_ANONYMOUS, MAP_ANONYMOUS)),
	SYSCALL(mprotect, SYSCALL_ARG_BITS(2, PROT_EXEC, 0)), SYSCALL(mremap), SYSCALL(munmap),
	SYSCALL(madvise),
	SYSCALL(sched_getaffinity), /* how many arenas are worth having */
	/* the first steps of a thread, if the filter overtakes it */
	SYSCALL(set_robust_list), SYSCALL(rseq),
	/* mutexes, joining; the end of a thread and of the process */
	SYSCALL(futex), SYSCALL(futex_time64), SYSCALL(sched_yield), SYSCALL(rt_sigprocmask),
	SYSCALL(exit), SYSCALL(exit_group),
	/* after SIGSTOP and SIGCONT */
	SYSCALL(restart_syscall), SYSCALL(rt_sigreturn),
	/* where the clock source is one that the vDSO cannot read */
	SYSCALL(clock_gettime), SYSCALL(clock_gettime64), SYSCALL(gettimeofday),
	/* abort(); tgkill(2) has a rule of its own below */
	SYSCALL(rt_sigaction), SYSCALL(getpid), SYSCALL(gettid), SYSCALL(writev),
	/* the seed of json-c's hash tables */
	SYSCALL(getrandom));

/* clang-format off */
static const int never[] = {
	SCMP_SYS(execve), SCMP_SYS(execveat),
	SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev),
	SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load),
	SCMP_SYS(init_module), SCMP_SYS(finit_module), SCMP_SYS(delete_module),
	SCMP_SYS(setuid), SCMP_SYS(setreuid), SCMP_SYS(setresuid),
	SCMP_SYS(setgid), SCMP_SYS(setregid), SCMP_SYS(setresgid), SCMP_SYS(setgroups),
	SCMP_SYS(capset), SCMP_SYS(unshare), SCMP_SYS(setns),
	SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot),
	SCMP_SYS(open_by_handle_at), SCMP_SYS(userfaultfd), SCMP_SYS(perf_event_open),
	SCMP_SYS(io_uring_setup), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key),
};
/* clang-format on */

/* Made by the linker, which chooses their names: begin and end of the section. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
extern const struct syscall_need *const __start_syscall_needs[];
extern const struct syscall_need *const __stop_syscall_needs[];
/* NOLINTEND(bugprone-reserved-identifier) */

static int allow_table(scmp_filter_ctx ctx, const struct syscall_need *need, unsigned int parts)
{
	int r = 0;

	for (; !r && need->call != SYSCALLS_END; need++) {
		unsigned int n = 0;

		while (n < SYSCALL_ARGS_MAX && need->args[n].op)
			n++;
		if (!need->part || need->part & parts)
			r = seccomp_rule_add_array(ctx, SCMP_ACT_ALLOW, need->call, n, need->args);
	}
	return r;
}

/* The daemon's rules.  EACCES for openat(2) is the answer to glibc's malloc, see above. */
static int allow_modules(scmp_filter_ctx ctx, unsigned int parts)
{
	const struct scmp_arg_cmp reads = SYSCALL_ARG_BITS(2, O_PATH | O_ACCMODE, O_RDONLY);
	const struct syscall_need *const *table;
	int r = seccomp_rule_add_array(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat), 1, &reads);

	/* cppcheck-suppress comparePointers ; of one section */
	for (table = __start_syscall_needs; table < __stop_syscall_needs; table++)
		r = r ?: allow_table(ctx, *table, parts);
	return r;
}

int syscall_filter_enter(enum filter_mode mode, const struct syscall_need *list, unsigned int parts)
{
	const struct scmp_arg_cmp self = { 0, SCMP_CMP_MASKED_EQ, 0xffffffffU, (uint64_t)getpid() };
	uint32_t refuse = mode == FILTER_KILL ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_ERRNO(ENOSYS);
	scmp_filter_ctx ctx;
	int r = -ENOMEM;

	if (mode == FILTER_OFF || (list && BUILT_WITH_SANITIZER))
		return 0;
	ctx = seccomp_init(refuse);
	if (ctx && list)
		r = allow_table(ctx, syscalls_needed, 0) ?: allow_table(ctx, list, parts);
	else if (ctx)
		r = allow_modules(ctx, parts);
	r = r ?: seccomp_rule_add_array(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, &self);
	/* libseccomp refuses a rule that repeats the default */
	for (size_t i = 0; !r && mode != FILTER_KILL && i < sizeof(never) / sizeof(never[0]); i++)
		r = seccomp_rule_add(ctx, SCMP_ACT_KILL_PROCESS, never[i], 0);
	r = r ?: seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1);
	/* sandbox_enter() sets no_new_privs; SYSRAWRC: show the kernel's own error */
	r = r ?: seccomp_attr_set(ctx, SCMP_FLTATR_CTL_NNP, 0);
	r = r ?: seccomp_attr_set(ctx, SCMP_FLTATR_API_SYSRAWRC, 1);
	r = r ?: seccomp_attr_set(ctx, SCMP_FLTATR_CTL_LOG, true);
	r = r ?: seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	/* a binary tree: the filter is about 100 rules long */
	r = r ?: seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	r = r ?: seccomp_load(ctx);
	seccomp_release(ctx);
	return r ? log_complain(r,
				"cannot load the seccomp filter: %s (--seccomp off runs without)",
				strerror(-r)) :
		   0;
}
