// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * The kernel reports an ICMP error to the socket whose datagram the error quotes, whether the
 * daemon or a packet program has sent that datagram.  icmp_send.c tells the other end.
 *
 * ICMP can be forged.  An error about the server counts only if the server has been silent since it
 * was asked: a forger has to be quicker than the server, and to guess the port.  The port of a
 * client may be known, see udp_client_refuses().
 */
#include "relay/udp/udp_errors.h"

#include <errno.h>

#include "base/minmax.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/icmp_send.h"
#include "datapath/tcp.h"
#include "relay/udp/udp_server.h"

/* A client is gone if it has refused REFUSALS answers, each REFUSALS_MS after the one before. */
#define REFUSALS 3
#define REFUSALS_MS 100
/* The least MTU of a path that is believed. */
#define MTU_LEAST 576

/* --- datagrams that are too big --- */

/* Packets that leave by LEG have MTU bytes at most; 0: the limit is not known. */
static void udp_set_path_mtu(struct udp_table *us, uint32_t slot, unsigned int leg, uint32_t mtu)
{
	if (slot != NO_SLOT)
		udp_flow_of(us, slot)->at[leg].path_mtu = (uint16_t)smaller(mtu, UINT16_MAX);
}

void udp_errors_forget_mtu(struct udp_session *s)
{
	for (unsigned int leg = 0; leg < 2; leg++)
		udp_set_path_mtu(udp_table_of(s), s->slot, leg, 0);
}

/* The client's datagrams are too big: packets to the server have MTU bytes at most. */
static void udp_too_big(struct udp_session *s, uint32_t mtu)
{
	int more = (s->upstream->to.sa.sa_family == AF_INET ? 20 : 0) -
		   (s->peer.sa.sa_family == AF_INET ? 20 : 0);

	if (mtu < MTU_LEAST)
		return;
	udp_set_path_mtu(udp_table_of(s), s->slot, UPSTREAM, mtu);
	icmp_tell(&s->peer, &s->local, EMSGSIZE, mtu + (uint32_t)more);
}

/* --- errors of the server --- */

void udp_errors_take(struct udp_session *s)
{
	struct udp_error e;
	int error;

	while (!s->ends && udp_next_error(s->upstream->source.fd, &e)) {
		if (e.error == EMSGSIZE)
			udp_too_big(s, e.mtu);
		else
			udp_server_unreachable(s, e.error);
	}
	error = s->ends ? 0 : tcp_take_error(s->upstream->source.fd);
	if (error && error != EMSGSIZE)
		udp_server_unreachable(s, error);
}

/* --- errors of the client --- */

/*
 * An answer of S has met ERROR.  The client is gone if it has refused LEAST answers since its last
 * datagram.  A refusal counts only if the server has sent another answer since the refusal before:
 * a forger would have to know when the server speaks and the client does not.  Other errors may be
 * temporary: they count once the client has been silent for idle-timeout.
 */
static bool udp_client_refuses(struct udp_session *s, int error, unsigned int least)
{
	uint64_t asked = udp_heard_ms(s, CLIENT), now = udp_now(s);
	uint64_t answered = udp_heard_ms(s, UPSTREAM);
	unsigned int idle = s->forward->conf->idle_timeout_ms;

	if (asked >= answered)
		return false;
	if (error != ECONNREFUSED)
		return idle && now >= asked + idle;
	if (s->refused_ms <= asked)
		s->refusals = 0;
	if (!s->refusals || (answered > s->refused_ms && now >= s->refused_ms + REFUSALS_MS)) {
		s->refusals++;
		s->refused_ms = now;
	}
	return s->refusals >= least;
}

bool udp_errors_client_gone(struct udp_session *s)
{
	if (s->slot == NO_SLOT || !udp_graft_take_gone(udp_table_of(s), s->slot))
		return false;
	if (udp_client_refuses(s, ECONNREFUSED, REFUSALS - 1))
		udp_session_end(s, CAUSE_CLIENT_LOST);
	return s->ends;
}

struct udp_session *udp_errors_of_client(struct worker *w, const struct udp_error *e)
{
	struct udp_table *us = graft_table_udp(w->shared->grafts);
	struct graft_tuple tuple;
	struct udp_session *s;
	uint32_t slot;

	graft_tuple_set(&tuple, &e->peer.sa, &e->local.sa);
	slot = us ? graft_find(w->shared->grafts, true, &tuple) : NO_SLOT;
	s = udp_session_find(w, &tuple, &e->peer);
	if (e->error == EMSGSIZE) { /* for copied datagrams the kernel keeps the MTU itself */
		udp_set_path_mtu(us, slot, CLIENT, e->mtu);
	} else if (s && udp_client_refuses(s, e->error, REFUSALS)) {
		/* the server's next datagram meets no socket, and the kernel tells the server */
		udp_session_end(s, CAUSE_CLIENT_LOST);
	} else if (!s && slot != NO_SLOT && e->error == ECONNREFUSED) { /* another worker's */
		udp_graft_client_gone(us, slot);
	}
	return s;
}
