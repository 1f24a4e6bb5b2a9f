/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/*
 * Hand this daemon over to the one at FD, of the control socket C, and end: hand_over_stream.h has
 * the order.  Returns when the other daemon has all, or has failed, and then this one goes on.  By a
 * control thread.
 */
void hand_over(const struct actions *a, const struct control *c, int fd);
