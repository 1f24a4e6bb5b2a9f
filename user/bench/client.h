/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_CLIENT_H
#define CULVERT_BENCH_CLIENT_H

#include "options.h"

/* Run the workload of O with as many processes as it needs; print the result.  The exit code. */
int load_run(const struct options *o);

#endif
