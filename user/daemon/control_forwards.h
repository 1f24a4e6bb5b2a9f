/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/* On a control thread, with the lock of forwards. */

/* `culvert forwards`: adds to the answer. */
struct json_object *forwards_command(struct round *r);
/*
 * The forwards that the request names.  One that a reload has replaced is part of the one that has
 * its name: only removed ones are added to those of the configuration.
 */
struct json_object *forwards_json(struct round *r);
