/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"
#include "daemon/control_socket.h"

/*
 * Metrics for Prometheus: GET /metrics.  docs/operations.md has the list of them.  A page for people
 * is at the same address (metrics_page.h).
 */

/*
 * Serve a client of control_serve().  The workers must run from control_serve() to control_close().
 * ARG is a struct actions.
 */
control_serve_fn metrics_serve;

enum metrics_asked {
	ASKED_NOTHING,
	ASKED_METRICS,
	ASKED_STATE,
	ASKED_PAGE,
	ASKED_BY_NAME, /* for the page or the state, and by a host name: refused */
};

/* What REQUEST, up to the empty line, is for: a GET, or a HEAD. */
enum metrics_asked metrics_asked(const char *request);
