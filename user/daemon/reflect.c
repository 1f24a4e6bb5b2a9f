// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the last record of each session of each relay is kept, in the order of arrival.
 * An export has a mark behind the record that it has sent last; RECORD_RELAY before a record says whose
 * it is.  RECORD_SYNC is of one relay, too.  An end stays as a record for a while, so that all exports
 * see it.  A relay that is not heard any more loses its records.
 *
 * Streams have threads of the control socket, and share one lock.
 */
#include "daemon/reflect.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "config/config.h"
#include "daemon/control_socket.h"
#include "daemon/standby_stream.h"
#include "datapath/graft/standby_record.h"

#define BUCKETS 65536
#define LOOK_MS 50
#define ALIVE_MS 1000
#define HEARD_MS 1500 /* a relay that is not heard for this time is not told as alive; */
#define TOLD_MS 2500  /* for this time: new clients are not told of its records; */
#define LOST_MS 60000 /* for this time: its records are dropped */
#define KEPT_MS 15000 /* an end, or word of a helper, stays for this time */
#define KEPT_MAX (1U << 20)

struct kept {
	TAILQ_ENTRY(kept) in_order;
	LIST_ENTRY(kept) in_bucket;
	uint32_t origin;
	uint64_t number, since_ms;
	struct graft_record r;
};

struct relay {
	uint32_t tag; /* 0: there is none */
	char name[RECORD_NAME_MAX];
	uint64_t heard_ms;
	uint64_t synced; /* the number of its RECORD_SYNC; 0: its dump has not ended */
};

static struct {
	pthread_mutex_t lock;
	LIST_HEAD(kept_bucket, kept) buckets[BUCKETS];
	TAILQ_HEAD(kept_order, kept) order;
	uint64_t number, n, swept_ms;
	struct relay relays[STREAMS_MAX];
	_Atomic unsigned int exports, imports;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* --- records, under the lock --- */

/* Records of one class replace each other. */
static int class_of(const struct graft_record *r)
{
	if (r->kind == RECORD_FORWARD || r->kind == RECORD_HEARD || r->kind == RECORD_END)
		return (int)r->kind;
	return record_is_end(r) || record_is_tcp(r) || record_is_udp(r) ? RECORD_TCP : 0;
}

static struct graft_tuple tuple_of(struct graft_record *r)
{
	if (r->kind == RECORD_FORWARD)
		return (struct graft_tuple){ .remote.w[0] = r->named.tag };
	return record_is_short(r) ? r->client : record_leg(r, 0)->tuple;
}

static bool is_of_udp(const struct graft_record *r)
{
	return record_is_short(r) ? r->udp : record_is_udp(r);
}

static uint64_t id_of(const struct graft_record *r)
{
	return record_is_short(r) ? r->id : r->head.id;
}

static bool is_same(struct graft_record *a, struct graft_record *b)
{
	struct graft_tuple x, y;

	if (class_of(a) != class_of(b))
		return false;
	x = tuple_of(a);
	y = tuple_of(b);
	/* the end of an earlier session of the tuple may come after the later session */
	return !memcmp(&x, &y, sizeof(x)) && is_of_udp(a) == is_of_udp(b) &&
	       ((!record_is_short(a) && !record_is_short(b)) || id_of(a) == id_of(b));
}

static struct kept_bucket *bucket_of(struct graft_record *r)
{
	struct graft_tuple t = tuple_of(r);

	return &all.buckets[graft_hash(&t, 0) % BUCKETS];
}

static void drop(struct kept *k)
{
	TAILQ_REMOVE(&all.order, k, in_order);
	LIST_REMOVE(k, in_bucket);
	free(k);
	all.n--;
}

static void keep(uint32_t origin, struct graft_record *r)
{
	struct kept_bucket *b = bucket_of(r);
	struct kept *k;

	LIST_FOREACH(k, b, in_bucket)
		if (k->origin == origin && is_same(&k->r, r))
			break;
	if (k) {
		TAILQ_REMOVE(&all.order, k, in_order);
	} else {
		k = allocated(calloc(1, sizeof(*k)));
		k->origin = origin;
		LIST_INSERT_HEAD(b, k, in_bucket);
		all.n++;
	}
	k->r = *r;
	k->number = ++all.number;
	k->since_ms = clock_ms();
	TAILQ_INSERT_TAIL(&all.order, k, in_order);
}

static struct relay *relay_of(uint32_t tag)
{
	for (struct relay *r = all.relays; r < all.relays + STREAMS_MAX; r++)
		if (r->tag == tag)
			return r;
	return NULL;
}

/* Forget old ends, and relays that are gone. */
static void sweep(void)
{
	struct kept *k, *next;
	uint64_t now = clock_ms();

	if (now - all.swept_ms < ALIVE_MS) /* each export asks */
		return;
	all.swept_ms = now;
	for (struct relay *r = all.relays; r < all.relays + STREAMS_MAX; r++)
		if (r->tag && now - r->heard_ms > LOST_MS)
			*r = (struct relay){ 0 };
	for (k = TAILQ_FIRST(&all.order); k; k = next) {
		next = TAILQ_NEXT(k, in_order);
		if (k->origin && (!relay_of(k->origin) ||
				  (record_is_short(&k->r) && now - k->since_ms > KEPT_MS)))
			drop(k);
	}
}

/* --- imports --- */

/*
 * All of a relay's dump has come.  That relay has no session that was not in it, and cannot say how the
 * session ended.  BEGAN: the number before the dump.
 */
static void take_sync(uint32_t origin, uint64_t began)
{
	struct kept *k, *next;

	for (k = TAILQ_FIRST(&all.order); k && k->number <= began; k = next) {
		struct graft_record left = { .kind = RECORD_LEFT };

		next = TAILQ_NEXT(k, in_order);
		if (k->origin != origin)
			continue;
		if (!record_is_tcp(&k->r) && !record_is_udp(&k->r)) {
			drop(k);
			continue;
		}
		left.udp = is_of_udp(&k->r);
		left.client = tuple_of(&k->r);
		left.id = id_of(&k->r);
		keep(origin, &left);
	}
}

/* Dumps have left the records of RELAY out, because it was not heard: tell all clients again. */
static void take_again(struct relay *relay)
{
	struct kept *k, *next;
	uint64_t last = all.number;

	for (k = TAILQ_FIRST(&all.order); k && k->number <= last; k = next) {
		next = TAILQ_NEXT(k, in_order);
		if (k->origin != relay->tag)
			continue;
		TAILQ_REMOVE(&all.order, k, in_order);
		TAILQ_INSERT_TAIL(&all.order, k, in_order);
		k->number = ++all.number;
	}
	relay->synced = ++all.number;
}

struct taking {
	struct relay *relay;
	uint64_t began;
};

static const char *take(struct taking *t, struct graft_record *r)
{
	if (r->kind == RECORD_BEGIN || r->kind == RECORD_NONE)
		return NULL;
	if (r->kind == RECORD_RELAY) {
		if (t->relay)
			return "a reflector's stream, or two relays in one";
		t->relay = relay_of(r->named.tag) ?: relay_of(0);
		if (!t->relay || !r->named.tag)
			return "too many relays";
		t->relay->tag = r->named.tag;
		t->relay->synced = 0;
		memcpy(t->relay->name, r->named.name, RECORD_NAME_MAX);
		t->began = all.number;
	}
	if (!t->relay)
		return "its relay has no name: set `relay`";
	if (t->relay->synced && clock_ms() - t->relay->heard_ms >= TOLD_MS)
		take_again(t->relay);
	t->relay->heard_ms = clock_ms();
	if (r->kind == RECORD_SYNC) {
		take_sync(t->relay->tag, t->began);
		t->relay->synced = ++all.number;
	} else if (class_of(r)) {
		if (all.n >= KEPT_MAX)
			return "too many records";
		keep(t->relay->tag, r);
	}
	return NULL;
}

static const char *take_locked(void *arg, struct graft_record *r, const char *why)
{
	const char *fault;

	(void)why; /* one wrong record is left out */
	pthread_mutex_lock(&all.lock);
	fault = take(arg, r);
	pthread_mutex_unlock(&all.lock);
	return fault;
}

/* --- exports --- */

struct sending {
	const struct control *control;
	int fd;
	struct kept mark; /* in all.order, behind the last record sent; its kind is RECORD_NONE */
	uint64_t synced;  /* of all.number: RECORD_SYNC of relays that was sent */
	uint32_t origin;  /* of the last record sent */
	size_t len;
	uint8_t *buffer;
};

static void send_put(struct sending *s, struct graft_record *r)
{
	s->len += record_pack(r, clock_ns(), s->buffer + s->len);
}

static void send_relay(struct sending *s, const struct relay *relay)
{
	struct graft_record r = { .kind = RECORD_RELAY };

	if (s->origin == relay->tag)
		return;
	s->origin = relay->tag;
	r.named.tag = relay->tag;
	memcpy(r.named.name, relay->name, RECORD_NAME_MAX);
	send_put(s, &r);
}

static bool send_flush(struct sending *s)
{
	int e = s->len ? control_send(s->control, s->fd, DEAF_MS, (char *)s->buffer, s->len) : 0;

	s->len = 0;
	return !e;
}

/* All records have been sent: tell which relays are in sync. */
static void send_syncs(struct sending *s)
{
	struct graft_record r = { .kind = RECORD_SYNC };

	for (const struct relay *relay = all.relays; relay < all.relays + STREAMS_MAX; relay++)
		if (relay->tag && relay->synced > s->synced &&
		    clock_ms() - relay->heard_ms < TOLD_MS) {
			send_relay(s, relay);
			send_put(s, &r);
		}
	s->synced = all.number;
}

/*
 * Send the records behind the mark.  The client's dump began at number BEGAN: the dump leaves out ends, and
 * records of dead relays.  False: the client takes nothing.
 */
static bool send_all(struct sending *s, uint64_t began)
{
	struct kept *k;

	do {
		pthread_mutex_lock(&all.lock);
		while ((k = TAILQ_NEXT(&s->mark, in_order)) && s->len < 60000) {
			const struct relay *relay = k->origin ? relay_of(k->origin) : NULL;

			TAILQ_REMOVE(&all.order, &s->mark, in_order);
			TAILQ_INSERT_AFTER(&all.order, k, &s->mark, in_order);
			/* what a dead relay had is held, owned or over: living ones tell which */
			if (!relay ||
			    (k->number <= began &&
			     (record_is_short(&k->r) || clock_ms() - relay->heard_ms >= TOLD_MS)))
				continue;
			send_relay(s, relay);
			send_put(s, &k->r);
		}
		if (!k)
			send_syncs(s);
		pthread_mutex_unlock(&all.lock);
	} while (k && send_flush(s));
	return send_flush(s);
}

static bool send_alive(struct sending *s)
{
	struct graft_record r = { .kind = RECORD_ALIVE };

	pthread_mutex_lock(&all.lock);
	sweep();
	for (const struct relay *relay = all.relays; relay < all.relays + STREAMS_MAX; relay++)
		if (relay->tag && clock_ms() - relay->heard_ms < HEARD_MS) {
			send_relay(s, relay);
			send_put(s, &r);
		}
	if (!s->len) { /* ALIVE would be word of the last relay */
		r.kind = RECORD_BEGIN;
		send_put(s, &r);
	}
	pthread_mutex_unlock(&all.lock);
	return send_flush(s);
}

static void export_stream(const struct control *c, int fd)
{
	struct sending s = { .control = c, .fd = fd, .buffer = allocated(malloc(65536)) };
	struct graft_record r = { .kind = RECORD_BEGIN };
	uint64_t alive_ms = clock_ms(), began;
	bool ok;

	pthread_mutex_lock(&all.lock);
	TAILQ_INSERT_HEAD(&all.order, &s.mark, in_order);
	began = all.number;
	pthread_mutex_unlock(&all.lock);
	send_put(&s, &r);
	ok = send_alive(&s) && send_all(&s, began);
	if (!s.origin) { /* there are no relays yet */
		r.kind = RECORD_SYNC;
		send_put(&s, &r);
	}
	while (ok && send_flush(&s) && !control_wait(c, fd, LOOK_MS) && send_all(&s, began)) {
		if (clock_ms() - alive_ms < ALIVE_MS)
			continue;
		alive_ms = clock_ms();
		ok = send_alive(&s);
	}
	pthread_mutex_lock(&all.lock);
	TAILQ_REMOVE(&all.order, &s.mark, in_order);
	pthread_mutex_unlock(&all.lock);
	free(s.buffer);
}

/* --- the process --- */

static struct json_object *answer(void *arg, const struct request *req)
{
	enum command_id id = command_number(req->command);
	bool streams = id == COMMAND_EXPORT || id == COMMAND_IMPORT;
	struct json_object *o, *list;

	(void)arg;
	if (!streams && id != COMMAND_STATUS)
		return request_error_json(ERROR_UNSUPPORTED, "a reflector has no such command");
	if (streams && all.exports + all.imports >= 2 * STREAMS_MAX)
		return request_error_json(ERROR_FAILED,
					  "%d exports and imports run already, which is the most",
					  2 * STREAMS_MAX);
	o = json_object_new_object();
	if (streams) {
		json_add_text(o, "stream", req->command->name);
		return o;
	}
	list = json_object_new_array();
	pthread_mutex_lock(&all.lock);
	json_add_int(o, "records", all.n);
	json_add_int(o, "imports", all.imports);
	json_add_int(o, "exports", all.exports);
	for (const struct relay *r = all.relays; r < all.relays + STREAMS_MAX; r++) {
		struct json_object *one;

		if (!r->tag)
			continue;
		one = json_object_new_object();
		json_add_text(one, "name", r->name);
		json_add_bool(one, "in_sync", r->synced);
		json_add_int(one, "heard_ms", clock_ms() - r->heard_ms);
		json_append(list, one);
	}
	pthread_mutex_unlock(&all.lock);
	json_add(o, "relays", list);
	return o;
}

static void stream(void *arg, const struct control *c, const struct request *req, int fd)
{
	enum command_id id = command_number(req->command);
	bool exports = id == COMMAND_EXPORT;
	_Atomic unsigned int *n = exports ? &all.exports : &all.imports;

	(void)arg;
	if (!exports && id != COMMAND_IMPORT)
		return;
	atomic_fetch_add(n, 1);
	if (exports)
		export_stream(c, fd);
	else
		stream_read(c, fd, req->values[KEY_NAME].text ?: "", take_locked,
			    &(struct taking){ .relay = NULL });
	atomic_fetch_sub(n, 1);
}

/* Read "--control PATH" and "--user NAME" from ARGV.  -EINVAL, after a complaint. */
static int read_words(int argc, char **argv, const char **ret_control, const char **ret_user)
{
	*ret_control = CONFIG_CONTROL_DEFAULT;
	for (int i = 1; i < argc; i += 2) {
		const char **to = !strcmp(argv[i], "--control") ? ret_control :
				  !strcmp(argv[i], "--user")    ? ret_user :
								  NULL;

		if (!to || i + 1 == argc)
			return log_complain(
				-EINVAL, "%s: unknown option, or one that needs a value", argv[i]);
		*to = argv[i + 1];
	}
	return 0;
}

int reflect_run(int argc, char **argv)
{
	const char *path, *user = NULL;
	struct account account;
	struct control *control;
	sigset_t set;
	int sig;

	if (read_words(argc, argv, &path, &user) || account_find(user, &account))
		return EXIT_CODE_USAGE;
	TAILQ_INIT(&all.order);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (control_open(path, account.uid, account.gid, &control))
		return EXIT_CODE_FAILURE;
	if (sandbox_enter(&account, 0))
		return EXIT_CODE_UNSUPPORTED;
	if (control_start(control, answer, stream, 2 * STREAMS_MAX, NULL))
		return log_failure(EXIT_CODE_FAILURE, "cannot start the threads");
	log_info("culvert: ready, reflects records at %s", path);
	sigwait(&set, &sig);
	control_close(control, false);
	return EXIT_CODE_OK;
}
