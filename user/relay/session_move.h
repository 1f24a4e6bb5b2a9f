/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_MOVE_H
#define CULVERT_SESSION_MOVE_H

#include "relay/worker.h"

/*
 * Sessions change their worker through the inbox of the one that gets them.  A session is in the
 * list of one worker, or in one inbox, and whoever holds it there is the only one to touch it.
 */

/*
 * Move up to MOST sessions of FROM to TO.  To be called by FROM's thread after a batch of events,
 * when nothing that epoll has reported can still point to them.  Returns how many were moved: those
 * stay that the kernel carries, or that bytes are pending of.
 */
unsigned int session_move(struct worker *from, struct worker *to, unsigned int most);

/* Take in what came.  By W's thread, between two batches. */
void session_arrivals(struct worker *w);

#endif
