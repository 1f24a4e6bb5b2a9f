/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_INSPECT_H
#define CULVERT_INSPECT_H

#include <dirent.h>
#include <json-c/json.h>
#include <stdint.h>

#include "daemon/command.h"
#include "daemon/reload.h"
#include "probe/probe.h"
#include "relay/forward.h"
#include "relay/worker.h"

/* What there is to see of the daemon, as JSON (docs/control.md).  Called on the control thread. */
struct inspect {
	struct shared *shared;
	struct forwards *forwards;
	struct reload *reload;
	struct worker *workers;
	unsigned int n_workers;
	uint64_t started_ms;       /* CLOCK_MONOTONIC */
	DIR *descriptors;          /* /proc/self/fd, which the seccomp filter does not let be
				    * opened */
	const char *kernel_reason; /* why the kernel side is not in use; "" if it is */
	const struct probe_start *probe;
};

/* Sets started_ms and descriptors.  -errno. */
int inspect_open(struct inspect *r);
void inspect_close(struct inspect *r);

struct json_object *inspect_sessions(const struct inspect *r, const struct session_filter *filter);
/* NAME: NULL, or that of the one that is wanted. */
struct json_object *inspect_forwards(const struct inspect *r, const char *name);
/* FORWARDS: with the list of them, which grows with their number. */
struct json_object *inspect_status(const struct inspect *r, bool forwards);

#endif
