/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RESOLVER_H
#define CULVERT_RESOLVER_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "config/endpoint.h"
#include "daemon/sandbox.h"
#include "relay/upstream.h"

/*
 * The processes that look up names.  getaddrinfo(3) opens files, loads libraries and makes sockets,
 * none of which the daemon may do once it runs; and it reads what strangers answer.
 *
 *   daemon ──SOCK_SEQPACKET── server ──fork── one process for each look-up, which ends with it
 *                             guardian: starts the server again if it dies
 *
 * A look-up that hangs is killed after RESOLVER_PATIENCE_MS, or, if others wait for its place, gives
 * way to them after RESOLVER_TURN_MS (resolver_queue.h); one that crashes is one failure.  All of
 * them are gone when the daemon is: its end of the socket is closed then.
 */

#define RESOLVER_PATIENCE_MS 30000
#define RESOLVER_AT_ONCE 128 /* look-ups, each with a process of 200 KiB */
#define RESOLVER_EXTRAS 64   /* further processes, of all of them together */
#define RESOLVER_PROCESSES (RESOLVER_AT_ONCE + RESOLVER_EXTRAS)
#define RESOLVER_TURN_MS 2000
/* A further process that has had so long gives way to one that another look-up wants. */
#define RESOLVER_EXTRA_MS 500
/* Without an answer after so long, a second process asks, and others for each family by itself. */
#define RESOLVER_AGAIN_MS 1000
#define RESOLVER_FAMILY_MS 2500
#define RESOLVER_ADDRS_MAX 64

/* One packet.  What is asked is what endpoint_parse() takes. */
struct resolver_request {
	uint32_t id;
	uint32_t passive;
	uint32_t hung; /* so many look-ups of it in a row: others go first */
	char text[sizeof(((struct endpoint *)0)->text)];
};

union resolver_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* One packet, up to the last address. */
struct resolver_reply {
	uint32_t id;   /* of the request; 0: all that were under way are lost */
	int32_t error; /* what endpoint_parse() returned: 0 or -errno */
	uint32_t hung; /* it was not answered for long */
	char why[LOOKUP_WHY_LEN];
	uint32_t n;
	union resolver_addr addrs[RESOLVER_ADDRS_MAX];
};

/*
 * Start the processes, as account A, with no capability and no descriptor but the socket.  To be
 * called before there are threads and before privileges are given up.  Returns 0 and the daemon's
 * end, which never blocks, or -errno; ERR says what failed.
 */
int resolver_start(const struct account *a, enum filter_mode filter, int *ret_fd, char *err,
		   size_t errlen);

/* What to look up.  ID is not 0. */
struct resolver_query {
	uint32_t id;
	const char *text;
	bool passive;
	unsigned int hung; /* so many look-ups of it, up to the last one */
};

/* -errno of send(2): -EAGAIN: too many wait already. */
int resolver_ask(int fd, const struct resolver_query *query);

/*
 * The next answer: 1, or 0 if there is none; -ENOTCONN: the processes are gone.  What is not well
 * formed is -EBADMSG.
 */
int resolver_read(int fd, struct resolver_reply *ret);

/* The N addresses of REPLY, which resolver_read() has checked. */
void resolver_addrs(const struct resolver_reply *reply, struct addr *ret);

/* Wait until the processes have ended, for a second at most, and close FD. */
void resolver_stop(int fd);

#endif
