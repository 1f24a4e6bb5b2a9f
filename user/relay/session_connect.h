/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_CONNECT_H
#define CULVERT_SESSION_CONNECT_H

#include "relay/happy_eyeballs.h"
#include "relay/session.h"

/*
 * From the accepted client to the connected upstream: its addresses as happy_eyeballs.h says, each
 * attempt with its own time-out.  Used by session.c only, while the session is CONNECTING.
 * session_connect(), _answered() and _timer() may open the session or end it: look at s->state
 * afterwards.
 *
 * A name may have no address yet: session_name.h.
 */

struct connect_race;

/* What a session needs until it is OPEN.  Apart from it, since most of its life comes then. */
struct connecting {
	struct connecting *next;   /* in worker->connected */
	uint64_t due_ms;           /* give up on the address in sides[UPSTREAM], or on the name */
	uint64_t lookups_seen;     /* see upstream_await() */
	uint64_t retry_ms;         /* 0, or when to try that address (or, if it has answered, to
				    * send its header) again */
	int lacks;                 /* errno of what that waits for here; 0: nothing, the upstream
				    * has been asked */
	struct happy happy;        /* which address is next, and when */
	struct connect_race *race; /* attempts beside that one; NULL: none so far */
};

/* S begins: it will connect.  -ENOMEM. */
int session_connect_expect(struct session *s);
/* It does not begin after all. */
void session_connect_forget(struct session *s);

/* Begin with the first address. */
void session_connect(struct session *s);
/* epoll has reported EVENTS on the socket of attempt I; 0 is that of sides[UPSTREAM]. */
void session_connect_answered(struct session *s, unsigned int i, uint32_t events);
/* Time has passed: give up on an address, begin with the next, or try again. */
void session_connect_timer(struct session *s);

/* When to call session_connect_timer(), or to compute anew what to wait for. */
uint64_t session_connect_due(struct session *s);
/* True at first: the client need not be watched yet. */
bool session_connect_is_quiet(const struct session *s);

/* The session is open, or ends: give up all attempts but that of sides[UPSTREAM]. */
void session_connect_end(struct session *s);
/*
 * After a batch of events: if look-ups have ended (shared->name_news), those of W's sessions that
 * wait for one begin to connect, or end.
 */
void session_connect_news(struct worker *w);
/* Free what was given up during the batch. */
void session_connect_reap(struct worker *w);

#endif
