/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/sandbox.h"
#include "config/endpoint.h"
#include "daemon/control_actions.h"
#include "daemon/control_socket.h"

/* Metrics for Prometheus: GET /metrics.  docs/operations.md has the list of them. */

/*
 * Listen at AT, which has an address: while this is still root, since a port may need that.  A unix
 * socket has the account's group and mode 0660.  -errno, after a complaint.
 */
int metrics_open(const struct endpoint *at, const struct account *account, struct control **ret);
/*
 * For control_serve(), when the workers run; to be ended before they are closed.  ARG is a struct
 * operate.
 */
control_serve_fn metrics_serve;
#define METRICS_PAGE "200 OK"
/* The status of the answer to REQUEST, up to the empty line.  METRICS_PAGE: it is for the metrics. */
const char *metrics_parse(const char *request);
