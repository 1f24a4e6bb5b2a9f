/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <dirent.h>
#include <json-c/json.h>
#include <stdint.h>

#include "daemon/control_socket.h"
#include "daemon/service.h"
#include "daemon/standby.h"
#include "relay/session_json.h"

/* The parts of the daemon that requests of the control socket, and metrics, show or change. */
struct actions {
	struct service *service;                 /* has the forwards and the workers */
	struct standby *standby;                 /* NULL: nothing is grafted */
	const struct control *control, *metrics; /* NULL: none */
	uint64_t started_ms;                     /* CLOCK_MONOTONIC */
	uint64_t began_ms;                       /* the same of CLOCK_REALTIME */
	uint64_t descriptors_max;
	DIR *descriptors; /* /proc/self/fd, opened before seccomp forbids that; NULL: there is no /proc */
};

#define ROUND_TIMEOUT_MS 2000 /* for all workers together */

/*
 * A request, and what the workers find.  The workers are asked one after the other.  The lock of
 * forwards is held, so no forward that a session points to is freed.
 */
struct round {
	const struct actions *actions;
	const struct request *req;
	struct json_object *answer; /* owned by the caller */
	const char *name;           /* of a forward, in the request; NULL: none is given */
	struct forward *named;      /* that forward: the active one, if there is one */
	struct shared *shared;
	const struct server *server; /* NULL: the request is not about one */
	bool changed;                /* forwards, by the request */
	struct worker *worker;       /* whose turn it is */
	unsigned int silent;         /* workers that have not answered */
	unsigned int n;              /* sessions that were reset, or flows that move */
	struct session_view *views;  /* owned; of sessions that the filter matches */
	size_t n_views, room;        /* no room: only sums are wanted */
	unsigned int piece, pieces;  /* views are of the sessions whose id modulo PIECES is PIECE */
	bool deaf[WORKERS_MAX];      /* workers that have not answered, and are asked no more */
	uint64_t flows[CARRIERS];
	uint64_t pipes, pipes_idle, buffers;
};

/* Call FN(R) on the thread of each worker, except of those that have ended. */
void round_ask(struct round *r, void (*fn)(void *round));
/* On the threads of workers: add to R the numbers of pipes, buffers, and flows by carrier. */
void round_count(void *round);
/* Does the request name F, or no forward at all? */
bool round_names(const struct round *r, const struct forward *f);
/* On the thread of a worker: is the request about the session V? */
bool round_matches(const struct round *r, const struct session_view *v);

/*
 * Let each worker add the bytes that the kernel has carried for live sessions to its counters; a
 * worker that does not answer in time adds them later.  Under the lock of forwards.
 */
void round_update_counters(const struct actions *a);

/* --- control_actions.c: from a request (control_requests.h) to its answer --- */

/*
 * The answer to REQ as JSON (docs/control.md).  NULL: there is no memory.  ARG is a struct actions.
 * On a control thread, one at a time.
 */
struct json_object *actions_run(void *arg, const struct request *req);

/* The stream after the answer to REQ: sessions, an export or an import.  See control_stream_fn. */
void actions_stream(void *arg, const struct control *c, const struct request *req, int fd);

/* --- control_views.c: commands that show something, on a control thread --- */

/* Send the client at FD the answer to `culvert sessions`, in pieces.  Without the lock of forwards. */
void sessions_stream(const struct actions *a, const struct control *c, const struct request *req,
		     int fd);

/* `culvert forwards`, `culvert status`: each adds to the answer.  With the lock of forwards. */
struct json_object *forwards_command(struct round *r);
struct json_object *status_command(struct round *r);

/* Descriptors that are open.  Under the lock of forwards, or before other threads run. */
unsigned int status_descriptors(const struct actions *a);
