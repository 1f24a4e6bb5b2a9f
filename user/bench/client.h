/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "options.h"

/* Run the workload of O in its processes, and print the result.  Returns the exit code. */
int load_run(const struct options *o);
