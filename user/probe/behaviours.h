/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

#include "datapath/graft.h"
#include "datapath/sockmap.h"

/*
 * What the carriers rely on, as behaviours of the kernel that can be tried.  Each is tried with the
 * real programs and the real hand-over code, on connections of its own.
 */

/* Which carrier relies on a behaviour; a set where several are asked about. */
enum probe_carrier {
	PROBE_SOCKMAP = 1,
	PROBE_SPLICE = 2,
	PROBE_GRAFT = 4,
	PROBE_ALL = 7,
};

#define BEHAVIOURS 8
#define PROBE_DETAIL 400

struct plan;

struct behaviour {
	const char *name;
	enum probe_carrier carrier;
	const char *shows;     /* what must hold, and since which Linux if that is known */
	const char *why;       /* what goes wrong if it does not */
	const struct plan *plan; /* NULL: sockmap_open() or grafts_open(), the caller's, tries it */
};

/* In the order in which they are to be tried. */
extern const struct behaviour behaviours[BEHAVIOURS];

/*
 * True if B holds; else RET_DETAIL, of PROBE_DETAIL bytes, tells what failed.  K and GS: the loaded
 * programs, which PROBE_SOCKMAP and PROBE_GRAFT need.  SMALL: small buffers for all sockets, which is
 * harder.
 */
bool behaviour_holds(const struct behaviour *b, struct sockmap *k, struct grafts *gs, bool small,
		     char *ret_detail);
