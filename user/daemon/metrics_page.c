// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the page is a text of the program.  Its script asks for the state every two
 * seconds, and computes rates from two states.  The state is `culvert status` with a list of the
 * busiest clients.  A state is kept for a second: any number of pages costs as much as one.
 *
 * Clients are counted by a walk over all sessions, in pieces as `culvert sessions` has them: a
 * worker notes address and bytes of some thousand sessions between two batches of events, and this
 * thread adds them up.  After a walk there is a pause of many times its duration, so with 100,000
 * sessions clients are counted less often than once a second, and the workers' share of the work
 * stays small.
 */
#include "daemon/metrics_page.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "page.h"
#include "relay/session_life.h"

#define STATE_MS 1000                            /* how long a state is kept */
#define CLIENTS 20                               /* in a state */
#define PAUSE 30                                 /* times the duration of a walk */
#define PIECE 4096                               /* sessions in a piece, on average */
#define ROOM(live) ((live) + (live) / 4 + PIECE) /* for those that come during a walk */

const char metrics_page_headers[] =
	"Content-Security-Policy: default-src 'none'; connect-src 'self'; base-uri 'none'; "
	"form-action 'none'; frame-ancestors 'none'; script-src 'sha256-" PAGE_SCRIPT_HASH "'; "
	"style-src 'sha256-" PAGE_STYLE_HASH "'\r\n"
	"X-Content-Type-Options: nosniff\r\n"
	"Cross-Origin-Resource-Policy: same-origin\r\n"
	"Referrer-Policy: no-referrer\r\n"
	"Cache-Control: no-store\r\n";

/* A session, or all sessions of a client. */
struct share {
	union client_addr client; /* without a port */
	uint64_t sessions;
	uint64_t bytes[2]; /* by sender */
};

struct walk {
	struct round round; /* first: round_ask() gives it to walk_piece() */
	struct share *shares;
	size_t n, room;
};

/* The state, and the result of the last walk. */
static struct {
	pthread_mutex_t lock;
	char *state; /* owned; NULL: none yet */
	uint64_t state_ms;
	struct share busiest[CLIENTS];
	size_t n_busiest, n_clients;
	uint64_t walk_ms, due_ms; /* when clients were counted, and will be again */
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* --- clients --- */

static enum cause walk_take(void *arg, const struct session_view *v)
{
	struct walk *w = arg;
	struct share *s = &w->shares[w->n];

	if (w->n == w->room)
		return CAUSE_NONE;
	w->n++;
	s->client = v->client;
	if (s->client.sa.sa_family != AF_UNIX)
		s->client.in.sin_port = 0; /* of IPv6, too: both are at the same place */
	s->sessions = 1;
	s->bytes[CLIENT] = flow_view_bytes(&v->flows[CLIENT]);
	s->bytes[UPSTREAM] = flow_view_bytes(&v->flows[UPSTREAM]);
	return CAUSE_NONE;
}

/* On the thread of a worker. */
static void walk_piece(void *arg)
{
	struct walk *w = arg;

	worker_visit_sessions(w->round.worker, w->round.piece, w->round.pieces, walk_take, w);
}

static int compare_client(const void *one, const void *other)
{
	const union client_addr *a = &((const struct share *)one)->client;
	const union client_addr *b = &((const struct share *)other)->client;
	int r = a->sa.sa_family - b->sa.sa_family;

	if (r || a->sa.sa_family == AF_UNIX)
		return r;
	if (a->sa.sa_family == AF_INET)
		return memcmp(&a->in.sin_addr, &b->in.sin_addr, sizeof(a->in.sin_addr));
	return memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(a->in6.sin6_addr)) ?:
		       memcmp(&a->in6.sin6_scope_id, &b->in6.sin6_scope_id, sizeof(uint32_t));
}

/* Those with the most sessions first; of equal ones the order is always the same. */
static int compare_sessions(const struct share *a, const struct share *b)
{
	int r = (a->sessions < b->sessions) - (a->sessions > b->sessions);

	return r ?: compare_client(a, b);
}

static void keep_nothing(void *node)
{
	(void)node;
}

/*
 * Leave one share for each client of the N sessions, at the begin of SHARES.  Returns the number of
 * clients.  Sessions for which there is no memory are left out.  qsort(3) will not do: it asks for
 * the size of memory, and a daemon that is confined may not.
 */
static size_t add_up(struct share *shares, size_t n)
{
	size_t clients = 0;
	void *tree = NULL;

	for (size_t i = 0; i < n; i++) {
		struct share *s = &shares[clients], **found;

		*s = shares[i]; /* the session at S has been added before, or is this one */
		found = tsearch(s, &tree, compare_client);
		if (found && *found == s) {
			clients++;
		} else if (found) {
			(*found)->sessions++;
			(*found)->bytes[CLIENT] += s->bytes[CLIENT];
			(*found)->bytes[UPSTREAM] += s->bytes[UPSTREAM];
		}
	}
	tdestroy(tree, keep_nothing);
	return clients;
}

/* Those of the N clients with the most sessions, in this order. */
static void keep_busiest(const struct share *clients, size_t n)
{
	kept.n_clients = n;
	kept.n_busiest = 0;
	for (const struct share *s = clients; s < clients + n; s++) {
		size_t at = kept.n_busiest;

		kept.n_busiest += at < CLIENTS;
		for (; at && compare_sessions(&kept.busiest[at - 1], s) > 0; at--)
			if (at < CLIENTS)
				kept.busiest[at] = kept.busiest[at - 1];
		if (at < CLIENTS)
			kept.busiest[at] = *s;
	}
}

/* Without memory, or if a reload holds the lock, the clients stay those of the last walk. */
static void count_clients(const struct actions *a)
{
	size_t live = atomic_load(&a->service->shared->live);
	struct walk w = { .round = { .actions = a, .pieces = (unsigned int)(live / PIECE + 1) },
			  .shares = malloc(ROOM(live) * sizeof(struct share)),
			  .room = ROOM(live) };
	struct forwards *all = &a->service->forwards;
	uint64_t begun_ms = clock_ms(), now_ms;
	bool whole = w.shares != NULL;

	/* others may take the lock between two pieces, a scrape above all */
	for (; whole && w.round.piece < w.round.pieces; w.round.piece++) {
		whole = lock_within(&all->lock, ROUND_TIMEOUT_MS);
		if (!whole)
			break;
		round_ask(&w.round, walk_piece);
		pthread_mutex_unlock(&all->lock);
	}
	now_ms = clock_ms();
	kept.due_ms = now_ms + PAUSE * (now_ms - begun_ms);
	if (whole) {
		keep_busiest(w.shares, add_up(w.shares, w.n));
		kept.walk_ms = now_ms;
	}
	free(w.shares);
}

/* The address alone, as `culvert sessions --client` takes it. */
static const char *share_text(const struct share *s, char buf[ADDR_STRLEN])
{
	char *colon;

	client_addr_text(&s->client, buf, ADDR_STRLEN);
	colon = strrchr(buf, ':');
	if (s->client.sa.sa_family == AF_UNIX || !colon)
		return buf;
	*colon = '\0';
	if (*buf != '[')
		return buf;
	colon[-1] = '\0';
	return buf + 1;
}

static struct json_object *clients_json(void)
{
	struct json_object *list = json_object_new_array();
	char text[ADDR_STRLEN];

	for (const struct share *s = kept.busiest; s < kept.busiest + kept.n_busiest; s++) {
		struct json_object *o = json_object_new_object();

		json_add_text(o, "client", share_text(s, text));
		json_add_int(o, "sessions", s->sessions);
		json_add_int(o, "bytes_to_upstream", s->bytes[CLIENT]);
		json_add_int(o, "bytes_to_client", s->bytes[UPSTREAM]);
		json_append(list, o);
	}
	return list;
}

/* --- the state and the page --- */

/* Replace the kept state; without memory, or after an error, there is none. */
static void make_state(struct actions *a)
{
	struct request req;
	struct json_object *state = request_parse("status", &req) ?: actions_run(a, &req);
	const char *text;
	size_t len;

	request_close(&req);
	if (clock_ms() >= kept.due_ms)
		count_clients(a);
	json_add_int(state, "clients", kept.n_clients);
	json_add_int(state, "clients_ms", kept.walk_ms - a->started_ms);
	json_add(state, "busiest_clients", clients_json());
	text = json_line(state, 0, &len);
	free(kept.state);
	kept.state = text && !json_object_object_get(state, "error") ? strdup(text) : NULL;
	kept.state_ms = clock_ms();
	json_object_put(state);
}

char *metrics_page_state(struct actions *a)
{
	char *text;

	pthread_mutex_lock(&kept.lock);
	if (!kept.state || clock_ms() - kept.state_ms >= STATE_MS)
		make_state(a);
	text = kept.state ? strdup(kept.state) : NULL;
	pthread_mutex_unlock(&kept.lock);
	return text;
}

char *metrics_page_html(struct actions *a)
{
	(void)a;
	return strdup(PAGE_HTML);
}
