// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a few threads serve one client at a time each, as those of the control
 * socket do (control_socket.c).  Counters are atomic words, of which each worker writes its own; a scrape
 * adds them up.  A connection is closed after its answer, and the whole time of a client is
 * bounded, so that slow ones cannot keep a scrape out.  An answer that is no page needs no memory.
 *
 * What the kernel has carried is in memory that BPF programs write, one place for each session.  A
 * worker adds the difference to its counters when a session ends (session_count_kernel()).  For
 * those that live, a scrape asks each worker to do the same between two batches of events.  If one
 * does not answer in time, its sessions are counted by the next scrape: such a counter is late, but
 * never wrong, and never goes down.
 *
 * One table, families, makes the text.  Series are bounded by the configuration: no label is a
 * client's address, nor anything else that comes over the network.
 */
#include "daemon/metrics.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "daemon/control_socket.h"
#include "relay/admission.h"
#include "relay/session_view.h"
#include "version.h"

#define REQUEST_MAX 8192 /* bytes of its head */
#define REQUEST_MS 1000
#define ANSWER_MS 3000 /* and one more for each kilobyte */
#define COUNT_MS 20    /* for a worker to begin */

#define CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define ABOUT "culvert: metrics are at /metrics\n"

struct metrics {
	struct operate *operate;
	struct control *server;
	uint64_t started_ms; /* CLOCK_REALTIME */
	struct rlimit descriptors;
};

/* --- bytes of live sessions --- */

/* On the worker's thread. */
static void count_sessions(void *arg)
{
	struct worker *w = arg;

	for (struct session *s = w->sessions; s; s = s->next)
		session_count_kernel(s);
}

/* A worker that does not answer in time is left out. */
static void count_live(const struct threads *ts)
{
	for (unsigned int i = 0; i < ts->n; i++)
		loop_call(&ts->workers[i].loop, count_sessions, &ts->workers[i], COUNT_MS);
}

/* --- the text --- */

struct scrape {
	const struct metrics *metrics;
	FILE *out;
	bool *failed; /* something could not be written: a memory stream has no error flag */
	const struct family *family; /* which is being written */
};

/* Metrics of one name. */
struct family {
	const char *name, *type, *help;
	/* adds its samples: of F, for each forward, or of the daemon */
	void (*add_forward)(const struct scrape *s, struct forward *f);
	void (*add_daemon)(const struct scrape *s);
	size_t at; /* which number: where a counter is, or an enum */
};

#define END ((char *)NULL)

/* Add a sample to the family.  Then come names and values of labels, and END. */
static void __attribute__((sentinel)) add(const struct scrape *s, const char *suffix,
					  double value, ...)
{
	const char *label, *between = "{";
	va_list labels;
	bool failed;

	if (*s->failed)
		return;
	failed = fprintf(s->out, "%s%s", s->family->name, suffix) < 0;
	va_start(labels, value);
	while ((label = va_arg(labels, const char *))) {
		failed |= fprintf(s->out, "%s%s=\"", between, label) < 0;
		for (const char *c = va_arg(labels, const char *); *c; c++) {
			if (*c < ' ' || *c > '~') {
				failed |= fprintf(s->out, "\\\\x%02x", (unsigned char)*c) < 0;
				continue;
			}
			if (*c == '"' || *c == '\\')
				failed |= putc('\\', s->out) == EOF;
			failed |= putc(*c, s->out) == EOF;
		}
		failed |= putc('"', s->out) == EOF;
		between = ",";
	}
	va_end(labels);
	failed |= fprintf(s->out, "%s %.16g\n", *between == ',' ? "}" : "", value) < 0;
	*s->failed = failed;
}

static double sum_forward(const struct forward *f, size_t at)
{
	return (double)operate_sum_forward(f, at);
}

static void add_live(const struct scrape *s, struct forward *f)
{
	add(s, "", atomic_load(&f->totals->live), "forward", forward_name(f->conf), END);
}

static void add_counter(const struct scrape *s, struct forward *f)
{
	add(s, "", sum_forward(f, s->family->at), "forward", forward_name(f->conf), END);
}

static void add_bytes(const struct scrape *s, struct forward *f)
{
	for (unsigned int i = 0; i < 2 * CARRIERS; i++) {
		unsigned int dir = i / CARRIERS, c = i % CARRIERS;

		add(s, "", sum_forward(f, offsetof(struct forward_stats, carried[dir][c])),
		    "forward", forward_name(f->conf),
		    "direction", dir ? "upstream-to-client" : "client-to-upstream",
		    "carrier", carrier_name(c), END);
	}
}

static void add_histogram(const struct scrape *s, struct forward *f)
{
	const char *name = forward_name(f->conf);
	size_t at = s->family->at;
	double n = 0;

	for (unsigned int i = 0; i < HISTOGRAM_BUCKETS; i++) {
		n += sum_forward(f, at + offsetof(struct histogram, n[i]));
		add(s, "_bucket", n, "forward", name, "le", histogram_bounds[i].text, END);
	}
	add(s, "_sum", sum_forward(f, at + offsetof(struct histogram, sum_us)) / 1e6,
	    "forward", name, END);
	add(s, "_count", n, "forward", name, END);
}

enum { IS_UP, LIVE, CHOSEN, FAILURES };

static bool is_up(const struct member *m)
{
	const struct health *h = &m->server->health;

	return m->list->n && !h->refused && !(h->checked && h->down);
}

/* Of server CONF, as configured; with each-address it is up while one of its addresses is. */
static void add_server(const struct scrape *s, const struct servers *ss,
		       const struct server_conf *conf, const struct place *p)
{
	uint64_t values[] = { [CHOSEN] = p->sessions, [FAILURES] = p->failures };
	bool found = false;

	for (const struct member *m = ss->members; m < ss->members + ss->n; m++)
		if (m->conf == conf) {
			values[IS_UP] |= is_up(m);
			values[LIVE] += atomic_load(&m->server->live);
			found = true;
		}
	if (found) /* else all its addresses are those of another name */
		add(s, "", (double)values[s->family->at], "forward", forward_name(ss->conf),
		    "server", conf->at.text, END);
}

static void add_servers(const struct scrape *s, struct forward *f)
{
	struct servers *ss = &f->servers;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->conf->upstream.n; i++)
		add_server(s, ss, &ss->conf->upstream.servers[i], &ss->places[i]);
	pthread_mutex_unlock(ss->lock);
}

static void add_errors(const struct scrape *s)
{
	for (unsigned int c = 0; c < CAUSES; c++)
		add(s, "", (double)operate_sum(s->metrics->operate, offsetof(struct stats, errors[c])),
		    "cause", cause_name(c), END);
}

static void add_handovers(const struct scrape *s)
{
	for (unsigned int i = 0; i < HANDOVERS * REASONS; i++) {
		unsigned int to = i / REASONS, why = i % REASONS;
		double n = (double)operate_sum(s->metrics->operate,
					       offsetof(struct stats, handovers[to][why]));

		if (n > 0) /* most pairs cannot be */
			add(s, "", n, "carrier", to < CARRIERS ? carrier_name(to) : "failed",
			    "reason", reason_name(why), END);
	}
}

static void add_build(const struct scrape *s)
{
	add(s, "", 1, "version", CULVERT_VERSION, END);
}

enum { MAX_SESSIONS, KERNEL_MEMORY, MAX_KERNEL_MEMORY, START_TIME, OPEN_FDS, MAX_FDS };

static void add_value(const struct scrape *s)
{
	const struct metrics *m = s->metrics;
	const struct shared *shared = m->operate->reload->shared;
	const struct sockmap *k = shared->kernel;
	const double values[] = {
		[MAX_SESSIONS] = shared->config->max_sessions,
		[KERNEL_MEMORY] = k ? (double)sockmap_memory(k) : 0,
		[MAX_KERNEL_MEMORY] = k ? (double)sockmap_memory_limit(k) : 0,
		[START_TIME] = (double)m->started_ms / 1000,
		[OPEN_FDS] = operate_descriptors(m->operate),
		[MAX_FDS] = (double)m->descriptors.rlim_cur,
	};

	add(s, "", values[s->family->at], END);
}

#define DAEMON(fn) .add_daemon = (fn)
#define FORWARD(fn) .add_forward = (fn)
#define STATS(field) offsetof(struct forward_stats, field)

static const struct family families[] = {
	{ "culvert_build_info", "gauge", "1; the labels tell what runs.", DAEMON(add_build) },
	{ "culvert_sessions", "gauge", "Sessions that live.", FORWARD(add_live) },
	{ "culvert_sessions_limit", "gauge", "Sessions that may live: max-sessions.",
	  DAEMON(add_value), .at = MAX_SESSIONS },
	{ "culvert_sessions_accepted_total", "counter", "Sessions that have begun.",
	  FORWARD(add_counter), .at = STATS(accepted) },
	{ "culvert_sessions_finished_total", "counter", "Sessions that have ended, however.",
	  FORWARD(add_counter), .at = STATS(finished) },
	{ "culvert_sessions_denied_total", "counter", "Clients that allow and deny have refused.",
	  FORWARD(add_counter), .at = STATS(denied) },
	{ "culvert_bytes_total", "counter", "Payload, by who sends it and what carries it.",
	  FORWARD(add_bytes) },
	{ "culvert_connect_duration_seconds", "histogram",
	  "From accept(2), or the PROXY header, until the upstream has answered.",
	  FORWARD(add_histogram), .at = STATS(connects) },
	{ "culvert_session_duration_seconds", "histogram", "How long sessions have lived.",
	  FORWARD(add_histogram), .at = STATS(durations) },
	{ "culvert_server_up", "gauge",
	  "0: it gets no sessions, or the last one could not connect to it.",
	  FORWARD(add_servers), .at = IS_UP },
	{ "culvert_server_sessions", "gauge", "Sessions that it has.",
	  FORWARD(add_servers), .at = LIVE },
	{ "culvert_server_chosen_total", "counter", "Sessions that it was chosen for.",
	  FORWARD(add_servers), .at = CHOSEN },
	{ "culvert_server_failures_total", "counter", "Sessions that could not connect to it.",
	  FORWARD(add_servers), .at = FAILURES },
	{ "culvert_errors_total", "counter",
	  "What went wrong, by the causes of culvert status and of the session log.",
	  DAEMON(add_errors) },
	{ "culvert_handovers_total", "counter",
	  "Flows that got a carrier, or stayed where they were: failed.", DAEMON(add_handovers) },
	{ "culvert_kernel_memory_bytes", "gauge",
	  "Bytes queued in the kernel that sockmap is charged for.",
	  DAEMON(add_value), .at = KERNEL_MEMORY },
	{ "culvert_kernel_memory_limit_bytes", "gauge", "Their limit: kernel-memory.",
	  DAEMON(add_value), .at = MAX_KERNEL_MEMORY },
	{ "process_start_time_seconds", "gauge", "When the daemon has begun, since 1970.",
	  DAEMON(add_value), .at = START_TIME },
	{ "process_open_fds", "gauge", "Descriptors that are open.",
	  DAEMON(add_value), .at = OPEN_FDS },
	{ "process_max_fds", "gauge", "Descriptors that may be open.",
	  DAEMON(add_value), .at = MAX_FDS },
};

static void add_family(struct scrape *s, const struct family *fam)
{
	*s->failed |= fprintf(s->out, "# HELP %s %s\n# TYPE %s %s\n", fam->name, fam->help,
			      fam->name, fam->type) < 0;
	s->family = fam;
	if (fam->add_daemon)
		fam->add_daemon(s);
	/* active ones come first */
	for (struct forward *f = s->metrics->operate->reload->forwards.first;
	     f && f->state == FORWARD_ACTIVE && fam->add_forward; f = f->next)
		fam->add_forward(s, f);
}

/* The caller frees it.  NULL: there is no memory. */
static char *make_page(struct metrics *m, size_t *ret_len)
{
	struct reload *l = m->operate->reload;
	bool failed = false;
	struct scrape s = { .metrics = m, .failed = &failed };
	char *text = NULL;

	s.out = open_memstream(&text, ret_len);
	if (!s.out)
		return NULL;
	pthread_mutex_lock(&l->forwards.lock);
	count_live(&l->threads); /* for one scrape at a time */
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
		add_family(&s, &families[i]);
	pthread_mutex_unlock(&l->forwards.lock);
	if (!fclose(s.out) && !failed)
		return text;
	free(text);
	return NULL;
}

/* --- HTTP --- */

const char *metrics_parse(const char *request, bool *ret_page, bool *ret_head)
{
	char method[8], path[16];

	*ret_page = *ret_head = false;
	if (sscanf(request, "%7[A-Z] %15[^? \r]", method, path) != 2)
		return "400 Bad Request";
	*ret_head = !strcmp(method, "HEAD");
	if (!*ret_head && strcmp(method, "GET") != 0)
		return "405 Method Not Allowed";
	*ret_page = !strcmp(path, "/metrics");
	return *ret_page || !strcmp(path, "/") ? "200 OK" : "404 Not Found";
}

static void serve(struct control *c, int fd, void *arg)
{
	char request[REQUEST_MAX], *page = NULL;
	int n, r = control_read(c, fd, "\r\n\r\n", REQUEST_MS, request, sizeof(request));
	bool wants_page = false, head = false;
	const char *status = r == -E2BIG ? "431 Request Header Fields Too Large" :
			     r ? "408 Request Timeout" : metrics_parse(request, &wants_page, &head);
	size_t len = strlen(ABOUT);

	if (wants_page) {
		page = make_page(arg, &len);
		status = page ? status : "503 Service Unavailable";
		len = page ? len : strlen(ABOUT);
	}
	n = snprintf(request, sizeof(request), "HTTP/1.1 %s\r\nContent-Type: " CONTENT_TYPE "\r\n"
		     "Content-Length: %zu\r\nConnection: close\r\n\r\n", status, len);
	/* a socket to which nothing was written has room for it */
	if (send(fd, request, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE) == n && !head)
		control_send(c, fd, ANSWER_MS + (int)(len / 1024), page ?: ABOUT, len);
	free(page);
}

/* --- beginning and end --- */

int metrics_open(const struct endpoint *at, const struct account *account, struct metrics **ret)
{
	struct metrics *m = allocated(calloc(1, sizeof(*m)));
	/* of both [::] and 0.0.0.0 the former, for both families */
	int r = control_listen(&at->addrs[at->n_addrs - 1], at->n_addrs > 1, account->uid,
			       account->gid, &m->server);

	if (!r) {
		*ret = m;
		return 0;
	}
	free(m);
	return log_complain(r, "metrics %s: %s", at->text, strerror(-r));
}

int metrics_start(struct metrics *m, struct operate *o)
{
	m->operate = o;
	m->started_ms = clock_real_ms() - (clock_ms() - o->started_ms);
	getrlimit(RLIMIT_NOFILE, &m->descriptors);
	return control_serve(m->server, serve, m);
}

void metrics_close(struct metrics *m)
{
	if (!m)
		return;
	control_close(m->server);
	free(m);
}
