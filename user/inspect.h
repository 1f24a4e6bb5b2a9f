/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_INSPECT_H
#define CULVERT_INSPECT_H

#include <json-c/json.h>
#include <stdint.h>

#include "worker.h"

/* What `culvert sessions` and `culvert status` show, as JSON.  Called on the control thread. */
struct inspect {
	struct shared *shared;
	struct worker **workers;
	unsigned int n_workers;
	uint64_t started_ms;       /* CLOCK_MONOTONIC */
	const char *kernel_reason; /* why the kernel side is not in use; "" if it is */
};

struct json_object *inspect_sessions(const struct inspect *r);
struct json_object *inspect_status(const struct inspect *r);

#endif
