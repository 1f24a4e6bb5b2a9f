// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: packets of a session may go by relays that do not have the session, each
 * direction by another one.  Such a relay translates, tells the owner what it has seen of each end
 * (RECORD_HEARD), and judges nothing: the owner has the whole.  The owner believes what it is told of
 * one end if the other end has said what fits.
 */
#include "datapath/graft/graft_slots.h"

#include "base/clock.h"
#include "base/minmax.h"

bool graft_finish(struct graft_table *gs, uint32_t slot, int reset)
{
	struct graft_entry *g = &gs->all[slot];

	if (!graft_change_state(gs, slot, GRAFT_ACTIVE, GRAFT_DONE) &&
	    !graft_change_state(gs, slot, GRAFT_RETURNING, GRAFT_DONE))
		return false;
	for (int i = 0; i < 2 && reset < 0; i++) {
		if (!g->side[i].fin) /* a FIN counts as a byte, see graft_bytes() */
			g->side[i].begun--;
		g->side[i].fin = GRAFT_FIN_ACKED;
	}
	if (reset >= 0)
		g->side[reset].reset = 1;
	g->ended_ns = clock_ns();
	return true;
}

static struct graft_heard heard_apart(const struct graft_side *s)
{
	uint32_t then = __atomic_load_n(&s->apart_ms, __ATOMIC_ACQUIRE); /* before the clock */
	uint64_t now = clock_ms();
	struct graft_heard h = { .ns = (now - ((uint32_t)now - then)) * NS_PER_MS,
				 .end = s->fin ? (__u32)s->end : s->apart_end,
				 .acked = s->apart_acked };

	if (s->fin || s->apart & GRAFT_APART_FIN)
		h.flags |= HEARD_FIN;
	if (s->apart & GRAFT_APART_RESET)
		h.flags |= HEARD_RESET;
	return h;
}

/* The program may write meanwhile: then the next look tells more. */
__attribute__((no_sanitize("thread"))) void graft_hear(const struct graft_table *gs, uint32_t slot,
						       struct graft_heard ret[2])
{
	for (int i = 0; i < 2; i++) {
		const struct graft_side *s = &gs->all[slot].side[i];

		ret[i] = (struct graft_heard){ .ns = s->heard_ns,
					       .end = (__u32)s->end,
					       .acked = (__u32)s->acked,
					       .flags = (s->fin ? HEARD_FIN : 0) |
							(s->reset ? HEARD_RESET : 0) };
		if (s->apart) {
			struct graft_heard h = heard_apart(s);

			h.ns = larger(h.ns, s->heard_ns);
			ret[i] = h;
		}
	}
}

#define HEARD_ABOUT (500 * NS_PER_MS)

/* Of two numbers of one stream. */
static uint32_t least(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0 ? a : b;
}

void graft_heard_note(struct graft_heard *h, const struct graft_heard *new)
{
	struct graft_heard was = *h;

	if (!new->ns || new->ns + HEARD_ABOUT < was.ns)
		return;
	*h = *new;
	if (!was.ns) {
		h->from = new->end;
		h->acked_to = new->acked;
		return;
	}
	h->from = least(was.end, new->end);
	h->acked_to = least(was.acked, new->acked);
	if (new->ns > was.ns + HEARD_ABOUT)
		return;
	/* records take their time to come, so either may be the later one */
	h->ns = larger(h->ns, was.ns);
	if ((int32_t)(was.acked - h->acked) > 0)
		h->acked = was.acked;
	if ((int32_t)(was.end - h->end) > 0) {
		h->end = was.end;
		h->flags = 0;
	}
	if (was.end == h->end)
		h->flags |= was.flags;
}

#define HEARD_WINDOW 65536 /* as the least one of the packet programs */

/* Is AT in FROM to TO, or less than WINDOW outside? */
static bool is_near(uint32_t at, uint32_t from, uint32_t to, uint32_t window)
{
	return (int32_t)(at - from) > -(int32_t)window && (int32_t)(at - to) < (int32_t)window;
}

/*
 * Does A, of side I of G, fit B, of the other side?  B stands for all numbers since B was told before,
 * because each end is told at a time of its own.  A stands for its last numbers alone: a range between
 * two numbers of a forger may be half of all numbers.  So a forger of one end hits B as seldom as the
 * window of a packet.
 */
static bool heard_fits(const struct graft_entry *g, int i, const struct graft_heard *a,
		       const struct graft_heard *b)
{
	const struct graft_side *s = &g->side[i], *o = &g->side[!i];
	uint32_t window = larger(HEARD_WINDOW, larger(s->window, o->window));

	return is_near(a->end, b->acked_to + o->ack_add, b->acked + o->ack_add, window) &&
	       is_near(a->acked + s->ack_add, b->from, b->end, window);
}

/* The packet program may write, too.  It has the later number then. */
static void heard_grow(__u64 *at, uint32_t to)
{
	__u64 was = __atomic_load_n(at, __ATOMIC_RELAXED);
	int32_t more = (int32_t)(to - (uint32_t)was);

	if (more > 0)
		__atomic_compare_exchange_n(at, &was, was + (uint32_t)more, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
}

/* H, of side I of G, is believed. */
static void heard_believe(struct graft_entry *g, int i, const struct graft_heard *h)
{
	struct graft_side *s = &g->side[i], *o = &g->side[!i];
	uint32_t none = GRAFT_FIN_NONE, sent = GRAFT_FIN_SENT;

	if (!s->fin && h->ns + HEARD_ABOUT >= s->heard_ns) { /* an old word may be 2 GiB behind */
		heard_grow(&s->end, h->end); /* with which `culvert kill` resets the other end */
		heard_grow(&s->acked, h->acked);
	}
	if (h->ns > s->heard_ns) {
		/* the TSvals of its packets are not known: the clock goes on, see let_out() */
		__atomic_fetch_add(&o->tsval_sent, (__u32)((h->ns - s->heard_ns) / NS_PER_MS),
				   __ATOMIC_RELAXED);
		s->heard_ns = h->ns;
	}
	if (h->end != h->from || h->acked != h->acked_to)
		s->data_ns = larger(s->data_ns, h->ns);
	if (h->flags & HEARD_FIN && !s->fin) {
		heard_grow(&s->end, h->end);
		s->fin_end = h->end;
		__atomic_compare_exchange_n(&s->fin, &none, GRAFT_FIN_SENT, false, __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST);
	}
	if (h->acked + s->ack_add == o->fin_end)
		__atomic_compare_exchange_n(&o->fin, &sent, GRAFT_FIN_ACKED, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/*
 * Believe what fits of HEARD.  What one end has said fits the other end if that was told later, so each
 * is believed in turn while both go on.  Returns the side that has sent a reset, or -1.
 */
static int heard_merge(struct graft_entry *g, struct graft_heard heard[2][2])
{
	bool good[2][3] = { { true }, { true } };
	struct graft_heard *of[2][3]; /* by side: here and believed; here; elsewhere */
	struct graft_heard here[2];

	for (int i = 0; i < 2; i++) {
		const struct graft_side *s = &g->side[i];

		here[i] = (struct graft_heard){ s->heard_ns, (__u32)s->end, (__u32)s->acked,
						0,           (__u32)s->end, (__u32)s->acked };
		of[i][0] = &here[i];
		of[i][1] = &heard[i][0];
		of[i][2] = &heard[i][1];
	}
	for (int i = 0; i < 2; i++)
		for (int a = 1; a < 3; a++)
			for (int b = 0; b < 3; b++)
				good[i][a] = good[i][a] || (of[i][a]->ns && of[!i][b]->ns &&
							    heard_fits(g, i, of[i][a], of[!i][b]));
	for (int twice = 0; twice < 2; twice++) /* an ACK may be that of a FIN which comes later */
		for (int i = 0; i < 2; i++)
			for (int a = 0; a < 3; a++)
				if (good[i][a])
					heard_believe(g, i, of[i][a]);
	/*
	 * A reset with the exact number (RFC 5961) counts, even if its end does not fit the other one:
	 * routes of one direction may have left this relay with more than a window of bytes under way.
	 */
	for (int i = 0; i < 2; i++)
		for (int a = 1; a < 3; a++)
			if (of[i][a]->flags & HEARD_RESET &&
			    (good[i][a] || of[i][a]->end == here[i].end))
				return i;
	return -1;
}

bool graft_merge(struct graft_table *gs, uint32_t slot, struct graft_heard heard[2][2])
{
	struct graft_entry *g = &gs->all[slot];
	int reset = heard_merge(g, heard);

	for (int i = 0; i < 2; i++)
		if (g->side[i].apart) {
			struct graft_heard h = heard_apart(&g->side[i]);

			graft_heard_note(&heard[i][0], &h);
		}
	if (reset < 0)
		reset = heard_merge(g, heard);
	if (reset >= 0)
		return graft_finish(gs, slot, reset);
	return g->side[0].fin == GRAFT_FIN_ACKED && g->side[1].fin == GRAFT_FIN_ACKED &&
	       graft_finish(gs, slot, -1);
}
