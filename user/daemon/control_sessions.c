// SPDX-License-Identifier: BSD-2-Clause
/*
 * On a control thread, but for sessions_take(): each worker, on its own thread, takes a snapshot of
 * its sessions as plain structs, and the control thread makes JSON of these afterwards.
 */
#include "daemon/control_sessions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "relay/session_json.h"
#include "relay/worker_sessions.h"

#define PIECE 1024             /* sessions, by the mean, that are shown at a time, */
#define PIECE_ROOM (4 * PIECE) /* and at most */
#define SLICE 65536            /* bytes of that for which a client has CONTROL_ANSWER_MS */

static void sessions_take_view(void *arg, const struct session_view *v)
{
	struct round *r = arg;

	if (r->n_views < r->room && round_means(r, v))
		r->views[r->n_views++] = *v;
}

static void sessions_take(void *arg)
{
	struct round *r = arg;

	worker_visit_sessions(r->worker, r->piece, r->pieces, sessions_take_view, r);
}

/* The lock is held while the views have pointers, and not while a client takes its time. */
static char *sessions_piece(struct round *r)
{
	struct forwards *all = &r->actions->service->forwards;
	bool locked = lock_within(&all->lock, ROUND_TIMEOUT_MS);
	size_t size = 0, len;
	char *text = NULL;
	FILE *out = open_memstream(&text, &size);

	r->n_views = 0;
	if (locked)
		round_ask(r, sessions_take);
	if (out && !r->piece)
		fputs("{\"sessions\":\t", out);
	for (size_t i = 0; out && i < r->n_views; i++) {
		struct json_object *o = session_json(&r->views[i]);
		const char *one = json_line(o, JSON_C_TO_STRING_NOSLASHESCAPE, &len);

		if (one)
			fprintf(out, "%c%s", r->n++ ? ',' : '[', one);
		json_object_put(o);
	}
	if (locked)
		pthread_mutex_unlock(&all->lock);
	else
		r->pieces = r->piece + 1; /* a reload waits for a worker that does not answer */
	if (out)
		fputc('\t', out); /* where a client can cut the answer */
	if (out && r->piece + 1 == r->pieces)
		fprintf(out, "%s],\"workers_silent\":%u}\n", r->n ? "" : "[\t",
			r->silent + !locked);
	if (out)
		fclose(out);
	return text;
}

/*
 * A piece has the sessions whose ids have one rest, PIECE of them by the mean.  So it needs no
 * place in lists that change between two pieces, and no session is sent twice.
 */
void sessions_stream(const struct actions *a, const struct control *c, const struct request *req,
		     int fd)
{
	struct round r = { .actions = a,
			   .req = req,
			   .name = req->values[KEY_FORWARD].text,
			   .shared = a->service->shared,
			   .views = calloc(PIECE_ROOM, sizeof(*r.views)),
			   .room = PIECE_ROOM,
			   .pieces = atomic_load(&a->service->shared->live) / PIECE + 1 };
	int e = r.views ? 0 : -ENOMEM;

	for (; !e && r.piece < r.pieces; r.piece++) {
		char *text = sessions_piece(&r);
		size_t len = 0;

		e = text ? 0 : -ENOMEM;
		for (const char *at = text; !e && *at; at += len) {
			len = strnlen(at, SLICE);
			e = control_send(c, fd, CONTROL_ANSWER_MS, at, len);
		}
		free(text);
	}
	free(r.views);
}
