/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "options.h"

/* Serve until SIGTERM or SIGINT; then print the totals.  Returns the exit code. */
int sink_run(const struct options *o);
