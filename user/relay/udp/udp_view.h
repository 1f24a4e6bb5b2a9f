/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session_view.h"
#include "relay/udp/udp_session.h"

/* How others see S: the control socket, the session log.  On the thread of S. */
void udp_view(const struct udp_session *s, struct session_view *ret);
