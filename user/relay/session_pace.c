// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a flow that wants to read joins the queue for its client's bandwidth, and
 * waits until it is its turn.  Then it does the same for the forward's, so that it does not take a
 * place there that it could not use yet.  What it has taken and the source did not have is given
 * back at once.
 *
 * While it waits for the forward's it keeps what it has of its client's.  So it is the forward's
 * limit that holds to the letter where both are; of its client's, what all flows of that client
 * have while they wait may come on top, if they suddenly need not wait any more.
 *
 * How much a flow asks for depends on what it could read the last time: see bandwidth_ask().
 */
#include "relay/session_pace.h"

#include <stdlib.h>

#include "base/clock.h"
#include "relay/rates.h"

enum { OF_CLIENT, OF_FORWARD, ALL };

static struct lane *lane_of(const struct session *s, unsigned int dir, unsigned int whose)
{
	struct bandwidth *b = whose == OF_FORWARD ? &s->forward->rates->bandwidth :
			      s->pace->client	  ? &s->pace->client->bandwidth :
						    NULL;

	return b && b->turn ? &b->ways[dir] : NULL;
}

static uint32_t turn_of(const struct session *s)
{
	uint32_t own = s->pace->client ? s->pace->client->bandwidth.turn : 0;
	uint32_t all = s->forward->rates->bandwidth.turn;

	if (!own || !all)
		return own ?: all;
	return own < all ? own : all;
}

void session_pace_start(struct session *s)
{
	const struct rates *rates = s->forward->rates;
	int r;

	if (!rates->bandwidth.turn && !rates->clients)
		return;
	s->pace = calloc(1, sizeof(*s->pace));
	if (!s->pace) {
		session_reset(s, CAUSE_NO_MEMORY);
		return;
	}
	r = client_rates_enter(rates->clients, &s->client.sa, s->worker->loop.now_ms,
			       &s->pace->client);
	if (r) { /* there are as many places as sessions */
		session_reset(s, CAUSE_INTERNAL);
		return;
	}
	s->pace->turn = turn_of(s);
	if (!s->pace->turn) { /* a client without an address has no limit of its own */
		free(s->pace);
		s->pace = NULL;
		return;
	}
	for (unsigned int dir = 0; dir < 2; dir++)
		s->pace->turns[dir].size = bandwidth_ask(s->pace->turn, 0);
}

/* Go as far as it is the flow's turn.  Returns the time until which it has to wait, or now. */
static uint64_t advance(struct session *s, unsigned int dir)
{
	struct turn *t = &s->pace->turns[dir];
	/* the loop's clock may be as late as its thread, and the turns of a batch are many */
	uint64_t now = clock_ms();

	for (; t->due_ms <= now && t->whose < ALL; t->whose++) {
		struct lane *l = lane_of(s, dir, t->whose);

		if (!l)
			continue;
		if (!t->queued)
			t->due_ms = lane_join(l, t->size, now, &t->places[t->whose]);
		t->queued = true;
		if (t->due_ms > now ||
		    !lane_take(l, &t->places[t->whose], t->size, now, &t->due_ms))
			break;
		t->queued = false;
	}
	return t->whose < ALL ? t->due_ms : now;
}

bool session_pace_begin(struct session *s, unsigned int dir)
{
	struct flow *f = &s->flows[dir];
	struct turn *t;
	uint64_t due;

	/* what is pending was read in an earlier turn, and nothing is read before it is written */
	if (!s->pace || f->pending)
		return true;
	t = &s->pace->turns[dir];
	due = advance(s, dir);
	f->paced = t->whose < ALL;
	if (f->paced)
		f->due_ms = due;
	else
		t->left = t->size;
	return !f->paced;
}

uint64_t session_pace_left(const struct session *s, unsigned int dir)
{
	return s->pace ? s->pace->turns[dir].left : UINT64_MAX;
}

uint32_t session_pace_queue(const struct session *s, unsigned int dir)
{
	const struct place *p = s->pace->turns[dir].places;

	return p[OF_CLIENT].turns > p[OF_FORWARD].turns ? p[OF_CLIENT].turns :
							  p[OF_FORWARD].turns;
}

void session_pace_used(struct session *s, unsigned int dir, uint64_t bytes)
{
	if (s->pace)
		s->pace->turns[dir].left -= (uint32_t)bytes;
}

/* Of what was taken, BYTES are not used; and who is in a queue leaves it. */
static void give_back(struct session *s, unsigned int dir, uint32_t bytes)
{
	const struct turn *t = &s->pace->turns[dir];

	for (unsigned int whose = OF_CLIENT; whose < t->whose; whose++) {
		struct lane *l = lane_of(s, dir, whose);

		if (l)
			lane_end(l, &t->places[whose], bytes);
	}
	if (t->queued)
		lane_leave(lane_of(s, dir, t->whose), &t->places[t->whose], t->size,
			   s->worker->loop.now_ms);
}

void session_pace_end(struct session *s, unsigned int dir)
{
	struct turn *t = s->pace ? &s->pace->turns[dir] : NULL;

	if (!t || t->whose < ALL) /* there was no turn: what was pending has been written */
		return;
	give_back(s, dir, t->left);
	*t = (struct turn){ .size = bandwidth_ask(s->pace->turn, t->size - t->left) };
}

void session_pace_stop(struct session *s)
{
	if (!s->pace)
		return;
	for (unsigned int dir = 0; dir < 2; dir++) { /* it may have been waiting for its turn */
		const struct turn *t = &s->pace->turns[dir];

		give_back(s, dir, t->whose < ALL ? t->size : t->left);
	}
	client_rates_leave(s->forward->rates->clients, s->pace->client);
	s->pace->client = NULL;
}
