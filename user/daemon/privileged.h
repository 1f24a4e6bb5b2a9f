/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/addr.h"
#include "config/config.h"
#include "datapath/graft/graft_attach.h"
#include "graft_contract.h"
#include "relay/names.h"

/*
 * The privileged process does the work that needs privileges after the daemon has given up root.
 * It reads the configuration file again, opens the files of the resolver, makes listening sockets
 * and sockets with a mark or for transparent forwarding, and attaches packet programs before Linux
 * 6.6.
 *
 * The daemon asks over a pair of SOCK_SEQPACKET sockets, one request at a time.  A request is one
 * struct, and so is its answer; a packet of one byte with descriptors (SCM_RIGHTS) may come before
 * the answer.  The privileged process closes its copies of the descriptors before it answers, and
 * the daemon uses none before the answer.  Else a socket that the daemon closes would stay in
 * epoll, and close(2) would send neither FIN nor RST.
 *
 * Two configurations decide which requests are allowed: that of the daemon at work, and the last
 * one that the privileged process has read, because the daemon may be about to put it in force.
 */

/* --- for the daemon --- */

/*
 * P may be NULL in privileged_open_config() and the functions after it: without the process they
 * fail.  On failure these functions return -errno, and ERR says in one line what is wrong.  -EPIPE:
 * the process has ended, and there will be none until culvert is started again; the daemon goes on
 * without.  -EAGAIN: the process has not answered within PRIVILEGED_PATIENCE_S, or
 * PRIVILEGED_READ_S for a configuration; its late answer is dropped, and the next request may
 * succeed.  All wait for the answer, so no worker may ask.
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
 * request from now on; NULL: none.  -errno, after a complaint.
 */
int privileged_start(const struct config *c, int argc, char **argv, struct clsact *clsact,
		     struct privileged **ret);
/* The process ends by itself, now or when this process ends.  NULL is fine. */
void privileged_stop(struct privileged *p);

/* The files that a reload reads: the configuration, and those of the resolver (names.h). */
enum { PRIVILEGED_CONFIG, PRIVILEGED_NAMES, PRIVILEGED_FILES = PRIVILEGED_NAMES + NAMES_FILES };

/*
 * Open these files again: 0 or -errno.  The privileged process has found no mistake in the
 * configuration.  In place of another file that cannot be read it opens an empty one.  TOOK: the
 * last configuration that was opened is in force.
 */
int privileged_open_config(struct privileged *p, bool took, int fds[PRIVILEGED_FILES], char *err,
			   size_t errlen);

/*
 * N listening sockets for A, which a forward like FC listens on, from P (a struct privileged); port
 * 0 in A becomes the one that the kernel has picked.  See listener_sockets().
 */
int privileged_listen(void *p, const struct forward_conf *fc, struct addr *a, bool joins,
		      unsigned int n, int *fds, char *err, size_t errlen);
/*
 * N sockets of FAMILY that can be connected to the upstream of FC, with its mark, and transparent
 * if it is, from P (a struct privileged).
 */
int privileged_sockets(void *p, const struct forward_conf *fc, int family, unsigned int n, int *fds,
		       char *err, size_t errlen);

/* Make the socket of side S of a session that came from another relay, see tcp_revive(). */
int privileged_revive(struct privileged *p, const struct graft_side *s, int *ret_fd, char *err,
		      size_t errlen);

/* --- between the two --- */

enum privileged_op {
	PRIVILEGED_READ_CONFIG = 1, /* PRIVILEGED_FILES descriptors, at offset 0 */
	PRIVILEGED_LISTEN,
	PRIVILEGED_SOCKETS,
	PRIVILEGED_FILTERS, /* no descriptor */
	PRIVILEGED_REVIVE,  /* one descriptor */
};

struct privileged_request {
	uint32_t op;
	uint32_t took;          /* READ_CONFIG: 0 or 1 */
	uint32_t count;         /* of descriptors, at most WORKERS_MAX; FILTERS: 0 */
	uint32_t joins;         /* LISTEN: 0 or 1: the daemon may have sockets there */
	uint32_t transparent;   /* LISTEN, SOCKETS: 0 or 1 */
	uint32_t udp;           /* the same */
	uint32_t mark;          /* SOCKETS */
	uint32_t family;        /* SOCKETS */
	uint32_t ifindex;       /* FILTERS: where to attach; 0: remove all */
	uint32_t link;          /* FILTERS: enum graft_link */
	struct addr addr;       /* LISTEN */
	struct graft_side side; /* REVIVE */
};

struct privileged_answer {
	int32_t error;    /* 0, or an errno: then TEXT may say why, and there are no descriptors */
	struct addr addr; /* LISTEN: with the port that the kernel picked for port 0 */
	char text[1024];
};

/*
 * Do CONFIGS allow the request Q of LEN bytes?  A configuration without forwards does not count.
 * 0: yes, and RET_FC is the forward that allows the request, or NULL; -EPERM: no; -EBADMSG: culvert
 * itself never makes such a request.  RET_WHY is the reason of a refusal.
 */
int privileged_judge(const struct privileged_request *q, size_t len, const struct config configs[2],
		     const struct forward_conf **ret_fc, const char **ret_why);
