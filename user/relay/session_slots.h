/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_SLOTS_H
#define CULVERT_SESSION_SLOTS_H

#include "relay/session.h"

/*
 * The two slots of a session in the kernel's maps, one a side.  It takes them when a flow first
 * enters the kernel and keeps them to its end.
 */

/* Does nothing if it has them.  -errno of the map update, -ENOSPC if all are taken. */
int session_take_slots(struct session *s);
/* Give them back.  CLOSED: the sockets are closed already. */
void session_give_slots(struct session *s, bool closed);

#endif
