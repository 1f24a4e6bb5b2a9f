/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/*
 * Hand this daemon over to the next one, as relay/handed.h says, and end.  By a control thread.
 *
 * hand_over(): to the daemon at FD, a client of the control socket C.  Returns when the other daemon
 * has all, or has failed, and then this one goes on.  The caller has set service->hands_over while
 * hand_over_hindrance() was NULL; hand_over() clears it.
 */
void hand_over(const struct actions *a, const struct control *c, int fd);
/*
 * To the daemon that systemd starts next: what it needs waits in systemd's descriptor store
 * (sd_pid_notify_with_fds(3)), under STORE_NAME.  -errno: this daemon goes on.
 */
int hand_over_store(const struct actions *a);
/* Why this daemon cannot be handed over now; NULL: it can.  Under forwards.lock. */
const char *hand_over_hindrance(const struct actions *a);
