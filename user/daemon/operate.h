/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_OPERATE_H
#define CULVERT_OPERATE_H

#include <json-c/json.h>

#include "daemon/control.h"
#include "daemon/inspect.h"

/*
 * What the daemon does when it is asked: the answer to REQ, from inspect.h, or by way of a change,
 * which is logged.  Called on the control thread; R is what there is to look at and to change.
 */
struct json_object *operate(const struct inspect *r, const struct command_request *req,
			    const struct control_peer *peer);

#endif
