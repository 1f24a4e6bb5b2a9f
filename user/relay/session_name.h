/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_NAME_H
#define CULVERT_SESSION_NAME_H

#include <stdbool.h>

#include "relay/session.h"

/*
 * A session whose upstream is a name that has no address yet.  It waits until a look-up of it has
 * ended, for its connect-timeout at most; one that ends without an address ends the session.  Used
 * by session_connect.c only, which begins to connect as soon as there is an address.
 */

/* S begins: from now on it is nameless, and counts in its worker's n_nameless. */
void session_name_expect(struct session *s);
/* S, which may be nameless, opens or ends. */
void session_name_forget(struct session *s);

/* S is CONNECTING and has no addresses. */
bool session_is_nameless(const struct session *s);

/* S is nameless: has it addresses now?  False: it waits on; or it is reset, as there are none. */
bool session_name_found(struct session *s);

/* S is nameless, and there will be no address: it is reset, and the log says why. */
void session_name_give_up(struct session *s);

/* If look-ups have ended (shared->name_news), LOOK at those of W's sessions that are nameless. */
void session_name_news(struct worker *w, void (*look)(struct session *s));

#endif
