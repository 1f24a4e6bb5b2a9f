/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BEHAVIOURS_H
#define CULVERT_BEHAVIOURS_H

#include <stdbool.h>
#include <stddef.h>

#include "probe/rig.h"

/*
 * What the carriers rely on, as behaviours of the kernel that can be tried: each with the real
 * verdict program and the real hand-over code, on a rig of its own.
 */

/* Which carriers rely on a behaviour; may be combined. */
enum probe_carrier {
	PROBE_SOCKMAP = 1,
	PROBE_SPLICE = 2,
};

#define BEHAVIOURS 22
#define BEHAVIOUR_NEEDS 4

struct behaviour {
	const char *name;
	unsigned int carriers;  /* enum probe_carrier */
	bool at_start;          /* tried at each start of the daemon */
	const char *shows;      /* what must hold */
	const char *why;        /* what goes wrong if it does not */
	const char *since;      /* where the kernel's history tells; else NULL */
	const char *needs[BEHAVIOUR_NEEDS]; /* without these, of those before, it means nothing */
	void (*run)(struct probe *p);
};

/* In the order in which they are to be tried. */
extern const struct behaviour behaviours[BEHAVIOURS];

/* The one called NAME, which must exist. */
size_t behaviour_find(const char *name);

/* A new run: no rig is open.  KERNEL: what is loaded; NULL: "load" will do it. */
void behaviours_begin(struct probe *p, struct kernel *kernel);
/* Release what is loaded. */
void behaviours_end(struct probe *p);
/* True if B holds; p->detail tells what was seen.  Those that B needs must have been tried in P. */
bool behaviour_holds(struct probe *p, const struct behaviour *b);

#endif
