/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>

#include "relay/session.h"

/* Counts what a session has carried, and shows it to the control socket and the session log. */

/*
 * Add to the counters the bytes that the kernel has carried for S since the last call.  No event
 * reports these bytes, or that a graft has begun: so call this when S ends, and before counters are
 * read.
 */
void session_count_kernel(struct session *s);
/*
 * Count BYTES of flow DIR that user space has read.  A graft that returned may have counted some of
 * them: bytes that were sent on, not acknowledged, and are sent again by way of the sockets.
 */
void session_count_copied(struct session *s, unsigned int dir, enum carrier c, uint64_t bytes);

struct flow_view {
	enum carrier carrier;
	enum reason reason;
	enum flow_phase phase;
	bool eof;
	uint32_t handovers;
	uint64_t copied, spliced, kernel; /* bytes delivered, by carrier */
	uint64_t datagrams;               /* UDP: delivered by any carrier */
	uint64_t backlog_max;
};

static inline uint64_t flow_view_bytes(const struct flow_view *f)
{
	return f->copied + f->spliced + f->kernel;
}

/* How a session has ended, if not by a cause. */
#define SESSION_FINISHED CAUSE_NONE /* both flows came to their end */
#define SESSION_MOVED (CAUSES + 1)  /* another relay goes on with it */
#define SESSION_LEFT (CAUSES + 2)   /* the next daemon goes on with it, and nothing is logged */

static inline const char *session_end_name(unsigned int end)
{
	return end >= SESSION_MOVED    ? "moved" :
	       end == SESSION_FINISHED ? "finished" :
					 cause_names[end];
}

struct session_view {
	uint64_t id, age_ms;
	const struct forward *forward; /* lives as long as the session */
	const struct server *server;   /* the same; NULL: none yet, or not known */
	unsigned int worker;
	enum session_state state;
	uint32_t connect_ms; /* as of struct session */
	union client_addr client;
	union client_addr via;              /* AF_UNSPEC: the client has connected itself */
	struct addr upstream;               /* len 0: no address was tried */
	const char *not_grafted;            /* see session_graft_hindrance() */
	uint8_t shaped;                     /* enum shaped */
	const char *standby;                /* "yes": another relay knows it, or why not */
	char server_name[TLS_NAME_MAX + 1]; /* "": its client has not said one, or was not asked */
	struct flow_view flows[2];
};

/* Look at the session of V.  Returns the cause to end it; CAUSE_NONE: it goes on. */
typedef enum cause session_visit_fn(void *arg, const struct session_view *v);

/* The `standby` of a session.  TOLD: another relay has it. */
static inline const char *standby_text(const struct shared *shared, bool grafted, bool told)
{
	if (!atomic_load_explicit(&shared->standbys, memory_order_relaxed))
		return "no standby";
	return told ? "yes" : grafted ? "too young" : "not grafted";
}

/* On S's thread. */
void session_view(const struct session *s, struct session_view *ret);

/*
 * The JSON of a living session, for the control socket: docs/control.md has the fields.  Any thread
 * may make JSON of V while the forward of V lives.
 */
struct json_object *session_json(const struct session_view *v);
/* The JSON of a session that ended as END says, for the session log: see docs/operations.md. */
struct json_object *session_ended_json(const struct session_view *v, unsigned int end);
