/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

#include "daemon/control_round.h"
#include "daemon/control_socket.h"

/* Metrics for Prometheus: GET /metrics.  docs/operations.md has the list of them. */

/*
 * Serve a client of control_serve().  The workers must run from control_serve() to control_close().
 * ARG is a struct actions.
 */
control_serve_fn metrics_serve;
/* Is REQUEST, up to the empty line, for the metrics? */
bool metrics_asked(const char *request);
