/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PRIVILEGED_H
#define CULVERT_PRIVILEGED_H

#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"
#include "config/config.h"

/*
 * The privileged process does for the daemon what the daemon cannot do itself any more once it has
 * given up root and is confined: it reads the configuration file again, and makes listening sockets
 * and those with a mark or for transparent forwarding.  The daemon asks over a pair of
 * SOCK_SEQPACKET sockets, one request at a time; each is answered by one struct, with descriptors
 * (SCM_RIGHTS) if it asked for some.  Neither holds a pointer or a path: a request names a
 * configuration and a forward of it by number, and what may be done for that forward is what the
 * privileged process has read itself.
 *
 * After an answer with descriptors the privileged process closes its copies, and says so by one
 * more packet, PRIVILEGED_CLOSED.  The daemon uses no descriptor before that packet has come: a
 * file that another process holds too stays in epoll when the daemon closes it, and close(2) sends
 * neither FIN nor RST.
 *
 * Configurations are numbered in the order in which they were read, from 0 for that of the start
 * (struct config, `generation`).  Two are kept: the one that the daemon works with, and the last
 * that was read, which it may be about to take over.
 */

#define PRIVILEGED_FDS 64      /* descriptors in one answer, at most */
#define PRIVILEGED_TEXT 1024   /* bytes that say what is wrong */
#define PRIVILEGED_PIECE 32768 /* bytes of a file in one packet, at most */

enum privileged_op {
	/*
	 * Read the file that --config named at the start.  If it is good, it is a configuration
	 * with the next number, and SIZE bytes of it follow the answer in packets of their own: the
	 * daemon parses the very same text.  GENERATION is the one that it works with.
	 */
	PRIVILEGED_READ_CONFIG = 1,
	/* COUNT listening sockets for ADDR, of FORWARD. */
	PRIVILEGED_LISTEN,
	/* COUNT sockets of FAMILY that can be connected to the upstream of FORWARD. */
	PRIVILEGED_SOCKETS,
	/* One descriptor, to append to the session log that it was started with (log_file.h). */
	PRIVILEGED_OPEN_LOG,
};

struct privileged_request {
	uint32_t op;
	uint32_t generation;
	uint32_t forward;   /* index into its forwards */
	uint32_t count;     /* of descriptors */
	uint32_t joins;     /* LISTEN: 1: to a group that the daemon has already */
	uint32_t family;    /* SOCKETS */
	struct addr addr;   /* LISTEN */
};

struct privileged_answer {
	int32_t error;       /* 0, or an errno: then TEXT says why, and there are no descriptors */
	uint32_t generation; /* READ_CONFIG */
	uint32_t size;       /* READ_CONFIG */
	struct addr addr;    /* LISTEN: with the port that the kernel picked for port 0 */
	char text[PRIVILEGED_TEXT];
};

/* One byte, the whole packet: the descriptors of the answer before it are the daemon's alone. */
#define PRIVILEGED_CLOSED 'c'

/*
 * Be the privileged process, in a child of the daemon: FD is its end of the pair, C and the
 * arguments are what the daemon was started with.  The first packet that it sends is an answer: is
 * it ready?
 */
_Noreturn void privileged_run(int fd, const struct config *c, int argc, char **argv);

/* Configurations that it keeps; one without forwards is none. */
struct privileged_known {
	struct config configs[2];
	const char *log; /* path of the session log; NULL: none, or none that can be opened anew */
};

/*
 * May the daemon have what the LEN bytes at Q ask for?  0; -EPERM: the configuration does not allow
 * it; -EBADMSG: culvert itself would never ask so.  Of the latter two RET_WHY tells what is wrong.
 * RET_C: the configuration that is meant, if any.
 */
int privileged_judge(const struct privileged_request *q, size_t len,
		     const struct privileged_known *k, const struct config **ret_c,
		     const char **ret_why);

#endif
