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
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/minmax.h"

int account_find_as_root(const char *name, struct account *ret, char *err, size_t errlen)
{
	struct passwd *pw = getpwnam(name ?: "culvert");

	if (!pw && !name)
		pw = getpwnam("nobody");
	if (!pw) {
		snprintf(err, errlen, "no such account: %s (give another with --user, or start "
			 "culvert as an account that is not root)", name ?: "culvert, nobody");
		return -ENOENT;
	}
	if (pw->pw_uid == 0) {
		snprintf(err, errlen, "account %s is root: give an unprivileged one with --user",
			 pw->pw_name);
		return -EINVAL;
	}
	snprintf(ret->name, sizeof(ret->name), "%s", pw->pw_name);
	ret->uid = pw->pw_uid;
	ret->gid = pw->pw_gid;
	return 0;
}

/* In a container root may have no capability: it cannot become another account, and has no need to. */
static bool is_root(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct has[2];

	return geteuid() == 0 && (capget(&header, has) || has[0].permitted || has[1].permitted);
}

int account_find(const char *name, struct account *ret, char *err, size_t errlen)
{
	const struct passwd *pw;

	if (is_root())
		return account_find_as_root(name, ret, err, errlen);
	pw = getpwuid(geteuid());
	if (name && (!pw || strcmp(name, pw->pw_name))) {
		snprintf(err, errlen, "--user %s: this needs root, with its capabilities", name);
		return -EPERM;
	}
	snprintf(ret->name, sizeof(ret->name), "%s", pw ? pw->pw_name : "?");
	ret->uid = geteuid();
	ret->gid = getegid();
	return 0;
}

/*
 * Without CAP_SETPCAP the bounding set stays as it is.  An account other than root cannot use it, and
 * root without capabilities gets none by it because of no_new_privs.
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
	cap_t had = cap_get_proc(), set = cap_init(); /* all clear */
	int r = had && set ? 0 : -ENOMEM;

	for (cap_value_t c = 0; !r && keep >> c; c++) {
		cap_flag_value_t has;

		if (keep >> c & 1 && (cap_get_flag(had, c, CAP_PERMITTED, &has) ||
				      cap_set_flag(set, CAP_PERMITTED, 1, &c, has) ||
				      cap_set_flag(set, CAP_EFFECTIVE, 1, &c, has)))
			r = -errno;
	}
	if (!r && cap_set_proc(set))
		r = -errno;
	cap_free(had);
	cap_free(set);
	return r;
}

/* A NULL: keep the uid. */
static int give_up(const struct account *a, uint64_t keep)
{
	int r = reduce_bounding_set(keep);

	if (!r && is_root() &&
	    (setgroups(0, NULL) || (a && (setresgid(a->gid, a->gid, a->gid) ||
					  setresuid(a->uid, a->uid, a->uid)))))
		r = -errno;
	r = r ?: reduce_capabilities(keep);
	/* Not dumpable: a process of the same account must not trace this one; without a change of
	 * uid the kernel would let it. */
	if (!r && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)))
		r = -errno;
	return r ?: a && a->uid && setuid(0) == 0 ? -EPERM : 0;
}

int sandbox_enter(const struct account *a, uint64_t keep, char *err, size_t errlen)
{
	int r = give_up(a, keep);

	if (r)
		snprintf(err, errlen, "cannot give up privileges: %s (root needs CAP_SETUID, "
			 "CAP_SETGID and CAP_SETPCAP, and a user namespace must have the account "
			 "%s: give another with --user, or start culvert as an account that is "
			 "not root)", strerror(-r), a ? a->name : "of --user");
	return r;
}

int sandbox_child(const char *name, int *fds, size_t n, char *err, size_t errlen)
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
	if (failed) {
		snprintf(err, errlen, "cannot order its descriptors: %s", strerror(errno));
		return -errno;
	}
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
	if (rl.rlim_cur >= want)
		return rl.rlim_cur;
	more.rlim_max = larger(want, rl.rlim_max); /* lowered, it could not be raised again */
	if (!setrlimit(RLIMIT_NOFILE, &more)) /* with CAP_SYS_RESOURCE beyond the hard limit, too */
		return want;
	rl.rlim_cur = rl.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &rl))
		getrlimit(RLIMIT_NOFILE, &rl);
	return rl.rlim_cur;
}
