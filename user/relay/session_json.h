/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>

#include "relay/session_view.h"

/*
 * Sessions as JSON.  By any thread, while the forward of V lives.
 *
 * One that lives, for the control socket: docs/control.md has the fields.
 */
struct json_object *session_json(const struct session_view *v);
/* One that has ended as END says, for the session log: docs/operations.md has the fields. */
struct json_object *session_ended_json(const struct session_view *v, unsigned int end);
