/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_round.h"

/* `culvert status`: adds to the answer.  On a control thread, with the lock of forwards. */
struct json_object *status_command(struct round *r);
/* Descriptors that are open.  Under the lock of forwards, or before other threads run. */
unsigned int status_descriptors(const struct actions *a);
