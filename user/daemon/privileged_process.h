/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/addr.h"
#include "config/config.h"
#include "datapath/graft/graft_attach.h"
#include "graft_contract.h"
#include "relay/names.h"

/*
 * The privileged process itself, and its messages.
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

/* Room for the control message with descriptors. */
#define PRIVILEGED_ROOM_FOR_FDS CMSG_SPACE(sizeof(int) * WORKERS_MAX)

/* The files that a reload reads: the configuration, and those of the resolver (names.h). */
enum privileged_file {
	PRIVILEGED_CONFIG,
	PRIVILEGED_NAMES,
	PRIVILEGED_FILES = PRIVILEGED_NAMES + NAMES_FILES
};

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

/*
 * Be the privileged process: answer the requests that come by FD, until the other end is closed.
 * The arguments are those of privileged_start().
 */
_Noreturn void privileged_serve_all(int fd, const struct config *c, int argc, char **argv,
				    struct clsact *clsact);

/* Close N descriptors.  For both processes. */
void privileged_close(const int *fds, size_t n);
