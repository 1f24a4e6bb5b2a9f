// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the main thread accepts, and one thread of libmicrohttpd answers.  (That
 * would accept as well, but spins when it gets no descriptor.)  Counters are atomic words, of which
 * each worker writes its own; the thread adds them up.  A connection is closed after its answer, so
 * that a client holds no place until its next scrape.
 *
 * What the kernel has carried is in memory that BPF programs write, one place for each session.  A
 * worker adds the difference to its counters when a session ends (session_count_kernel()).  For
 * those that live, a scrape asks each worker to do the same, SLICE_SESSIONS at a time, between two
 * batches of events: 0.1 ms, less than a full batch takes.  Only the worker knows which session has
 * a place.  A worker that is busy may not get through in COUNT_MS.  Then the rest is counted by the
 * next scrape: such a counter is late, but never wrong, and never goes down.
 *
 * One text serves both formats.  They differ in the name that a counter has in its TYPE line, and
 * the client says in Accept whether it wants OpenMetrics.  Series are bounded by the configuration:
 * no label is a client's address, nor anything else that comes over the network.
 */
#include "daemon/metrics.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/syscalls_needed.h"
#include "daemon/control.h"
#include "relay/limits.h"
#include "relay/session_flow.h"
#include "version.h"

#define BACKLOG 16
#define CLIENTS 8U
#define CLIENT_S 10U /* to send a request, and to take the answer */
#define ACCEPT_PAUSE_MS 100 /* after a shortage of descriptors or memory */
#define COUNT_MS 10  /* for all workers together */
#define SLICE_SESSIONS 1024
#define SLICE_LOOKS 8192
#define LOCK_MS 2000 /* a reload may wait for a worker */

#define OPEN_METRICS "application/openmetrics-text"
#define TYPE_OPEN OPEN_METRICS "; version=1.0.0; charset=utf-8"
#define TYPE_PLAIN "text/plain; version=0.0.4; charset=utf-8"

SYSCALLS_NEEDED(
	SYSCALL(accept4),
	/* the thread names itself, if the filter overtakes it */
	SYSCALL_IF(PART_METRICS, prctl, SYSCALL_ARG(0, PR_SET_NAME)),
	SYSCALL_IF(PART_METRICS, recvfrom),
	SYSCALL_IF(PART_METRICS, sendto),
	SYSCALL_IF(PART_METRICS, sendmsg),
	SYSCALL_IF(PART_METRICS, setsockopt, SYSCALL_ARG(1, IPPROTO_TCP),
		   SYSCALL_ARG(2, TCP_NODELAY)),
	SYSCALL_IF(PART_METRICS, setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_CORK)),
	SYSCALL_IF(PART_METRICS, shutdown));

struct metrics {
	struct operate *operate;
	struct MHD_Daemon *http; /* NULL: not started */
	struct loop *loop;       /* the main thread's */
	struct source listener;
	struct timer resume;     /* accepting pauses until then */
	struct sockaddr_un un;   /* "": no file */
	uint64_t started_ms;     /* CLOCK_REALTIME */
	struct rlimit descriptors;
};

/* --- bytes of live sessions --- */

struct slice {
	struct worker *worker;
	uint32_t at; /* the next place: of sockmap, then of graft */
	bool done;
};

/* On the worker's thread. */
static void count_slice(void *arg)
{
	struct slice *sl = arg;
	struct worker *w = sl->worker;
	uint32_t pairs = w->owners ? kernel_pairs_total(w->shared->kernel) : 0;
	uint32_t end = pairs + (w->grafted ? grafts_total(w->shared->grafts) : 0);

	for (unsigned int n = 0, looks = 0;
	     sl->at < end && n < SLICE_SESSIONS && looks < SLICE_LOOKS; looks++) {
		uint32_t at = sl->at++;
		struct session *s = at < pairs ? w->owners[at] : w->grafted[at - pairs];

		if (!s)
			continue;
		session_count_kernel(s);
		n++;
	}
	sl->done = sl->at == end;
}

static void count_live(const struct threads *ts)
{
	uint64_t end_ms = clock_ms() + COUNT_MS, now_ms;

	for (unsigned int i = 0; i < ts->n; i++) {
		struct slice sl = { &ts->workers[i], 0, false };
		int r = 0;

		while (!r && !sl.done && (now_ms = clock_ms()) < end_ms) {
			r = loop_call(&sl.worker->loop, count_slice, &sl, (int)(end_ms - now_ms));
			if (r == -ESRCH) { /* its thread has ended, and touches nothing any more */
				count_slice(&sl);
				r = 0;
			}
		}
	}
}

/* --- the text --- */

struct shown {
	struct forward *forward;
	char label[2 * sizeof(((struct endpoint *)0)->text) + 16]; /* forward="..." */
};

struct body {
	FILE *f;
	bool open; /* OpenMetrics */
	struct shown *shown; /* owned */
	size_t n_shown;
};

/* Write VALUE as it stands between the quotes of a label. */
static void escape(FILE *f, const char *value)
{
	for (const char *c = value; *c; c++) {
		if (*c == '"' || *c == '\\')
			putc('\\', f);
		putc(*c < ' ' || *c > '~' ? '?' : *c, f);
	}
}

static void begin_family(const struct body *b, const char *name, const char *type, const char *help)
{
	const char *end = !b->open && !strcmp(type, "counter") ? "_total" : "";

	fprintf(b->f, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, end, help, name, end, type);
}

static void add_one(const struct body *b, const char *name, const char *type, const char *help,
		    uint64_t value)
{
	begin_family(b, name, type, help);
	fprintf(b->f, "%s%s %llu\n", name, strcmp(type, "counter") ? "" : "_total",
		(unsigned long long)value);
}

/* The sum over all workers of the counter that is AT bytes behind the beginning of their stats. */
static uint64_t sum_forward(const struct forward *f, size_t at)
{
	uint64_t n = 0;

	for (unsigned int w = 0; w < f->totals->n_workers; w++)
		n += count_get((counter *)((char *)&f->totals->stats[w] + at));
	return n;
}

static uint64_t sum_workers(const struct threads *ts, size_t at)
{
	uint64_t n = 0;

	for (unsigned int w = 0; w < ts->n; w++)
		n += count_get((counter *)((char *)&ts->workers[w].stats + at));
	return n;
}

static void add_histogram(const struct body *b, const char *name, const char *help, size_t at,
			  const uint64_t bounds_us[HISTOGRAM_BOUNDS])
{
	begin_family(b, name, "histogram", help);
	for (const struct shown *s = b->shown; s < b->shown + b->n_shown; s++) {
		uint64_t n = 0;

		for (unsigned int i = 0; i <= HISTOGRAM_BOUNDS; i++) {
			double le = i < HISTOGRAM_BOUNDS ? (double)bounds_us[i] / 1e6 : 0;
			char text[32] = "+Inf";

			n += sum_forward(s->forward, at + offsetof(struct histogram, n[i]));
			if (i < HISTOGRAM_BOUNDS) /* 1.0, and not 1, is what OpenMetrics wants */
				snprintf(text, sizeof(text), le < 1 ? "%g" : "%.1f", le);
			fprintf(b->f, "%s_bucket{%s,le=\"%s\"} %llu\n", name, s->label, text,
				(unsigned long long)n);
		}
		fprintf(b->f, "%s_sum{%s} %g\n%s_count{%s} %llu\n", name, s->label,
			(double)sum_forward(s->forward, at + offsetof(struct histogram, sum_us)) /
				1e6,
			name, s->label, (unsigned long long)n);
	}
}

static void add_sessions(const struct body *b)
{
	static const struct {
		const char *name, *help;
		size_t at;
	} counters[] = {
		{ "culvert_sessions_accepted", "Sessions that have begun.",
		  offsetof(struct forward_stats, accepted) },
		{ "culvert_sessions_finished", "Sessions that have ended, in whatever way.",
		  offsetof(struct forward_stats, finished) },
		{ "culvert_sessions_denied", "Clients that allow and deny have refused.",
		  offsetof(struct forward_stats, denied) },
	};

	begin_family(b, "culvert_sessions", "gauge", "Sessions that live.");
	for (const struct shown *s = b->shown; s < b->shown + b->n_shown; s++)
		fprintf(b->f, "culvert_sessions{%s} %u\n", s->label,
			atomic_load(&s->forward->totals->live));
	for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
		begin_family(b, counters[i].name, "counter", counters[i].help);
		for (const struct shown *s = b->shown; s < b->shown + b->n_shown; s++)
			fprintf(b->f, "%s_total{%s} %llu\n", counters[i].name, s->label,
				(unsigned long long)sum_forward(s->forward, counters[i].at));
	}
}

static void add_bytes(const struct body *b)
{
	begin_family(b, "culvert_bytes", "counter",
		     "Payload, by who sends it and what carries it.");
	for (const struct shown *s = b->shown; s < b->shown + b->n_shown; s++)
		for (unsigned int i = 0; i < 2 * CARRIERS; i++) {
			unsigned int dir = i / CARRIERS, c = i % CARRIERS;
			size_t at = offsetof(struct forward_stats, carried[dir][c]);

			fprintf(b->f,
				"culvert_bytes_total{%s,direction=\"%s\",carrier=\"%s\"} %llu\n",
				s->label, dir ? "upstream-to-client" : "client-to-upstream",
				carrier_name(c), (unsigned long long)sum_forward(s->forward, at));
		}
}

/* A line of the server of M, under the name NAME: VALUE. */
static void add_server(const struct body *b, const char *name, const struct shown *s,
		       const struct member *m, uint64_t value)
{
	fprintf(b->f, "%s{%s,server=\"", name, s->label);
	escape(b->f, m->server->name);
	fprintf(b->f, "\"} %llu\n", (unsigned long long)value);
}

static bool is_up(const struct member *m, uint64_t now_ms)
{
	struct addr_list *list = member_list(m);
	bool up = list->n && health_state(&m->server->health, now_ms) <= SERVER_RETURNING &&
		  !atomic_load(&m->server->refuses);

	addr_list_put(list);
	return up;
}

/* All that is told of the servers of forwards. */
static void add_servers(const struct body *b)
{
	static const struct {
		const char *name, *type, *help;
	} families[] = {
		{ "culvert_server_up", "gauge", "0: it gets no sessions, or the last one could not "
		  "connect to it." },
		{ "culvert_server_sessions", "gauge", "Sessions that it has." },
		{ "culvert_server_chosen", "counter", "Sessions that it was chosen for." },
		{ "culvert_server_failures", "counter", "Sessions that could not connect to it." },
	};
	uint64_t now_ms = clock_ms();

	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		bool counts = *families[i].type == 'c';
		char name[64];

		begin_family(b, families[i].name, families[i].type, families[i].help);
		snprintf(name, sizeof(name), "%s%s", families[i].name, counts ? "_total" : "");
		for (const struct shown *s = b->shown; s < b->shown + b->n_shown; s++) {
			struct servers *ss = &s->forward->servers;

			pthread_mutex_lock(ss->lock);
			for (const struct member *m = ss->members; m < ss->members + ss->n; m++) {
				const uint64_t values[] = { is_up(m, now_ms),
							    atomic_load(&m->server->live),
							    m->server->sessions,
							    m->server->failures };

				add_server(b, name, s, m, values[i]);
			}
			pthread_mutex_unlock(ss->lock);
		}
	}
}

static void add_lookups(const struct body *b)
{
	struct lookup_record record;
	struct upstream *u;

	for (int failures = 0; failures < 2; failures++) {
		begin_family(b, failures ? "culvert_lookup_failures" : "culvert_lookups", "counter",
			     failures ? "Look-ups of a server's name that found no address." :
					"Look-ups of a server's name that have ended.");
		for (const struct shown *s = b->shown; s < b->shown + b->n_shown; s++) {
			u = servers_first_name(&s->forward->servers);
			if (!u)
				continue;
			upstream_record(u, &record);
			fprintf(b->f, "culvert_lookup%s_total{%s} %llu\n",
				failures ? "_failures" : "s", s->label,
				(unsigned long long)(failures ? record.failures : record.lookups));
		}
	}
}

static void add_causes(const struct body *b, const struct threads *ts)
{
	begin_family(b, "culvert_errors", "counter",
		     "What went wrong, by the causes of culvert status and of the session log.");
	for (unsigned int c = 0; c < CAUSES; c++)
		fprintf(b->f, "culvert_errors_total{cause=\"%s\"} %llu\n", cause_name(c),
			(unsigned long long)sum_workers(ts, offsetof(struct stats, errors[c])));
	begin_family(b, "culvert_handovers", "counter",
		     "Flows that got a carrier, by the reasons of culvert sessions.");
	for (unsigned int i = 0; i < CARRIERS * REASONS; i++) {
		unsigned int to = i / REASONS, why = i % REASONS;
		uint64_t n = sum_workers(ts, offsetof(struct stats, handovers[to][why]));

		if (n) /* most pairs cannot be */
			fprintf(b->f,
				"culvert_handovers_total{carrier=\"%s\",reason=\"%s\"} %llu\n",
				carrier_name(to), reason_name(why), (unsigned long long)n);
	}
	begin_family(b, "culvert_handovers_failed", "counter",
		     "Flows that the kernel refused to carry, and that stayed where they were.");
	for (unsigned int why = 0; why < REASONS; why++) {
		uint64_t n =
			sum_workers(ts, offsetof(struct stats, handovers[HANDOVER_FAILED][why]));

		if (n)
			fprintf(b->f, "culvert_handovers_failed_total{reason=\"%s\"} %llu\n",
				reason_name(why), (unsigned long long)n);
	}
}

static void add_process(const struct body *b, const struct metrics *m)
{
	const struct operate *o = m->operate;
	struct shared *shared = o->reload->shared;
	struct kernel *k = shared->kernel;
	struct grafts *gs = shared->grafts;

	begin_family(b, "culvert_build_info", "gauge", "1; the labels tell what runs.");
	fprintf(b->f, "culvert_build_info{version=\"%s\"} 1\n", CULVERT_VERSION);
	add_one(b, "culvert_workers", "gauge", "Worker threads.", o->reload->threads.n);
	add_one(b, "culvert_sessions_limit", "gauge", "Sessions that may live: max-sessions.",
		shared->config->max_sessions);
	add_one(b, "culvert_kernel_memory_bytes", "gauge",
		"Bytes queued in the kernel that sockmap is charged for.",
		k ? kernel_memory(k) : 0);
	add_one(b, "culvert_kernel_memory_limit_bytes", "gauge", "Their limit: kernel-memory.",
		k ? kernel_memory_limit(k) : 0);
	add_one(b, "culvert_kernel_events_lost", "counter", "Events of sockmap that found no room.",
		k ? kernel_events_lost(k) : 0);
	begin_family(b, "culvert_carrier_available", "gauge",
		     "0: the kernel cannot, or no engine wants it.");
	fprintf(b->f,
		"culvert_carrier_available{carrier=\"sockmap\"} %d\n"
		"culvert_carrier_available{carrier=\"graft\"} %d\n",
		k != NULL, gs != NULL);
	begin_family(b, "process_start_time_seconds", "gauge",
		     "When the daemon has begun, since 1970.");
	fprintf(b->f, "process_start_time_seconds %llu.%03u\n",
		(unsigned long long)m->started_ms / 1000, (unsigned int)(m->started_ms % 1000));
	add_one(b, "process_open_fds", "gauge", "Descriptors that are open.",
		operate_descriptors(o));
	add_one(b, "process_max_fds", "gauge", "Descriptors that may be open.",
		m->descriptors.rlim_cur);
}

static bool is_shown(const struct body *b, const char *name)
{
	for (size_t i = 0; i < b->n_shown; i++)
		if (!strcmp(forward_name(b->shown[i].forward->conf), name))
			return true;
	return false;
}

/* Each name once, and active forwards come first.  Under the lock of forwards. */
static void choose_forwards(struct body *b, const struct forwards *all)
{
	for (struct forward *f = all->first; f; f = f->next) {
		const char *name = forward_name(f->conf);
		struct shown *s;
		FILE *label;

		if (f->state == FORWARD_REPLACED ||
		    (f->state == FORWARD_REMOVED && is_shown(b, name)))
			continue;
		b->shown = array_grow(b->shown, b->n_shown, sizeof(*b->shown));
		s = &b->shown[b->n_shown++];
		s->forward = f;
		label = fmemopen(s->label, sizeof(s->label), "w");
		fputs("forward=\"", label);
		escape(label, name);
		fputs("\"", label);
		fclose(label);
	}
}

/* The answer, owned by the caller; NULL: a reload or drain waits for a worker. */
static char *make_body(const struct metrics *m, bool open_metrics, size_t *ret_len)
{
	struct reload *l = m->operate->reload;
	struct timespec end = clock_timespec(clock_real_ms() + LOCK_MS);
	struct body b = { .open = open_metrics };
	char *text = NULL;

	count_live(&l->threads);
	if (pthread_mutex_timedlock(&l->forwards.lock, &end))
		return NULL;
	b.f = allocated(open_memstream(&text, ret_len));
	choose_forwards(&b, &l->forwards);
	add_process(&b, m);
	add_sessions(&b);
	add_bytes(&b);
	add_histogram(&b, "culvert_connect_duration_seconds",
		      "From accept(2), or the PROXY header, until the upstream has answered.",
		      offsetof(struct forward_stats, connects), connect_bounds_us);
	add_histogram(&b, "culvert_session_duration_seconds", "How long sessions have lived.",
		      offsetof(struct forward_stats, durations), duration_bounds_us);
	add_servers(&b);
	add_lookups(&b);
	add_causes(&b, &l->threads);
	pthread_mutex_unlock(&l->forwards.lock);
	fputs("# EOF\n", b.f);
	fclose(b.f);
	free(b.shown);
	return text;
}

/* --- HTTP --- */

static enum MHD_Result send_response(struct MHD_Connection *c, unsigned int status, char *text,
				     size_t len, enum MHD_ResponseMemoryMode mode, const char *type)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(len, text, mode);
	enum MHD_Result sent;

	if (!r)
		return MHD_NO;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	sent = MHD_queue_response(c, status, r);
	MHD_destroy_response(r);
	return sent;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned int status, const char *text)
{
	return send_response(c, status, (char *)text, strlen(text), MHD_RESPMEM_PERSISTENT,
			     "text/plain");
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_len, void **state)
{
	const char *accept =
		MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
	bool open_metrics = accept && strstr(accept, OPEN_METRICS);
	size_t len;
	char *text;

	(void)version, (void)upload, (void)upload_len, (void)state;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
	if (!strcmp(url, "/"))
		return say(c, MHD_HTTP_OK, "culvert: see /metrics\n");
	if (strcmp(url, "/metrics") != 0)
		return say(c, MHD_HTTP_NOT_FOUND, "see /metrics\n");
	text = make_body(arg, open_metrics, &len);
	if (!text)
		return say(c, MHD_HTTP_SERVICE_UNAVAILABLE,
			   "a worker does not answer; ask again\n");
	return send_response(c, MHD_HTTP_OK, text, len, MHD_RESPMEM_MUST_FREE,
			     open_metrics ? TYPE_OPEN : TYPE_PLAIN);
}

/* --- beginning and end --- */

static void on_client(struct source *source, uint32_t events)
{
	struct metrics *m = container_of(source, struct metrics, listener);
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	int fd = accept4(source->fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)events;
	if (fd >= 0) {
		MHD_add_connection(m->http, fd, (struct sockaddr *)&ss, len); /* or closes it */
	} else if (errno != EAGAIN) {
		loop_watch(m->loop, source, 0, false);
		timer_set(m->loop, &m->resume, m->loop->now_ms + ACCEPT_PAUSE_MS);
	}
}

static void on_resume(struct timer *timer)
{
	struct metrics *m = container_of(timer, struct metrics, resume);

	if (loop_watch(m->loop, &m->listener, EPOLLIN, true)) /* epoll has no memory */
		timer_set(m->loop, timer, m->loop->now_ms + ACCEPT_PAUSE_MS);
}

static int listen_inet(const struct endpoint *at, int *ret_fd)
{
	/* of both [::] and 0.0.0.0 the former, for both families */
	const struct addr *a = &at->addrs[at->n_addrs - 1];
	int one = 1, alone = at->n_addrs == 1, fd, r;

	fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (a->ss.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof(alone));
	r = bind(fd, (const struct sockaddr *)&a->ss, a->len) || listen(fd, BACKLOG) ? -errno : 0;
	if (r)
		close(fd);
	else
		*ret_fd = fd;
	return r;
}

int metrics_open(const struct endpoint *at, const struct account *account, struct metrics **ret,
		 char *err, size_t errlen)
{
	struct metrics *m = allocated(calloc(1, sizeof(*m)));
	int r;

	m->listener.handle = on_client;
	m->resume.fire = on_resume;
	if (endpoint_is_unix(at)) {
		memcpy(&m->un, &at->addrs[0].ss, at->addrs[0].len);
		r = control_bind(&m->un, at->addrs[0].len, account->uid, account->gid,
				 &m->listener.fd);
	} else {
		r = listen_inet(at, &m->listener.fd);
	}
	if (!r) {
		*ret = m;
		return 0;
	}
	snprintf(err, errlen, "metrics %s: %s", at->text, strerror(-r));
	free(m);
	return r;
}

int metrics_start(struct metrics *m, struct operate *o, struct loop *loop)
{
	m->operate = o;
	m->loop = loop;
	m->started_ms = clock_real_ms() - (clock_ms() - o->started_ms);
	getrlimit(RLIMIT_NOFILE, &m->descriptors);
	m->http = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET |
				   MHD_USE_ITC, 0, NULL, NULL, answer, m,
				   MHD_OPTION_CONNECTION_LIMIT, CLIENTS,
				   MHD_OPTION_CONNECTION_TIMEOUT, CLIENT_S, MHD_OPTION_END);
	if (!m->http)
		return -(errno ?: EIO);
	return loop_watch(loop, &m->listener, EPOLLIN, true);
}

void metrics_close(struct metrics *m)
{
	if (!m)
		return;
	/* first: once it is closed, the file may be that of the next daemon */
	if (m->un.sun_path[0])
		unlink(m->un.sun_path);
	if (m->http)
		MHD_stop_daemon(m->http);
	close(m->listener.fd);
	free(m);
}
