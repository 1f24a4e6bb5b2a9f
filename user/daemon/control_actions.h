/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_socket.h"

/* From a request (control_requests.h) that came by the control socket to its answer. */

/*
 * The answer to REQ as JSON (docs/control.md).  NULL: there is no memory.  ARG is a struct actions.
 * On a control thread, one at a time.
 */
struct json_object *actions_run(void *arg, const struct request *req);

/* The stream behind the answer to REQ: sessions, an export or an import.  See control_stream_fn. */
void actions_stream(void *arg, const struct control *c, const struct request *req, int fd);
