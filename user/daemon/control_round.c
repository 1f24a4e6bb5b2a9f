// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a control thread makes a round.  Each worker, one after the other, runs a
 * function on its own thread between two batches of events, so the payload path has no locks.  A
 * worker that does not answer in time is counted, and its sessions are missing in the answer.
 */
#include "daemon/control_round.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "relay/session_life.h"

#define LEAST_MS 20 /* for each worker at least */

void round_ask(struct round *r, void (*fn)(void *round))
{
	const struct threads *ts = &r->actions->service->threads;
	uint64_t end_ms = clock_ms() + ROUND_TIMEOUT_MS;

	for (unsigned int i = 0; i < ts->n; i++) {
		uint64_t now = clock_ms();
		int e, left = end_ms > now + LEAST_MS ? (int)(end_ms - now) : LEAST_MS;

		if (r->deaf[i])
			continue;
		r->worker = &ts->workers[i];
		e = loop_call(&r->worker->loop, fn, r, left);
		r->deaf[i] = e && e != -ESRCH;
		r->silent += r->deaf[i];
	}
}

static bool round_has_id(struct json_object *ids, uint64_t id)
{
	if (!json_object_is_type(ids, json_type_array))
		return json_object_get_uint64(ids) == id;
	for (size_t i = 0; i < json_object_array_length(ids); i++)
		if (json_object_get_uint64(json_object_array_get_idx(ids, i)) == id)
			return true;
	return false;
}

bool round_names(const struct round *r, const struct forward *f)
{
	return !r->name || !strcmp(forward_name(f->conf), r->name);
}

bool round_matches(const struct round *r, const struct session_view *v)
{
	const struct request *req = r->req;
	uint64_t carrier = req->values[KEY_CARRIER].number;

	if (req->ids && !round_has_id(req->ids, v->id))
		return false;
	if (request_has(req, KEY_CARRIER) && v->flows[CLIENT].carrier != carrier &&
	    v->flows[UPSTREAM].carrier != carrier)
		return false;
	if (!round_names(r, v->forward))
		return false;
	if (r->server && v->server != r->server)
		return false;
	if (request_has(req, KEY_SERVER_NAME) &&
	    strcasecmp(req->values[KEY_SERVER_NAME].text, v->server_name) != 0)
		return false;
	return !req->clients.n || acl_allows(&req->clients, &v->client.sa);
}

void round_count(void *round)
{
	struct round *r = round;
	struct worker *w = r->worker;

	worker_count_sessions(w, r->flows);
	r->pipes += w->pool.pipes_lent + w->pool.pipes_idle;
	r->pipes_idle += w->pool.pipes_idle;
	r->buffers += w->pool.buffers_lent;
}

void round_update_counters(const struct actions *a)
{
	struct round r = { .actions = a };

	round_ask(&r, round_count);
}
