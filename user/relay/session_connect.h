/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * From the accepted client to the connected upstream: the state CONNECTING.  The functions that
 * return bool return true once the upstream's socket, connected, is in sides[UPSTREAM].
 */

struct connecting; /* what a session needs until it is OPEN */

/*
 * S will connect: it gets s->connecting, and session_connect_timer() is to be called.  ON_RIVAL
 * handles events of attempts.  False: no memory, and S is reset.
 */
bool session_connect_begin(struct session *s, void (*on_rival)(struct source *, uint32_t events));
/* Since when S waits for a server's place; 0: it does not. */
uint64_t session_connect_waits(const struct session *s);
/* S, which will connect, has waited for a place in the daemon before this one, since SINCE_MS. */
void session_connect_wait(struct session *s, uint64_t since_ms);
/* epoll has reported EVENTS on the socket of attempt I; 0 is that of sides[UPSTREAM]. */
bool session_connect_answered(struct session *s, unsigned int i, uint32_t events);
/* The timer has fired: begin the next attempt if there is an address for it, or give up. */
bool session_connect_timer(struct session *s);

/* The session of an attempt's SOURCE, and the attempt's number. */
struct session *session_of_rival(struct source *source, unsigned int *ret_attempt);

/* The time at which to call session_connect_timer(), or to compute the wanted events anew. */
uint64_t session_connect_due(struct session *s);
/* True while S is young: the client need not be watched yet. */
bool session_connect_is_quiet(const struct session *s);

/* The session is open, or ends: give up all attempts but that of sides[UPSTREAM]. */
void session_connect_end(struct session *s);
