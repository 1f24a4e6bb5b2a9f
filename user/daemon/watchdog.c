// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/watchdog.h"

#include <errno.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "base/clock.h"
#include "base/log.h"

#define LOOKS 4 /* within the time that systemd has patience */

void watchdog_open(struct watchdog *w)
{
	uint64_t usec;
	int r = sd_watchdog_enabled(0, &usec);

	*w = (struct watchdog){ 0 };
	if (r < 0)
		log_warning("no watchdog: WATCHDOG_USEC or WATCHDOG_PID is not a number");
	if (r > 0)
		w->period_ms = usec / 1000 / LOOKS ?: 1;
}

void watchdog_close(struct watchdog *w)
{
	while (w->list) {
		struct watched *next = w->list->next;

		free(w->list);
		w->list = next;
	}
}

int watchdog_add(struct watchdog *w, const struct watched *t)
{
	struct watched *copy = malloc(sizeof(*copy));

	if (!copy)
		return -ENOMEM;
	*copy = *t;
	copy->next = w->list;
	w->list = copy;
	return 0;
}

uint64_t watchdog_due(const struct watchdog *w)
{
	return w->period_ms ? w->due_ms : UINT64_MAX;
}

/* Has T taken the turn that it was asked for?  If so, or if it was not asked yet, ask again. */
static bool is_alive(struct watched *t, uint64_t period_ms)
{
	uint64_t turns = atomic_load_explicit(t->turns, memory_order_relaxed);

	if (t->asked && turns == t->seen) {
		if (!t->late)
			log_error("%s has hung for %.1f s: systemd is no longer told that culvert "
				  "is alive, and may restart it", t->name,
				  (double)period_ms / 1000);
		t->late = true;
		return false;
	}
	if (t->late)
		log_warning("%s goes on", t->name);
	t->late = false;
	t->seen = turns;
	t->asked = true;
	t->wake(t->arg);
	return true;
}

void watchdog_look(struct watchdog *w)
{
	uint64_t now = clock_ms();
	bool alive = true;

	if (!w->period_ms || now < w->due_ms)
		return;
	w->due_ms = now + w->period_ms;
	for (struct watched *t = w->list; t; t = t->next)
		alive = is_alive(t, w->period_ms) && alive;
	if (alive)
		sd_notify(0, "WATCHDOG=1");
}
