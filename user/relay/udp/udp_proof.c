// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp/udp_proof.h"

#include <string.h>

#include "base/log.h"

/* So many sessions are looked at for one that may give way. */
#define CROWD_MOST 64
/* Between two lines of the log about max-reply-factor. */
#define LIMITED_MS 60000

void udp_proof_begin(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;

	TAILQ_INSERT_TAIL(&u->sessions, s, in_worker);
	u->unproven = u->unproven ?: s;
	u->n_unproven++;
}

void udp_proof_end(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;

	u->n_unproven -= s->state != UDP_PROVEN;
	if (u->unproven == s)
		u->unproven = TAILQ_NEXT(s, in_worker);
	TAILQ_REMOVE(&u->sessions, s, in_worker);
}

void udp_proof_give(struct udp_session *s)
{
	if (s->state != UDP_ANSWERED)
		return;
	udp_proof_end(s);
	udp_session_set_state(s, UDP_PROVEN);
	TAILQ_INSERT_HEAD(&s->worker->udp->sessions, s, in_worker);
	clients_prove(&s->worker->shared->clients, &s->client.sa);
}

bool udp_proof_seen(const struct udp_session *s)
{
	return s->state == UDP_PROVEN ||
	       (s->state == UDP_ANSWERED && udp_all_datagrams(s, CLIENT) > s->asked);
}

static bool udp_is_proven(struct udp_session *s)
{
	if (udp_proof_seen(s))
		udp_proof_give(s);
	return s->state == UDP_PROVEN;
}

bool udp_proof_of_address(struct udp_session *s)
{
	return udp_is_proven(s) || clients_are_proven(&s->worker->shared->clients, &s->client.sa);
}

/* A client that subscribes once, and gets the first bytes alone, would show in a counter alone. */
static void udp_say_limited(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;
	char text[ADDR_STRLEN];

	if (udp_now(s) < u->say_limited_ms)
		return;
	u->say_limited_ms = udp_now(s) + LIMITED_MS;
	log_warning(
		"forward %s: answers to %s are dropped: it may be forged, until it sends something "
		"after an answer, and they have more bytes than max-reply-factor allows",
		forward_name(s->forward->conf), client_addr_text(&s->client, text, sizeof(text)));
}

bool udp_proof_allows(struct udp_session *s, const struct udp_message *m)
{
	uint64_t factor = s->forward->conf->max_reply_factor;
	uint64_t headers = s->peer.sa.sa_family == AF_INET ? 28 : 48; /* of IP and UDP */
	uint64_t in = s->copied[CLIENT].bytes + udp_grafted(s, CLIENT).bytes +
		      headers * udp_all_datagrams(s, CLIENT);
	uint64_t out = s->copied[UPSTREAM].bytes + m->len +
		       headers * (s->copied[UPSTREAM].datagrams + udp_datagrams(m));

	if (!factor || s->state == UDP_PROVEN || out <= factor * in || udp_proof_of_address(s))
		return true;
	udp_say_limited(s);
	return false;
}

struct udp_session *udp_proof_missing(struct worker *w, const struct forward *f,
				      const struct graft_addr *remote)
{
	struct udp_session *s = w->udp->unproven, *next;

	for (unsigned int i = 0; s && i < CROWD_MOST; i++, s = next) {
		next = TAILQ_NEXT(s, in_worker);
		if ((!f || s->forward->totals == f->totals) &&
		    (!remote || !memcmp(&s->tuple.remote, remote, sizeof(*remote))) &&
		    !udp_is_proven(s))
			return s;
	}
	return NULL;
}
