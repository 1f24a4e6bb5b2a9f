/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/privileged_process.h"

/*
 * The privileged process does the work that needs privileges after the daemon has given up root.
 * It reads the configuration file again, opens the files of the resolver, makes listening sockets
 * and sockets with a mark or for transparent forwarding, and attaches packet programs before Linux
 * 6.6.
 */

/*
 * P may be NULL in privileged_open_config() and the functions after it: without the process they
 * fail.  On failure these functions return -errno, and ERR has the fault in one line.  -EPIPE:
 * the process has ended, and there will be none until culvert is started again; the daemon goes on
 * without.  -EAGAIN: the process has not answered within PRIVILEGED_PATIENCE_S, or
 * PRIVILEGED_READ_S for a configuration; its late answer is dropped, and the next request may
 * succeed.  These functions wait for the answer, so no worker may call them.
 */
struct privileged {
	int fd;
	pid_t pid;
	pthread_mutex_t lock; /* one request at a time */
	bool ended, owes;     /* under the lock; OWES: a late answer is still to come */
};

#define PRIVILEGED_PATIENCE_S 5 /* the main thread may wait that long, in spite of the watchdog */
/* 10,000 forwards take seconds on a busy machine.  A stop waits as long (see TimeoutStopSec=). */
#define PRIVILEGED_READ_S 20

/*
 * Start it, before there are threads and before root is given up.  C, ARGC and ARGV are those of
 * the daemon's start, and must stay.  CLSACT: the packet programs, which the process attaches on
 * request from now on; NULL: none.  The privileged process ends with this one.  -errno, after a
 * complaint.
 */
int privileged_start(const struct config *c, int argc, char **argv, struct clsact *clsact,
		     struct privileged **ret);

/*
 * Open the files of enum privileged_file again.  0: the privileged process has found no mistake in
 * the configuration; or -errno.  A file of the resolver that cannot be read is replaced by an empty
 * one.  TOOK: the last configuration that was opened is in force.
 */
int privileged_open_config(struct privileged *p, bool took, int fds[PRIVILEGED_FILES], char *err,
			   size_t errlen);

/*
 * Get N sockets that listen at A, with the settings of FC, from P (a struct privileged).  If A has
 * port 0, A gets the port that the kernel has picked.  See listener_sockets().
 */
int privileged_listen(void *p, const struct forward_conf *fc, struct addr *a, bool joins,
		      unsigned int n, int *fds, char *err, size_t errlen);
/*
 * Get N sockets of FAMILY, to be connected to the upstream of FC, from P (a struct privileged).
 * They have the mark of FC, and are transparent if FC is.
 */
int privileged_sockets(void *p, const struct forward_conf *fc, int family, unsigned int n, int *fds,
		       char *err, size_t errlen);

/* Make the socket of side S of a session that came from another relay, see tcp_revive(). */
int privileged_revive(struct privileged *p, const struct graft_side *s, int *ret_fd, char *err,
		      size_t errlen);
