// SPDX-License-Identifier: BSD-2-Clause
#include "policy_model.h"

#include "culvert.h"

typedef unsigned __int128 wide;

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

void model_begin(struct model_habit *h)
{
	h->returns = 0;
	model_restart(h);
}

void model_add(struct model_habit *h, struct model_word word)
{
	h->words[h->n++] = word;
}

void model_restart(struct model_habit *h)
{
	h->n = h->summed = 0;
	h->sums = (struct model_sums){ .last = 2 };
}

struct model_sums model_sums(struct model_habit *h)
{
	struct model_sums *s = &h->sums;

	for (; h->summed < h->n; h->summed++) {
		const struct model_word *w = &h->words[h->summed];

		if (w->dir != s->last) {
			s->turns += h->summed > 0;
			s->run = s->run_reads = 0;
		}
		s->last = w->dir;
		s->run += w->bytes < UINT32_MAX - s->run ? w->bytes : UINT32_MAX - s->run;
		s->run_reads += w->reads;
		s->bytes[w->dir] += w->bytes;
		s->reads[w->dir] += w->reads;
	}
	return *s;
}

unsigned int model_factor(const struct model_habit *h)
{
	unsigned int factor = 1;

	for (unsigned int i = 0; i < h->returns && factor < 64; i++)
		factor *= 2;
	return factor;
}

bool model_full(struct model_habit *h)
{
	struct model_sums s = model_sums(h);

	return s.bytes[0] + s.bytes[1] >= 8 * MIB * model_factor(h);
}

void model_load_look(struct model_load *l, uint64_t events, uint64_t wakeups, uint64_t now_ms)
{
	uint64_t more_events = events - l->events, more_wakeups = wakeups - l->wakeups;

	if (now_ms - l->looked_ms < 100)
		return;
	if (more_wakeups >= 32 && (wide)more_events * 2 >= (wide)more_wakeups * 5) {
		l->was_busy = true;
		l->busy_ms = now_ms;
	}
	l->looked_ms = now_ms;
	l->events = events;
	l->wakeups = wakeups;
}

bool model_busy(const struct model_load *l, uint32_t settle_ms, uint64_t now_ms)
{
	return l->was_busy && now_ms - l->busy_ms < settle_ms;
}

static struct decision splice_for(const struct model_rules *r, enum reason reason)
{
	return (struct decision){ r->no_splice ? CARRIER_COPY : CARRIER_SPLICE, reason };
}

struct decision model_start(const struct model_rules *r)
{
	switch (r->engine) {
	case ENGINE_AUTO:
		return (struct decision){ CARRIER_COPY, REASON_START };
	case ENGINE_COPY:
		return (struct decision){ CARRIER_COPY, REASON_ENGINE };
	default:
		return splice_for(r, REASON_ENGINE);
	}
}

/* Much in one direction without an answer, or turns that are long on average. */
static bool is_bulk(const struct model_sums *s, unsigned int dir)
{
	uint64_t total = s->bytes[0] + s->bytes[1];

	if (s->last == dir && s->run >= 256 * KIB &&
	    (wide)s->run >= (wide)s->run_reads * (2 * KIB + 1))
		return true;
	return total >= 4 * MIB && (wide)total >= (wide)48 * KIB * (s->turns + 1);
}

static bool is_conversation(const struct model_sums *s, unsigned int factor)
{
	wide total = (wide)s->bytes[0] + s->bytes[1];

	return s->turns >= 16 * factor && total < (wide)48 * KIB * (s->turns + 1);
}

static bool is_small_messages(const struct model_sums *s, unsigned int dir, unsigned int factor)
{
	return s->reads[dir] >= 64 * factor &&
	       (wide)s->bytes[dir] < (wide)s->reads[dir] * (2 * KIB + 1);
}

static struct decision model_auto(const struct model_rules *r, struct model_habit *h,
				  unsigned int dir, struct decision own, struct setting around)
{
	struct model_sums s = model_sums(h);
	unsigned int factor = model_factor(h);
	bool conversation = is_conversation(&s, factor);

	if (is_bulk(&s, dir))
		return splice_for(r, REASON_BULK);
	if (!around.kernel_ok || !(conversation || is_small_messages(&s, dir, factor)))
		return own;
	if (around.busy)
		return (struct decision){ CARRIER_COPY, REASON_BUSY_WORKER };
	if (around.watch_ms < r->settle_ms)
		return own;
	return (struct decision){ CARRIER_SOCKMAP,
				  conversation ? REASON_CONVERSATION : REASON_SMALL_READS };
}

struct decision model_user(const struct model_rules *r, struct model_habit *h, unsigned int dir,
			   struct decision own, struct setting around)
{
	if (around.limited && (r->engine == ENGINE_AUTO || r->engine == ENGINE_SOCKMAP)) {
		around.kernel_ok = false;
		if (r->engine == ENGINE_AUTO)
			own = model_auto(r, h, dir, own, around);
		own.reason = REASON_BANDWIDTH;
		return own;
	}
	if (r->engine == ENGINE_AUTO)
		return model_auto(r, h, dir, own, around);
	if (r->engine == ENGINE_SOCKMAP && around.kernel_ok)
		return (struct decision){ CARRIER_SOCKMAP, REASON_ENGINE };
	return own;
}

struct decision model_kernel(const struct model_rules *r, unsigned int kind)
{
	if (kind == CULVERT_EVENT_BULK)
		return splice_for(r, REASON_BULK);
	if (kind == CULVERT_EVENT_PASSED)
		return splice_for(r, REASON_HARD_LIMIT);
	return splice_for(r, REASON_SLOW_TARGET);
}
