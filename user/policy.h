/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_POLICY_H
#define CULVERT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "flow.h"

/*
 * Which carrier for a flow, and why.  Pure: what the session has seen goes in, a decision comes out.
 *
 * No carrier wins everywhere (docs/design.md has the figures): copy costs least until a session has
 * lived for some messages, sockmap is best for conversations, splice for bulk and for slow targets.
 */

/* The thresholds of `auto`, in one place. */
struct policy {
	enum engine engine;
	uint32_t promote_turns;  /* changes of direction that make a conversation */
	uint32_t promote_reads;  /* small reads one way that make a message stream */
	uint32_t small_read;     /* bytes: average size of a "small" read */
	uint32_t big_turn;       /* bytes: average turn from which a conversation is bulk */
	uint64_t bulk_run;       /* bytes in one direction without an answer that are bulk */
	uint64_t kernel_bulk;    /* the same for a flow that is in the kernel; 0: never */
	uint32_t kernel_bulk_ratio; /* ... with so many bytes for each packet that comes back */
	uint32_t kernel_bulk_skb;   /* ... and for each packet of its own */
	uint64_t window;         /* bytes after which a session is judged afresh */
	uint8_t max_demotions;   /* each return from the kernel doubles promote_*, so often */
};

void policy_init(struct policy *p, enum engine engine);

/* What a session has been doing since it was last judged.  One for both directions. */
struct habit {
	uint64_t bytes[2];
	uint32_t reads[2];
	uint64_t run;     /* bytes since the direction changed */
	uint32_t run_reads;
	uint32_t turns;   /* changes of direction */
	uint8_t last_dir;
	uint8_t demotions; /* times the session was sent back from the kernel */
};

/* User space read BYTES of flow DIR (0 or 1) in READS calls. */
void habit_read(struct habit *h, unsigned int dir, uint64_t bytes, uint32_t reads);
/* The kernel has sent a flow back: ask for more proof before the next promotion. */
void habit_demoted(const struct policy *p, struct habit *h);
/* True if so much has been seen that the session should be judged afresh. */
bool habit_full(const struct policy *p, const struct habit *h);
/* Judge afresh from here; demotions are kept. */
void habit_restart(struct habit *h);

struct decision {
	enum carrier carrier;
	enum reason reason;
};

/* The first carrier of a session's flows.  SPLICE, SOCKMAP: see policy_user(). */
struct decision policy_start(const struct policy *p);

/*
 * The carrier for flow DIR, which user space carries now as F says.  KERNEL_OK: the kernel could
 * take it.  Returns F's own carrier and reason when there is no cause to change.
 */
struct decision policy_user(const struct policy *p, const struct habit *h, unsigned int dir,
			    const struct flow *f, bool kernel_ok);

/* The program's event of KIND (enum culvert_event_kind) for a flow in the kernel. */
struct decision policy_kernel(const struct policy *p, unsigned int kind);

#endif
