/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"
#include "daemon/control_socket.h"

/*
 * Send the client at FD the answer to `culvert sessions`, in pieces.  On a control thread, without
 * the lock of forwards.
 */
void sessions_stream(const struct actions *a, const struct control *c, const struct request *req,
		     int fd);
