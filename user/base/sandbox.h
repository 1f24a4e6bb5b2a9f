/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/capability.h>
#include <sys/types.h>

#include "base/built_with.h"
#include "base/syscalls_allowed.h"

/* The account that culvert becomes. */
struct account {
	char name[64];
	uid_t uid;
	gid_t gid;
};

/*
 * The account that this process shall become.  Root becomes NAME; if NAME is NULL, `culvert` if
 * that account exists, else `nobody`.  Any other account, and root without capabilities, stays as
 * it is; then NAME must be NULL or the name of that account.  Returns 0; -ENOENT: no such account;
 * -EINVAL: NAME is root; -EPERM: only root could become NAME.  Like the functions below,
 * account_find() complains of an error, and says what to do.
 */
int account_find(const char *name, struct account *ret);

/* As account_find() for root, also if this process is not root. */
int account_find_as_root(const char *name, struct account *ret);

/*
 * Give up root for good.  The process takes the uid and gid of A, and has no other groups.  A NULL:
 * the process keeps its uid and gid.  All capabilities in all sets, bounding and ambient included,
 * are lost, except those in KEEP, a set of UINT64_C(1) << CAP_...  The process gets no_new_privs,
 * and is not dumpable: no process of the same account can trace it or read its memory, and there
 * are no core dumps.
 *
 * Without root, or its capabilities, the uid, gid and groups stay.  To be called before threads
 * exist.  Returns 0 or -errno.
 */
int sandbox_enter(const struct account *a, uint64_t keep);

/*
 * Confine this process, a child that was forked to keep a privilege.  Only stderr and the N
 * descriptors in FDS stay open, and FDS get the numbers from SANDBOX_CHILD_FD on.  All signals are
 * blocked.  NAME (at most 15 bytes) becomes the name of the process.  Returns 0 or -errno.
 */
#define SANDBOX_CHILD_FD 3
int sandbox_child(const char *name, int *fds, size_t n);

/* Raise RLIMIT_NOFILE to WANT descriptors, or as far as it goes.  Returns the limit in force. */
unsigned long sandbox_raise_nofile(unsigned long want);

/* The fate of a system call that is not on the list: see sandbox.c. */
enum filter_mode {
	FILTER_ERRNO,
	FILTER_KILL,
	FILTER_OFF,
};

/*
 * Confine all threads of this process, for good.  no_new_privs must be set.  PARTS are the parts in
 * use.  LIST NULL: the process is the daemon, and may make the calls of all modules.  Another
 * process may make the calls of LIST, which ends with SYSCALLS_END, and those of the C library.
 * With a sanitizer built in, such a process is not confined.  0 or -errno.
 */
int syscall_filter_enter(enum filter_mode mode, const struct syscall_need *list,
			 unsigned int parts);
