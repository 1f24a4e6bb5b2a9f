/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_METRICS_H
#define CULVERT_METRICS_H

#include <stddef.h>

#include "base/loop.h"
#include "base/sandbox.h"
#include "config/endpoint.h"
#include "daemon/operate.h"

/* Metrics for Prometheus: GET /metrics.  docs/operations.md has the list of them. */
struct metrics;

/*
 * Listen at AT, which has an address: while this is still root, since a port may need that.  A unix
 * socket is the account's, of mode 0660.  -errno; ERR says what is wrong.
 */
int metrics_open(const struct endpoint *at, const struct account *account, struct metrics **ret,
		 char *err, size_t errlen);
/*
 * Start the thread that answers, when the workers run; LOOP is the main thread's, which accepts.  O
 * must live as long.  -errno.
 */
int metrics_start(struct metrics *m, struct operate *o, struct loop *loop);
/* End it, when the loop does not run any more, and before the workers are closed.  NULL is fine. */
void metrics_close(struct metrics *m);

#endif
