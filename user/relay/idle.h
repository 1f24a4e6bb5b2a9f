/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_IDLE_H
#define CULVERT_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * idle-timeout and fin-timeout: the end of a session that is silent.
 *
 * Nothing is done for a byte.  At the time at which the session would end if no byte had come since
 * the last look, the sockets are asked when one did: TCP knows, whatever carries the flow.
 *
 * A session is silent while neither end sends a byte and neither takes one.  Taking counts: what
 * one end sent long ago may wait for hours in the buffers of an end that reads slowly, and that
 * session is at work.
 */
struct idle {
	uint64_t since_ms; /* the last byte that is known of; 0: not open yet */
	uint64_t read_ms;  /* user space has read a byte; only where TCP does not know */
	uint64_t later_ms; /* no look before then: too many sessions were due at once */
	uint64_t taken[2]; /* at the last look, by side */
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

/* Turn "so long ago", as a socket tells on a clock of ticks, into a time that is not too early. */
uint64_t idle_ago(uint64_t now_ms, uint32_t ago_ms);

/*
 * How many sessions a worker looks at, or ends, in one batch of events and in one millisecond.  Each
 * takes system calls, and thousands at once would hold up the sessions that are at work.  The others
 * are spread over the milliseconds to come.  That takes a quarter of a CPU, so the scheduler does
 * not treat the worker as one that wants all of it.
 */
#define IDLE_LOOKS 8

struct idle_turns {
	uint32_t batch;       /* the last batch with a look, */
	uint64_t now_ms;      /* its time, */
	unsigned int looks;   /* and how many there were */
	uint64_t last_ms;     /* the latest time that was given away, */
	unsigned int at_last; /* and to how many */
};

/* Ask for a look in BATCH.  Returns when to ask again; NOW_MS: look now. */
uint64_t idle_turn(struct idle_turns *t, uint32_t batch, uint64_t now_ms);

struct session;

/* S is OPEN.  Returns when to look next; UINT64_MAX: never. */
uint64_t session_idle_due(struct session *s);
/* The session's timer has fired: look, if it is time.  May end the session. */
void session_idle_timer(struct session *s);

#endif
