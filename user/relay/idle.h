/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_IDLE_H
#define CULVERT_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Since when a session has been silent.  Pure: what is seen at a look goes in.
 *
 * A session is silent while neither end sends a byte and neither takes one.  To take counts: what
 * one end has sent long ago may wait for hours in the buffers of an end that reads slowly, and
 * that session is at work.
 */
struct idle {
	uint64_t since_ms; /* the last byte, as far as it was looked for; 0: not open yet */
	uint64_t read_ms;  /* user space has read a byte; where TCP does not know */
	uint64_t later_ms; /* it was time for a look, but there were many: not before then */
	uint64_t taken[2]; /* of the last look, by side */
	bool owed[2];
	bool half;         /* one end has sent FIN */
};

/* What a look at one side has found. */
struct idle_side {
	uint64_t heard_ms; /* its last byte came */
	uint64_t sent_ms;  /* the last byte went to it */
	uint64_t took_ms;  /* if it has taken some since the last look: then, at the latest */
	uint64_t taken;    /* how far it is; only compared */
	bool owed;         /* some of what was sent is not taken */
};

/* Look at both sides; I->since_ms is then the time of the last byte. */
void idle_look(struct idle *i, const struct idle_side sides[2]);

/* The session is open, and HALF closed or not: since when it may be silent begins here. */
void idle_update(struct idle *i, bool half, uint64_t now_ms);

/*
 * When many sessions may have been silent for long enough at the same time, each look, and each end
 * that follows from it, takes system calls; all at once they would hold up the sessions that are at
 * work.  So in one batch of events, and in one millisecond, so many are looked at, and the others are
 * spread over the milliseconds to come: that takes a quarter of a CPU, and so a worker is not one of
 * those that the scheduler makes wait because they want all of it.  One of a worker.  Others that
 * end many sessions take these turns as well (session_ending.h).
 */
#define IDLE_LOOKS 8

struct idle_turns {
	uint32_t batch;       /* the last one in which one was allowed to look, */
	uint64_t now_ms;      /* when that was, */
	unsigned int looks;   /* and how many */
	uint64_t last_ms;     /* the last to come; */
	unsigned int at_last; /* so many have been told to ask again then */
};

/* One asks for a look in BATCH.  Returns when to ask again; NOW_MS: it may look. */
uint64_t idle_turn(struct idle_turns *t, uint32_t batch, uint64_t now_ms);

/* What a socket told as "so long ago", on a clock of ticks: never too early. */
uint64_t idle_ago(uint64_t now_ms, uint32_t ago_ms);

#endif
