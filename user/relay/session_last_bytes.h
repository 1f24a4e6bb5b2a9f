/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * S is marked ENDING_PARTS.  S becomes PARTING if the other end may still get bytes of the dead
 * side.  Otherwise S is marked for a reset.
 */
void session_part_begin(struct session *s);
/* PARTING: to be called again at s->flows[s->parted].due_ms. */
void session_part_go_on(struct session *s);
