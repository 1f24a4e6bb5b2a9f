/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_WATCHDOG_H
#define CULVERT_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Tells systemd by WATCHDOG=1, sd_notify(3), that every watched thread still takes its turns: the
 * workers and the control thread.  The main thread tells it, so that one is watched as well.
 *
 * At each look all threads are asked to take a turn, and must have taken it by the next look.  A
 * thread that waits for events costs a wake-up then, and nobody waits for a thread that hangs.
 * systemd ends the daemon if it hears nothing for WATCHDOG_USEC.  There are four looks in this
 * time, so a thread may be busy with one thing for half of it without any harm.
 *
 * All functions are for the main thread.
 */
struct watchdog {
	uint64_t period_ms; /* 0: nobody wants to know */
	uint64_t due_ms;    /* the next look */
	struct watched *list; /* owned */
};

/* One thread. */
struct watched {
	char name[32];                 /* for messages */
	const _Atomic uint64_t *turns; /* that it has taken, ever */
	void (*wake)(void *arg);       /* makes it take one, soon; does not wait */
	void *arg;
	uint64_t seen; /* turns when it was asked */
	bool asked;
	bool late;     /* and said to be */
	struct watched *next;
};

/* Does systemd want to be told, and how often? */
void watchdog_open(struct watchdog *w);
void watchdog_close(struct watchdog *w);

/* Watch what T describes (name to arg).  -ENOMEM. */
int watchdog_add(struct watchdog *w, const struct watched *t);

/* When the next look is due; UINT64_MAX: there will be none. */
uint64_t watchdog_due(const struct watchdog *w);

/* Look, if it is time. */
void watchdog_look(struct watchdog *w);

#endif
