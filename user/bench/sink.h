/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_SINK_H
#define CULVERT_BENCH_SINK_H

#include "options.h"

/* Serve until SIGTERM or SIGINT; then print the totals.  Returns the exit code. */
int sink_run(const struct options *o);

#endif
