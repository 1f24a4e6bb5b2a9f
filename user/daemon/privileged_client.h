/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PRIVILEGED_CLIENT_H
#define CULVERT_PRIVILEGED_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"

/*
 * The daemon's side of the privileged process (privileged.h).  Requests wait for their answers, for
 * PRIVILEGED_PATIENCE_S at most: they are not for a worker's thread.  Any other thread may ask.
 *
 * All take NULL for P: then there is no such process, which is an error like others.  They return
 * 0 or -errno, and ERR then says in one line what is wrong.  -EPIPE: the process has ended, and
 * there will be none until culvert is started again; the daemon goes on without.
 */
struct privileged;

#define PRIVILEGED_PATIENCE_S 5
/* How long a request for sockets waits for one that somebody else has under way. */
#define PRIVILEGED_BUSY_S 1

/*
 * Start it, before there are threads and before root is given up.  C, ARGC and ARGV are what the
 * daemon was started with, and must stay.
 */
int privileged_start(const struct config *c, int argc, char **argv, struct privileged **ret,
		     char *err, size_t errlen);
/* It ends by itself, now or when this process ends.  NULL is fine. */
void privileged_stop(struct privileged *p);

/* Its PID, or -1. */
pid_t privileged_pid(const struct privileged *p);
/* Is there one, and has it not ended?  Waits for no request that is under way. */
bool privileged_runs(const struct privileged *p);
/* On SIGCHLD: if it has ended, say so. */
void privileged_reap(struct privileged *p);

/*
 * Read the configuration file again.  RET_TEXT (the caller frees it) and RET_LEN are what it says,
 * in which the privileged process has found no mistake; RET_GENERATION is the number for struct
 * config.  IN_USE is that of the configuration that the daemon works with: until the next call
 * these two count, and requests may be made for either.
 */
int privileged_read_config(struct privileged *p, uint32_t in_use, char **ret_text, size_t *ret_len,
			   uint32_t *ret_generation, char *err, size_t errlen);

/*
 * N listening sockets for A, an address that forward number FORWARD of configuration GENERATION
 * listens on; port 0 in A
 * becomes the one that the kernel has picked.  JOINS: to a group that the daemon has already.  They
 * are non-blocking and close-on-exec.  Of a unix socket there is only one.
 */
int privileged_listen(struct privileged *p, uint32_t generation, size_t forward, struct addr *a,
		      bool joins, unsigned int n, int *fds, char *err, size_t errlen);

/*
 * N sockets of FAMILY that can be connected to the upstream of forward number FORWARD of
 * configuration GENERATION, with its mark, and transparent if it is.
 */
int privileged_sockets(struct privileged *p, uint32_t generation, size_t forward, int family,
		       unsigned int n, int *fds, char *err, size_t errlen);

/* The session log, opened anew (PRIVILEGED_OPEN_LOG): a descriptor or -errno. */
int privileged_open_log(struct privileged *p, char *err, size_t errlen);

#endif
