/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_ENGINE_H
#define CULVERT_SESSION_ENGINE_H

#include "datapath/policy.h"

struct session;

/*
 * Which engine a flow follows: that of its forward, which may change while it runs.  Used by
 * session_flow.c only.
 */

/* Flow DIR begins: the carrier and the reason that it has by P. */
void session_engine_begin(struct session *s, unsigned int dir, const struct policy *p);

/*
 * User space carries flow DIR, and nothing is pending.  If P is that of another engine than it
 * follows, it begins anew.
 */
void session_engine_follow(struct session *s, unsigned int dir, const struct policy *p);

#endif
