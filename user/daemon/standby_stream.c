// SPDX-License-Identifier: BSD-2-Clause
/* All of this runs on the thread of an export or an import. */
#include "daemon/standby_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"

#define BEGIN_MS 2000 /* for the thread that reloads to begin its looks */

void stream_lock(struct standby *sb)
{
	pthread_mutex_lock(&sb->service->forwards.lock);
	pthread_mutex_lock(&sb->lock);
}

void stream_unlock(struct standby *sb)
{
	pthread_mutex_unlock(&sb->lock);
	pthread_mutex_unlock(&sb->service->forwards.lock);
}

/* Count exports in sync: without any, sessions show "no standby". */
static void stream_count(struct standby *sb)
{
	unsigned int readers = 0;

	for (struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++)
		readers += s->is_open && !s->is_import && s->synced_ms;
	if (atomic_exchange(&sb->service->shared->standbys, readers) && !readers)
		atomic_store(&sb->service->shared->standbys_ms, clock_ms());
}

/* --- opening, closing --- */

void stream_enter(struct stream *s, enum stream_phase phase)
{
	const char *kind = s->is_import ? "import " : "an export";
	bool was_synced = s->synced_ms;

	stream_lock(s->sb);
	s->is_open = phase != STREAM_CLOSED;
	s->last_ms = clock_ms();
	s->synced_ms = phase == STREAM_IN_SYNC ? s->last_ms : 0;
	stream_count(s->sb);
	standby_mark_ports(s->sb);
	stream_unlock(s->sb);
	/* no message for each new try: a peer may be away for days */
	if (phase == STREAM_IN_SYNC)
		log_info("standby: %s%s is in sync", kind, s->name);
	else if (was_synced)
		log_warning("standby: %s%s has ended", kind, s->name);
}

struct stream *stream_open(struct standby *sb, const struct control *c, int fd, const char *name)
{
	uint32_t n = grafted_places(sb->grafts);
	struct stream new = { .sb = sb,
			      .control = c,
			      .fd = fd,
			      .is_import = name,
			      .origin = name ? graft_tag(name) | 1 : 0, /* 0 is none */
			      .known = calloc(BITS_WORDS(n), sizeof(*new.known)),
			      .exported = name ? NULL : calloc(n, sizeof(*new.exported)),
			      .keys = name ? NULL : calloc(n, sizeof(*new.keys)) };
	bool ready = new.known && (name || (new.exported &&new.keys));
	struct stream *s = sb->streams;

	snprintf(new.name, sizeof(new.name), "%s", name ?: "");
	pthread_mutex_lock(&sb->lock);
	while (s < sb->streams + STREAMS_MAX && s->known)
		s++;
	ready = ready && s < sb->streams + STREAMS_MAX;
	if (ready)
		*s = new;
	pthread_mutex_unlock(&sb->lock);
	if (!ready) {
		free(new.known);
		free(new.exported);
		free(new.keys);
		log_warning("standby: no memory, or more than %d exports and imports", STREAMS_MAX);
		return NULL;
	}
	stream_enter(s, STREAM_DUMPS);
	loop_call(&sb->service->loop, standby_begin_looks, sb, BEGIN_MS);
	return s;
}

void stream_close(struct stream *s)
{
	stream_enter(s, STREAM_CLOSED);
	pthread_mutex_lock(&s->sb->lock);
	free(s->keys); /* under the lock: imports write to it */
	s->keys = NULL;
	free(s->exported);
	s->exported = NULL;
	free(s->known);
	s->known = NULL; /* last: another stream may use S now */
	pthread_mutex_unlock(&s->sb->lock);
}

/* --- records that come --- */

#define READ_MAX 65536 /* bytes at once */

/* The stream of NAME ends at byte AT, and WHY is the fault. */
static void stream_refuse(const struct control *c, int fd, const char *name, uint64_t at,
			  const char *why)
{
	struct json_object *o = request_error_json(ERROR_MALFORMED,
						   "import %s: the record at byte %llu: %s", name,
						   (unsigned long long)at, why);
	size_t len;
	const char *text = json_line(o, JSON_C_TO_STRING_PLAIN, &len);

	log_warning("standby: import %s: the record at byte %llu: %s", name, (unsigned long long)at,
		    why);
	if (text)
		control_send(c, fd, DEAF_MS, text, len);
	json_object_put(o);
}

/* Take the whole records of the LEN bytes at P.  *AT: the first byte that is not taken. */
static const char *stream_take(const uint8_t *p, size_t len, size_t *at, stream_take_fn *take,
			       void *arg)
{
	struct graft_record r;
	const char *why = NULL, *fault = NULL;
	int took = 0;

	for (*at = 0;
	     !fault && (took = record_unpack(p + *at, len - *at, clock_ns(), &r, &why)) > 0;
	     *at += fault ? 0 : (size_t)took)
		fault = take(arg, &r, why);
	return fault ?: took < 0 ? why : NULL;
}

void stream_read(const struct control *c, int fd, const char *name, stream_take_fn *take, void *arg)
{
	uint8_t *buffer = malloc(READ_MAX);
	const char *why = buffer ? NULL : "no memory";
	size_t len = 0, at;
	uint64_t bytes = 0;
	int ready = 1;

	/* before its first record an import hinders no session, and ssh may ask for a password */
	while (!why && (ready = control_wait(c, fd, bytes ? DEAF_MS : -1)) > 0) {
		ssize_t n = recv(fd, buffer + len, READ_MAX - len, MSG_DONTWAIT);

		if (n <= 0 && len)
			why = "the stream ended within it";
		if (n <= 0)
			break;
		len += (size_t)n;
		if (!bytes && *buffer != RECORD_BEGIN) {
			why = "not what `culvert export` begins with";
			break;
		}
		why = stream_take(buffer, len, &at, take, arg);
		bytes += at;
		len -= at;
		memmove(buffer, buffer + at, len);
	}
	if (!ready)
		why = "nothing came for 10 s";
	if (why)
		stream_refuse(c, fd, name, bytes, why);
	free(buffer);
}
