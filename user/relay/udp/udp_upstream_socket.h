/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/addr.h"
#include "base/loop.h"
#include "relay/worker.h"

/* Sockets of UDP that are connected to servers, and the local ports of these. */

struct forward;
struct udp_session;

/*
 * A late answer must not reach another client's flow, so a port that was used rests.  The next port
 * is drawn at random from the others: a forger who can guess the port can forge answers.  Ports are
 * from net.ipv4.ip_local_port_range, except those of ip_local_reserved_ports.  By any thread.
 */

/*
 * How long a port rests.  RESTS: after one question and its answers, when only datagrams that the
 * network has doubled can still come.  OWED: when answers may still come.  STREAM: after a stream
 * that the server may go on sending.
 */
#define UDP_PORT_RESTS_MS 250
#define UDP_PORT_OWED_MS 2000
#define UDP_PORT_STREAM_MS 60000

/* Read both sysctls.  To be called once, before there are threads. */
void udp_ports_open(void);
/* A port in network order; 0: all, or nearly all, are in use or rest. */
in_port_t udp_port_take(uint64_t now_ms);
/*
 * Take PORT, of a flow of an earlier daemon or another relay.  False: PORT is in use, or not one of
 * ours.
 */
bool udp_port_take_this(in_port_t port);
/* PORT rests until FREE_MS: it was used here, or another program has it. */
void udp_port_put(in_port_t port, uint64_t free_ms);
/* True if PORT was taken, and not put back. */
bool udp_port_is_used(in_port_t port);

/*
 * A socket has one session.  When the session has had all its answers, the socket may rest, and
 * serve another session of its forward to that server.  To make a socket takes as long as all else
 * of a short session.
 */
struct udp_upstream {
	struct leftover leftover; /* when it is closed */
	STAILQ_ENTRY(udp_upstream) next;
	struct source source;
	struct udp_upstreams *among;
	struct udp_session *session; /* NULL: it rests, or is to be freed */
	struct forward *forward;     /* resting: the socket counts as a session of this forward */
	union client_addr client, to;
	in_port_t port;
	uint64_t rests_ms, /* resting: since when; closed: until when its port rests */
		rested_ms; /* resting: when it may serve again; NEVER: it had a late answer */
};

/* Epoll's EVENTS at the socket of S. */
typedef void udp_upstream_fn(struct udp_session *s, uint32_t events);

/* A worker's sockets that are connected to servers. */
struct udp_upstreams {
	struct worker *worker;
	udp_upstream_fn *handle;
	STAILQ_HEAD(udp_rests, udp_upstream) rests; /* FIFO */
	unsigned int n_rests;
	/* closed sockets whose ports rest, and count as sessions of their clients; FIFO */
	STAILQ_HEAD(udp_charges, udp_upstream) charges;
	struct timer timer; /* when to close resting sockets, and to end charges */
};

void udp_upstreams_open(struct udp_upstreams *us, struct worker *w, udp_upstream_fn *handle);

/*
 * Get a socket for S, a session of CLIENT by F.  The socket is connected to TO and bound to OWN
 * (NULL: to a port of ours; the socket may have rested).  The caller closes it, or lets it rest.
 * -errno.
 */
int udp_upstream_open(struct udp_upstreams *us, struct udp_session *s, const struct forward *f,
		      const union client_addr *client, const struct addr *to,
		      const struct addr *own, struct udp_upstream **ret);
/* The same with FD, which another daemon has connected to TO, from PORT.  -errno. */
int udp_upstream_adopt(struct udp_upstreams *us, struct udp_session *s,
		       const union client_addr *client, const struct addr *to, in_port_t port,
		       int fd, struct udp_upstream **ret);
/* UP, of F, rests, if there is room.  False: it has to be closed. */
bool udp_upstream_rest(struct udp_upstream *up, struct forward *f);
/*
 * Close UP; its port rests for MS.  If MS is UDP_PORT_STREAM_MS, the resting port counts as a
 * session of its client: else one client could take all ports by short sessions.  The client still
 * has a session when this is called.
 */
void udp_upstream_close(struct udp_upstream *up, uint64_t ms);
