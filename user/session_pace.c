// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a flow that wants to read reserves a turn's bytes of its client's bandwidth,
 * and waits until they have come.  Then it does the same with those of the forward, so that it
 * does not hold bytes of the forward that it could not use yet.  Whoever reserves first is first,
 * so nobody is woken in vain, and flows that always have something to read have turns in turn.
 * What the source did not have is given back at once.
 */
#include "session_pace.h"

#include "rates.h"

enum { OF_CLIENT, OF_FORWARD };

static struct bucket *bucket_of(const struct session *s, unsigned int dir, unsigned int whose)
{
	struct bandwidth *b = whose == OF_FORWARD ? &s->forward->rates->bandwidth :
			      s->pace.client	  ? &s->pace.client->bandwidth :
						    NULL;

	return b && b->ways[dir].rate ? &b->ways[dir] : NULL;
}

static uint32_t turn_of(const struct session *s)
{
	uint32_t own = s->pace.client ? s->pace.client->bandwidth.turn : 0;
	uint32_t all = s->forward->rates->bandwidth.turn;

	if (!own || !all)
		return own ?: all;
	return own < all ? own : all;
}

void session_pace_start(struct session *s)
{
	int r = client_rates_enter(s->forward->rates->clients, &s->client.sa,
				   s->worker->loop.now_ms, &s->pace.client);

	if (r) { /* there are as many places as sessions */
		session_reset(s, CAUSE_INTERNAL);
		return;
	}
	s->pace.turn = turn_of(s);
}

/* Reserve what is still to be reserved, as far as that has come. */
static uint64_t reserve(struct session *s, unsigned int dir)
{
	struct turn *t = &s->pace.turns[dir];
	uint64_t now = s->worker->loop.now_ms;

	while (t->reserved <= OF_FORWARD && t->due_ms <= now) {
		struct bucket *b = bucket_of(s, dir, t->reserved++);

		if (b)
			t->due_ms = bucket_reserve(b, s->pace.turn, now);
	}
	return t->due_ms;
}

bool session_pace_begin(struct session *s, unsigned int dir)
{
	struct flow *f = &s->flows[dir];
	struct turn *t = &s->pace.turns[dir];
	uint64_t due;

	/* what is pending was read in an earlier turn, and nothing is read before it is written */
	if (!s->pace.turn || f->pending)
		return true;
	due = reserve(s, dir);
	f->paced = due > s->worker->loop.now_ms;
	if (f->paced)
		f->due_ms = due;
	else
		t->left = s->pace.turn;
	return !f->paced;
}

uint64_t session_pace_left(const struct session *s, unsigned int dir)
{
	return s->pace.turn ? s->pace.turns[dir].left : UINT64_MAX;
}

void session_pace_used(struct session *s, unsigned int dir, uint64_t bytes)
{
	if (s->pace.turn)
		s->pace.turns[dir].left -= (uint32_t)bytes;
}

static void give_back(struct session *s, unsigned int dir, uint32_t bytes)
{
	struct turn *t = &s->pace.turns[dir];

	for (unsigned int whose = OF_CLIENT; bytes && whose < t->reserved; whose++) {
		struct bucket *b = bucket_of(s, dir, whose);

		if (b)
			bucket_give_back(b, bytes);
	}
	*t = (struct turn){ 0 };
}

void session_pace_end(struct session *s, unsigned int dir)
{
	give_back(s, dir, s->pace.turns[dir].left);
}

void session_pace_stop(struct session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++) /* it may have been waiting for its turn */
		give_back(s, dir, s->pace.turn);
	client_rates_leave(s->forward->rates->clients, s->pace.client);
	s->pace.client = NULL;
}
