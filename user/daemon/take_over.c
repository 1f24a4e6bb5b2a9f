// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/take_over.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/control_requests.h"
#include "daemon/bundle.h"
#include "relay/admission.h"
#include "relay/session_life.h"
#include "relay/session_record.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_record.h"

#define ANSWER_MS 5000

struct take_over {
	int fd;    /* to the other daemon */
	pid_t pid; /* of it */
	int pins;
	uint64_t began_ns; /* when the other daemon's workers began to wait, about */
	unsigned int sessions, refused;
	struct bundle refusals;
};

static int take_fault(const char *what, int e)
{
	return log_complain(e, "take-over: %s: %s", what, strerror(-e));
}

/* --- before this daemon comes up --- */

static void take_begin(struct take_over *t, const struct hand_record *r)
{
	struct codec c = { .at = (uint8_t *)r->bytes, .end = (uint8_t *)r->bytes + r->len };
	bool same;

	t->pid = (pid_t)codec_number(&c, 0, 4);
	same = codec_number(&c, 0, 2) == GRAFT_LAYOUT;
	if (!r->n_fds)
		return;
	if (same)
		t->pins = r->fds[0];
	else
		close(r->fds[0]);
}

static int take_listening(const struct hand_record *r)
{
	struct codec c = { .at = (uint8_t *)r->bytes, .end = (uint8_t *)r->bytes + r->len };
	struct handed_socket h = { .n = (unsigned int)r->n_fds };

	CODEC_FIELD(&c, h.udp, 1);
	CODEC_FIELD(&c, h.shared, 1);
	CODEC_FIELD(&c, h.given, 1);
	for (int i = 0; i < 2; i++) {
		struct addr *a = i ? &h.addr : &h.asked;

		CODEC_FIELD(&c, a->len, 2);
		if (a->len > sizeof(a->ss))
			return -EPROTO;
		codec_bytes(&c, &a->ss, (int)a->len);
	}
	if (c.is_short || r->n_fds > WORKERS_MAX)
		return -EPROTO;
	memcpy(h.fds, r->fds, r->n_fds * sizeof(int));
	return handed_put(&h);
}

static int take_connect(const char *path)
{
	static const char ask[] = "{\"command\":\"take-over\"}\n";
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const struct timeval patience = { .tv_sec = ANSWER_MS / 1000 };
	struct json_object *answer, *error;
	char line[1024];
	size_t n = 0;
	int e;

	if (fd < 0)
		return -errno;
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)) ||
	    send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) < 0) {
		e = -errno;
		close(fd);
		return e;
	}
	/* the answer, byte by byte: records follow */
	while (n < sizeof(line) - 1 && recv(fd, line + n, 1, 0) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
	answer = request_json(line);
	error = json_object_object_get(answer, "error");
	if (answer && !error)
		e = fd;
	else
		e = log_complain(
			-EPERM, "take-over: %s: %s", path,
			error ? json_object_get_string(json_object_object_get(error, "message")) :
				"no answer");
	json_object_put(answer);
	if (e < 0)
		close(fd);
	return e;
}

int take_over_begin(const char *path, struct take_over **ret)
{
	struct take_over *t = allocated(calloc(1, sizeof(*t)));
	struct bundle b = { 0 };
	struct hand_record r;
	int e = 0;

	t->fd = take_connect(path);
	if (t->fd < 0) {
		e = t->fd;
		free(t);
		return e == -EPERM ? e : take_fault(path, e);
	}
	e = bundle_receive(&b, t->fd, ANSWER_MS);
	while (!e && bundle_get(&b, &r))
		if (r.kind == HAND_BEGIN)
			take_begin(t, &r);
		else if (r.kind == HAND_LISTEN)
			e = take_listening(&r);
	bundle_free(&b, true);
	*ret = t;
	return e ? take_fault(path, e) : 0;
}

int take_over_pins(struct take_over *t)
{
	return t ? t->pins : 0;
}

/* --- sessions --- */

static void take_refuse(struct take_over *t, uint64_t id, const struct hand_record *from)
{
	uint8_t buf[8];
	struct codec c = { .at = buf, .end = buf + sizeof(buf), .packs = true };

	for (size_t i = 0; i < from->n_fds; i++)
		close(from->fds[i]);
	codec_number(&c, id, sizeof(buf));
	bundle_put(&t->refusals, HAND_REFUSED, buf, sizeof(buf), 0, NULL, 0);
	t->refused++;
}

static int take_session(struct take_over *t, struct threads *ts, const struct forwards *all,
			const struct hand_record *from)
{
	struct codec c = { .at = (uint8_t *)from->bytes,
			   .end = (uint8_t *)from->bytes + from->len,
			   .now_ns = clock_ns() };
	struct worker *w = &ts->workers[t->sessions % ts->n];
	int fds[2] = { -1, -1 };
	const uint8_t *bytes[2];
	struct session_record r = { 0 };
	struct forward *f;
	int e;

	session_record_code(&c, &r);
	if (r.slot != NO_GRAFT && (!t->pins || r.slot >= graft_table_total(w->shared->grafts)))
		r.slot = NO_GRAFT;
	if (c.is_short || from->n_fds != (r.open ? 2 : 1) ||
	    (uint64_t)(c.end - c.at) < (uint64_t)r.flows[0].pending + r.flows[1].pending)
		return -EPROTO;
	memcpy(fds, from->fds, from->n_fds * sizeof(int));
	bytes[0] = c.at;
	bytes[1] = c.at + r.flows[0].pending;
	f = forward_with_tag(all, r.forward);
	e = !f ? -ENOENT : admission_enter(w->shared, f) != CAUSE_NONE ? -EUSERS : 0;
	if (!e && (!r.has_told || r.admitted) &&
	    admission_enter_client(w->shared, f, &r.client, true) != CAUSE_NONE) {
		admission_leave(w->shared, f, NULL);
		e = -EUSERS;
	}
	if (!e && session_take(w, f, &r, fds, bytes)) {
		admission_leave(w->shared, f, !r.has_told || r.admitted ? &r.client : NULL);
		e = -ENOMEM;
	}
	if (e)
		take_refuse(t, r.id, from);
	else
		t->sessions++;
	return 0;
}

static int take_udp_session(struct take_over *t, struct threads *ts, const struct forwards *all,
			    const struct hand_record *from)
{
	struct codec c = { .at = (uint8_t *)from->bytes,
			   .end = (uint8_t *)from->bytes + from->len,
			   .now_ns = clock_ns() };
	struct udp_record r = { 0 };
	struct worker *w;
	struct forward *f;
	int e;

	udp_record_code(&c, &r);
	if (c.is_short || from->n_fds != 1)
		return -EPROTO;
	w = &ts->workers[udp_worker(&r.peer, ts->n)];
	f = forward_with_tag(all, r.forward);
	e = f && f->conf->listen.udp &&
			    admission_enter_with(w->shared, f, &r.client, false) == CAUSE_NONE ?
		    0 :
		    -ENOENT;
	if (!e) {
		e = udp_session_take_over(w, f, &r, from->fds[0]);
		if (e == -ENOENT) /* the first worker serves a shared socket */
			e = udp_session_take_over(ts->workers, f, &r, from->fds[0]);
		if (e)
			admission_leave(w->shared, f, &r.client);
	}
	if (e)
		take_refuse(t, r.id, from);
	else
		t->sessions++;
	return 0;
}

static void take_server(const struct forwards *all, const struct hand_record *from)
{
	struct codec c = { .at = (uint8_t *)from->bytes,
			   .end = (uint8_t *)from->bytes + from->len };
	struct forward *f = forward_with_tag(all, (uint32_t)codec_number(&c, 0, 4));
	char name[SERVER_NAME_LEN], error[SERVER_ERROR_LEN];
	struct health health = { .order = ORDER_READY };

	codec_text(&c, name, sizeof(name));
	health_code(&c, &health, clock_ms());
	codec_text(&c, error, sizeof(error));
	if (f)
		servers_take(&f->servers, name, &health, error);
}

static int take_all(struct take_over *t, struct threads *ts, const struct forwards *all,
		    struct bundle *b)
{
	struct hand_record r;
	int e = 0;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		w->loop.now_ms = clock_ms();
	while (!e && bundle_get(b, &r))
		if (r.kind == HAND_SESSION)
			e = take_session(t, ts, all, &r);
		else if (r.kind == HAND_UDP_SESSION)
			e = take_udp_session(t, ts, all, &r);
		else if (r.kind == HAND_SERVER)
			take_server(all, &r);
	return e;
}

int take_over_sessions(struct take_over *t, struct threads *ts, const struct forwards *all)
{
	struct bundle b = { 0 };
	int e = bundle_send(&b, t->fd, ANSWER_MS);

	t->began_ns = clock_ns();
	e = e ?: bundle_receive(&b, t->fd, ANSWER_MS);
	e = e ?: take_all(t, ts, all, &b);
	bundle_free(&b, true);
	e = e ?: bundle_send(&t->refusals, t->fd, ANSWER_MS);
	if (e)
		return take_fault("sessions", e);
	e = bundle_receive(&b, t->fd, ANSWER_MS);
	bundle_free(&b, true);
	/* a daemon that has died meanwhile has closed all, too */
	if (e && (kill(t->pid, 0) == 0 || errno != ESRCH))
		return take_fault("the other daemon has taken its sessions back", e);
	return 0;
}

void take_over_end(struct take_over *t)
{
	if (!t)
		return;
	log_info("%u sessions are taken over; they have waited for %.1f ms%s", t->sessions,
		 (double)(clock_ns() - t->began_ns) / NS_PER_MS,
		 t->refused ? ", and some stay at the other daemon" : "");
	bundle_free(&t->refusals, false);
	close(t->fd);
	free(t);
}
