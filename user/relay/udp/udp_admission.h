/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/*
 * Count a session of CLIENT in.  At a limit an unproven session is ended to make room.  CAUSE_NONE,
 * or why CLIENT may have no session.
 */
enum cause udp_admit(struct udp_listen_socket *us, const struct graft_tuple *tuple,
		     const union client_addr *client);
