/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/sandbox.h"
#include "config/endpoint.h"
#include "daemon/control_actions.h"

/* Metrics for Prometheus: GET /metrics.  docs/operations.md has the list of them. */
struct metrics;

/*
 * Listen at AT, which has an address: while this is still root, since a port may need that.  A unix
 * socket is the account's, of mode 0660.  -errno, after a complaint.
 */
int metrics_open(const struct endpoint *at, const struct account *account, struct metrics **ret);
/* Start the threads that serve, when the workers run.  O must live as long.  -errno. */
int metrics_start(struct metrics *m, struct operate *o);
/*
 * Parse REQUEST, up to the empty line: *RET_PAGE, it is for the metrics, and not for a line of
 * text; *RET_HEAD, only the head of the answer is wanted.  Returns the status of the answer.
 */
const char *metrics_parse(const char *request, bool *ret_page, bool *ret_head);
/* End them, before the workers are closed.  NULL is fine. */
void metrics_close(struct metrics *m);
