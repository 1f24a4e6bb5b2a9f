/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "datapath/flow.h"

/*
 * The choice of a flow's carrier, and its reason.  Pure, but for two settings: the session's past
 * goes in, a decision comes out.
 *
 * No carrier wins everywhere (docs/design.md has the figures): copy costs least until a session has
 * lived for some messages, sockmap is best for conversations, splice for bulk and for slow targets.
 */

/* The thresholds of `auto`, in one place. */
#define PROMOTE_TURNS 16              /* changes of direction that make a conversation */
#define PROMOTE_READS 64              /* small reads one way that make a message stream */
#define SMALL_READ (2 * 1024)         /* bytes: average size of a "small" read */
#define BIG_TURN (48 * 1024)          /* bytes: average turn from which a conversation is bulk */
#define BULK_RUN (256 * 1024)         /* bytes in one direction without an answer that are bulk */
#define KERNEL_BULK (1024 * 1024)     /* the same in the kernel, with the next two averages */
#define KERNEL_BULK_RATIO (32 * 1024) /* bytes for each packet that comes back */
#define KERNEL_BULK_SKB (4 * 1024)    /* bytes for each packet of the flow */
#define WINDOW (4 * 1024 * 1024)      /* bytes after which big turns are bulk; see habit_full() */
#define FAR_TURN (18 * 1024)          /* bytes: the largest turn that is grafted over a long way */
#define FAR_TURNS 8                   /* such turns in a row that allow a graft over a long way */
#define FAR_IDLE_MS 4000              /* silence that allows it, too; demotions double both */
#define MAX_DEMOTIONS 6 /* returns from the kernel that double the demands; later ones do not */
#define RETURN_MS 100   /* --engine sockmap: time in user space after the first such return */

/*
 * A promotion waits until user space has carried the flow for so long.  Set before there are
 * threads.
 */
extern unsigned int policy_settle_ms;
/* Say whether splice works on this kernel; if not, copy takes its place.  By any thread. */
void policy_allow_splice(bool allowed);

/* The traffic of a session, in both directions, since it was last judged. */
struct habit {
	uint64_t bytes[2];
	uint32_t reads[2];
	uint32_t run; /* bytes since the direction changed; UINT32_MAX: or more */
	uint32_t run_reads;
	uint32_t turns;       /* changes of direction */
	uint16_t small_turns; /* in a row, of at most FAR_TURN; habit_restart() keeps them */
	uint8_t last_dir;
	uint8_t demotions; /* times the session was sent back from the kernel */
};

/* User space read BYTES of flow DIR (0 or 1) in READS calls. */
void habit_read(struct habit *h, unsigned int dir, uint64_t bytes, uint32_t reads);
/* The kernel has sent a flow back: ask for more proof before the next promotion. */
void habit_demoted(struct habit *h);
/* True if the habit covers enough bytes, and the session should be judged afresh. */
bool habit_full(const struct habit *h);
/* Judge afresh from here; demotions are kept. */
void habit_restart(struct habit *h);

/*
 * True if a session is grafted though its way is long, or loses packets.  A graft has one control
 * loop over the whole way, which costs less CPU than two.  A graft carries bulk slower if the way
 * is long, or if the sender has seen only the near leg before.  So the session must converse, or be
 * silent for policy_far_idle_ms().
 */
bool policy_graft_far(const struct habit *h, uint64_t silent_ms);
uint64_t policy_far_idle_ms(const struct habit *h);

struct decision {
	enum carrier carrier;
	enum reason reason;
};

/* The first carrier of a session's flows. */
struct decision policy_start(enum engine engine);

/* The circumstances of a flow. */
struct setting {
	bool kernel_ok;    /* the kernel could take the flow */
	uint64_t watch_ms; /* time for which user space has carried it */
	bool limited;      /* its bandwidth has a limit: the kernel shall not carry it */
	enum reason bulk;  /* why bulk is not grafted: BULK, FAR_BULK or LOSSY_BULK */
	bool memory_short; /* flows in the kernel have too much memory: no other shall enter it */
};

/*
 * The carrier for flow DIR, which user space carries now as F says.  Returns F's own carrier and
 * reason when there is no cause to change.
 */
struct decision policy_user(enum engine engine, const struct habit *h, unsigned int dir,
			    const struct flow *f, struct setting around);

/* The program's event of KIND (enum culvert_event_kind) for a flow in the kernel. */
struct decision policy_kernel(unsigned int kind);
