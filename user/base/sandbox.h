/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SANDBOX_H
#define CULVERT_SANDBOX_H

#include <stddef.h>
#include <stdint.h>
#include <sys/capability.h>
#include <sys/types.h>

/* The account that culvert becomes. */
struct account {
	char name[64];
	uid_t uid;
	gid_t gid;
};

/*
 * Look up NAME, or the default (`culvert` if that account exists, else `nobody`) if NAME is NULL.
 * -ENOENT; ERR says what to do.
 */
int account_find(const char *name, struct account *ret, char *err, size_t errlen);

/* The same whoever asks: the one that a daemon of root's becomes. */
int account_find_as_root(const char *name, struct account *ret, char *err, size_t errlen);

/*
 * Give up root for good: groups, uid and gid of A, all capabilities in all sets (bounding and
 * ambient included) but KEEP, a set of 1 << CAP_..., as far as there are any; no_new_privs, and not
 * dumpable: no process of the same account can trace this one or read its memory, and there are no
 * core dumps.  A NULL: the process goes on with its uid.  To be called before threads exist.
 * Without root only the latter and the capabilities are dealt with.  -errno; ERR says what root
 * lacks.
 */
int sandbox_enter(const struct account *a, uint64_t keep, char *err, size_t errlen);

/* Raise RLIMIT_NOFILE to WANT descriptors, or as far as it goes.  Returns the limit in force. */
unsigned long sandbox_raise_nofile(unsigned long want);

#endif
