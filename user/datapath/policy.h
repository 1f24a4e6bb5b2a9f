/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_POLICY_H
#define CULVERT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "datapath/flow.h"

/*
 * Which carrier for a flow, and why.  Pure: what the session has seen goes in, a decision comes
 * out.
 *
 * No carrier wins everywhere (docs/design.md has the figures): copy costs least until a session has
 * lived for some messages, sockmap is best for conversations, splice for bulk and for slow targets.
 */

/* The thresholds of `auto`, in one place. */
struct policy {
	enum engine engine;
	bool no_splice;          /* splice does not work on this kernel: copy does what it would
				  * do */
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
	uint32_t busy_reads;     /* small reads for 100 batches of a worker that is busy, */
	uint32_t busy_cpu;       /* ... and percent of a CPU that its thread uses */
	uint32_t settle_ms;      /* in user space, and since the worker was busy, before a
				  * promotion */
	uint32_t return_ms;      /* --engine sockmap: in user space after the first return from the
				  * kernel; each further return doubles it */
	uint32_t review_packets; /* of a flow in the kernel, before its session is judged again;
				  * 0: never */
	uint32_t review_ms;      /* ... and so long must it have been there */
};

/* Let no policy that is made from now on use splice.  To be called before there are threads. */
void policy_forbid_splice(void);

/* REVIEW_PACKETS 0: no review. */
void policy_init(struct policy *p, enum engine engine, uint32_t settle_ms, uint32_t review_packets);

/*
 * How busy a worker is with conversations: how many small reads a batch of events brings, while its
 * thread hardly sleeps.  One that finds several at each of few wake-ups is not busy: it has the time
 * to wake up for each.  A batch with a big read, and the batch after it, do not count: their reads
 * have waited for the big one, and not for each other.
 */
struct load {
	uint32_t reads, batches; /* since the last look */
	uint32_t batch_reads;    /* small ones in the current batch */
	uint8_t disturbed;       /* batches, from the current one on, that do not count */
	uint64_t looked_ms, cpu_ns; /* the last look, and the thread's CPU time then */
	uint64_t busy_ms; /* when it last was found busy; 0: never */
};

/* User space has read BYTES of a flow in one turn. */
void load_read(const struct policy *p, struct load *l, uint64_t bytes);
/* A batch of events has ended.  True: it is time for load_look(). */
bool load_batch(struct load *l, uint64_t now_ms);
/* The thread has used CPU_NS of CPU time so far. */
void load_look(const struct policy *p, struct load *l, uint64_t now_ms, uint64_t cpu_ns);
/* True if the worker was busy at NOW_MS, or shortly before. */
bool load_busy(const struct policy *p, const struct load *l, uint64_t now_ms);

/* What a session has been doing since it was last judged.  One for both directions. */
struct habit {
	uint64_t bytes[2];
	uint32_t reads[2];
	uint32_t run;     /* bytes since the direction changed; UINT32_MAX: or more */
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

/* What a flow finds around it. */
struct setting {
	bool kernel_ok;    /* the kernel could take the flow */
	bool busy;         /* its worker serves several flows a wake-up */
	uint64_t watch_ms; /* so long has user space carried it */
	bool limited;      /* its bandwidth has a limit: the kernel shall not carry it */
	bool memory_short; /* flows in the kernel have too much memory: no other shall enter it */
};

/*
 * The carrier for flow DIR, which user space carries now as F says.  Returns F's own carrier and
 * reason when there is no cause to change.
 *
 * The kernel path wakes a kernel thread for each packet, and that preempts whoever has sent it: two
 * switches of context a packet.  User space needs a wake-up a packet as well, and two calls more,
 * unless the worker is so busy that each wake-up finds several flows to serve.  Then copy is
 * faster.
 */
struct decision policy_user(const struct policy *p, const struct habit *h, unsigned int dir,
			    const struct flow *f, struct setting around);

/* The program's event of KIND (enum culvert_event_kind) for a flow in the kernel. */
struct decision policy_kernel(const struct policy *p, unsigned int kind);

#endif
