/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/*
 * Commands that change something.  On a control thread, with the lock of forwards.  Each adds to
 * the answer and returns NULL; or it returns an error, which is the answer.
 */
struct json_object *kill_command(struct round *r);
/* For all forwards of the name: one that a reload has replaced still has sessions. */
struct json_object *engine_command(struct round *r);
struct json_object *upstream_command(struct round *r);
struct json_object *drain_command(struct round *r);
struct json_object *reload_command(struct round *r);
struct json_object *log_level_command(struct round *r);

/*
 * Before drain_command(), without the lock: drain a forward, or let it accept again.  NULL, or an
 * error.
 */
struct json_object *drain_before(const struct round *r);
