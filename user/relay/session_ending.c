// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_ending.h"

#include "base/clock.h"

static void on_timer(struct timer *timer)
{
	session_ending_go_on((struct worker *)((char *)timer -
					       offsetof(struct worker, ending_timer)));
}

bool session_ending_go_on(struct worker *w)
{
	uint64_t now = clock_ms(), turn = now;

	while (w->ending) {
		turn = idle_turn(&w->idle_turns, w->loop.batch, now);
		if (turn > now)
			break;
		for (unsigned int i = 0; w->ending && i < w->ending_share; i++)
			session_reset(w->ending, (enum cause)w->ending->end_cause);
	}
	w->ending_timer.fire = on_timer;
	if (w->ending) {
		timer_set(&w->loop, &w->ending_timer, turn);
	} else {
		timer_cancel(&w->loop, &w->ending_timer);
		w->ending_share = 0;
	}
	return w->ending;
}

unsigned int session_ending_begin(struct worker *w, session_choice_fn *choose, const void *arg,
				  enum cause cause)
{
	struct session *s, *next;
	unsigned int n = 0;

	for (s = w->sessions; s; s = next) {
		next = s->next;
		if (!choose(arg, s))
			continue;
		session_set_apart(s, cause);
		n++;
	}
	if (n / SESSION_ENDING_IN_TIME + 1 > w->ending_share)
		w->ending_share = n / SESSION_ENDING_IN_TIME + 1;
	session_ending_go_on(w);
	return n;
}
