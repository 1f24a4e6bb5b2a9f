/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "options.h"

/* Run the workload of O with as many processes as it needs; print the result.  The exit code. */
int load_run(const struct options *o);
