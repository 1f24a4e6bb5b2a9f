/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <dirent.h>
#include <json-c/json.h>
#include <stdint.h>

#include "daemon/control_requests.h"
#include "daemon/service.h"
#include "daemon/standby.h"
#include "probe/probe.h"

/* What becomes of a request (control_requests.h) that came by the control socket. */
struct actions {
	struct reload *reload; /* has the forwards and the workers */
	const struct probe_start *probe;
	struct standby *standby; /* NULL: nothing is grafted */
	uint64_t started_ms;     /* CLOCK_MONOTONIC */
	uint64_t began_ms;       /* the same of CLOCK_REALTIME */
	uint64_t descriptors_max;
	DIR *descriptors; /* /proc/self/fd, opened before seccomp forbids that; NULL: there is no /proc */
};

/*
 * The answer to REQ as JSON (docs/control.md).  NULL: there is no memory.  ARG is a struct actions.
 * On a control thread, one at a time.
 */
struct json_object *actions_run(void *arg, const struct request *req);

/* After the answer to REQ: what is exported, or is to be imported.  See control_stream_fn. */
void actions_stream(void *arg, const struct control *c, const struct request *req, int fd);

/*
 * Let each worker add what the kernel has carried for live sessions to its counters; one that does
 * not answer in time does not.  Under the lock of forwards.
 */
void actions_count(const struct actions *a);
/* The sum over all workers of the counter that is AT bytes behind the beginning of their stats. */
uint64_t actions_sum(const struct actions *a, size_t at);
/* The same of the struct forward_stats of F. */
uint64_t actions_sum_forward(const struct forward *f, size_t at);

/* Descriptors that are open.  Under the lock of forwards. */
unsigned int actions_descriptors(const struct actions *a);
