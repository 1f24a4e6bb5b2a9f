// SPDX-License-Identifier: BSD-2-Clause
#include "relay/crew.h"

/* A worker as busy as this may be what the others wait for, and sleep now and then itself. */
#define BUSY 400
/* So much is left over that another worker preempts nobody. */
#define ROOM 350
/* So little that two of ours, if not others, wait for each other. */
#define CROWDED 300
/* One worker may have no more than so much to do after another has gone. */
#define FULL 950
#define CALM 250
/* From here on an event is worth a switch of context. */
#define DEAR_EVENT_US 25
/* To grow late costs more than to shrink late. */
#define CROWDED_LOOKS 5
#define CALM_LOOKS 25
/*
 * One look says little: in a closed loop CPUs idle 25 to 30 % beside one worker that is best alone,
 * and over a third in every few looks.  Where peers wait for each other in a circle, CPUs idle
 * beside one worker and not beside two; so each time that it was too crowded, room must be seen for
 * twice as long, and that is forgotten.
 */
#define PATIENCE_LEAST 3
#define PATIENCE_MOST 256
#define FORGET 10 /* times as many looks as patience */

void crew_init(struct crew *c, unsigned int most)
{
	*c = (struct crew){ .active = 1, .most = most, .patience = PATIENCE_LEAST };
}

/*
 * More would be calm, and go again: what keeps one worker busy may be one session, which another
 * cannot help.
 */
static bool is_enough(const struct crew_load *l, unsigned int active)
{
	return l->sum <= CALM * active;
}

static bool needs_more(const struct crew *c, const struct crew_load *l)
{
	return c->active < c->most && l->busiest >= BUSY && !is_enough(l, c->active) &&
	       (l->idle >= ROOM || l->event_us >= DEAR_EVENT_US);
}

/* As many as the idle CPUs have room for, but at most twice as many as before. */
static unsigned int grown(const struct crew *c, const struct crew_load *l)
{
	unsigned int more = l->idle / 1000;

	if (more > c->active)
		more = c->active;
	if (more > c->most - c->active)
		more = c->most - c->active;
	while (more > 1 && is_enough(l, c->active + more - 1))
		more--;
	return c->active + (more ? more : 1);
}

static void remember(struct crew *c, bool was_crowded)
{
	if (was_crowded) {
		c->patience = c->patience * 2 < PATIENCE_MOST ? c->patience * 2 : PATIENCE_MOST;
		c->steady = 0;
	} else if (++c->steady >= FORGET * c->patience) {
		c->patience = c->patience / 2 > PATIENCE_LEAST ? c->patience / 2 : PATIENCE_LEAST;
		c->steady = 0;
	}
}

static bool grows(struct crew *c, const struct crew_load *l)
{
	c->needy = needs_more(c, l) ? c->needy + 1 : 0;
	if (!c->needy || (c->needy < c->patience && l->event_us < DEAR_EVENT_US))
		return false;
	c->active = grown(c, l);
	return true;
}

static bool shrinks(struct crew *c, const struct crew_load *l)
{
	unsigned int others = c->active - 1;
	bool crowded = l->idle < CROWDED && l->event_us < DEAR_EVENT_US && l->sum <= FULL * others;
	bool calm = is_enough(l, others);

	c->crowded = others && crowded ? c->crowded + 1 : 0;
	c->calm = others && calm ? c->calm + 1 : 0;
	if (c->crowded < CROWDED_LOOKS && c->calm < CALM_LOOKS)
		return false;
	c->active--;
	return true;
}

bool crew_judge(struct crew *c, const struct crew_load *l)
{
	bool changed = grows(c, l) || shrinks(c, l);

	remember(c, changed && c->crowded >= CROWDED_LOOKS);
	if (changed)
		c->needy = c->crowded = c->calm = 0;
	return changed;
}
