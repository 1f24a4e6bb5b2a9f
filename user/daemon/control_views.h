/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/* Commands that show something.  On a control thread. */

/* Send the client at FD the answer to `culvert sessions`, in pieces.  Without the lock of forwards. */
void sessions_stream(const struct actions *a, const struct control *c, const struct request *req,
		     int fd);

/* `culvert forwards`, `culvert status`: each adds to the answer.  With the lock of forwards. */
struct json_object *forwards_command(struct round *r);
struct json_object *status_command(struct round *r);

/* Descriptors that are open.  Under the lock of forwards, or before other threads run. */
unsigned int status_descriptors(const struct actions *a);
