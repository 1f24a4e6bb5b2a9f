/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides which servers may have sessions, and how many.  The decisions are pure: no system calls,
 * no locks.  Times are milliseconds of one clock.
 */

/* The order of an operator. */
enum server_order {
	ORDER_READY,
	ORDER_DRAIN, /* no new sessions; those that run go on */
	ORDER_DOWN,  /* no sessions */
	ORDERS,
};

/*
 *   UP         -> ASIDE      a session could not connect
 *              -> FAILED     `fall` checks in a row have failed, or the server's first check has
 *   ASIDE      -> TRIAL      its time is over
 *              -> RETURNING  a session has connected, or a check has succeeded
 *              -> FAILED     as from UP
 *   TRIAL      -> ASIDE      it has got the session that tries it
 *              -> RETURNING, FAILED   as from ASIDE
 *   FAILED     -> RETURNING  `rise` checks in a row have succeeded
 *   RETURNING  -> UP         BACK_SLOWLY_MS have passed
 *              -> ASIDE, FAILED   as from UP
 *
 * The state is computed from struct health.  An order other than ORDER_READY hides it.
 */
enum server_state {
	SERVER_UP,
	SERVER_RETURNING, /* gets a share of the sessions that grows */
	SERVER_TRIAL,     /* gets one session */
	SERVER_ASIDE,     /* gets sessions only where all others have failed */
	SERVER_FAILED,    /* gets none */
	SERVER_DRAIN,     /* gets none: ordered */
	SERVER_DOWN,      /* gets none: ordered */
	SERVER_STATES,
};

extern const char *const server_state_names[SERVER_STATES];

struct health {
	enum server_order order;
	bool checked;         /* a check has ended; else `down` says nothing */
	bool down;            /* checks say so */
	bool told_down;       /* the server's agent says so */
	bool told_drain;      /* it wants no new sessions */
	unsigned int streak;  /* checks in a row that say the contrary of `down` */
	unsigned int refused; /* failures in a row; those while it is aside do not count */
	uint64_t aside_ms;    /* it is set aside until then */
	uint64_t back_ms;     /* since when it is back; 0: it was never away */
};

/* The time for which the first failure sets a server aside.  Each further failure doubles it. */
#define ASIDE_MS 1000
#define ASIDE_MAX_MS 60000
/* The time after which a server that has come back gets its whole share. */
#define BACK_SLOWLY_MS 10000

/* See is_silent(). */
#define SILENT_MS 100
#define ASK_AGAIN_MS 1000 /* as TCP does, with a SYN */

enum server_state health_state(const struct health *h, uint64_t now_ms);

/* A session could not connect, or has got a server that is in TRIAL. */
void health_refused(struct health *h, uint64_t now_ms);
/* A session has connected. */
void health_connected(struct health *h, uint64_t now_ms);
/* A check has ended.  RISE good checks in a row, or FALL failed ones, change the state. */
void health_checked(struct health *h, bool good, unsigned int rise, unsigned int fall,
		    uint64_t now_ms);

/*
 * True if a server has owed the answer to a connect for too long.  OWES_MS: when that connect began
 * (0: it owes none).  USUAL_MS: the duration of its last connect.
 */
bool is_silent(uint64_t owes_ms, uint64_t usual_ms, uint64_t now_ms);

/* The share of a server: FULL_SHARE times WEIGHT, or less while the server is RETURNING. */
#define FULL_SHARE 16
unsigned int health_weight(const struct health *h, unsigned int weight, uint64_t now_ms);
