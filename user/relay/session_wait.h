/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_WAIT_H
#define CULVERT_SESSION_WAIT_H

#include "relay/session.h"

/*
 * What S waits for from now on, by epoll and by its timer: computed from its state and its flows,
 * never remembered.  To be called after each handler; S may be DEAD, and may be afterwards.
 */
void session_update(struct session *s);

#endif
