// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a few threads serve one client at a time each, as those of the control
 * socket do (control_socket.c).  Counters are atomic words.  Each worker writes its own, and a
 * scrape adds them up.  A connection is closed after its answer, and the whole time of a client is
 * bounded, so that slow ones cannot keep a scrape out.  Errors need no memory.  metrics_page.c makes
 * the page for people.
 *
 * BPF programs count the bytes that the kernel has carried, in one place for each session.  A
 * worker adds the difference to its counters when a session ends (session_count_kernel()).  For
 * live sessions, a scrape asks each worker to do the same between two batches of events
 * (round_update_counters()).  If a worker does not answer in time, its sessions are counted by the
 * next scrape: such a counter is late, but never wrong, and never goes down.
 *
 * Two tables make the text.  Series are bounded by the configuration: no label is a client's
 * address, nor anything else that comes over the network.
 */
#include "daemon/metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/metrics_page.h"
#include "relay/session_log.h"
#include "relay/session_syn.h"
#include "version.h"

#define REQUEST_MAX 8192 /* bytes of its head */
#define REQUEST_MS 1000
#define ANSWER_MS 3000 /* and a millisecond more for each KiB */

#define ABOUT "culvert: metrics are at /metrics, a page for people at /\n"
#define BY_NAME                                                                                    \
	"culvert: ask by an address, not by a name, for the page: else a foreign page could read it\n"

/* --- the text --- */

struct scrape {
	const struct actions *actions;
	FILE *out;
	bool failed; /* something could not be written: a memory stream has no error flag */
	const struct family *family; /* the family that is being written */
	struct forward *forward;     /* the forward of the samples; NULL: they are the daemon's */
};

/* Metrics of one name. */
struct family {
	const char *name, *type, *help;
	void (*each)(struct scrape *s); /* adds the samples of a forward; NULL: see ADD */
	void (*add)(struct scrape *s);  /* adds those of the daemon; NULL: its sample is VALUE */
	size_t at;                      /* for EACH and ADD: the offset of a counter, or an enum */
	double value;
};

#define END ((char *)NULL)

static void __attribute__((format(printf, 2, 3))) put(struct scrape *s, const char *fmt, ...)
{
	va_list ap;

	if (s->failed) /* a memory stream would try to grow at each byte */
		return;
	va_start(ap, fmt);
	s->failed = vfprintf(s->out, fmt, ap) < 0;
	va_end(ap);
}

static void put_label(struct scrape *s, const char *before, const char *name, const char *value)
{
	put(s, "%s%s=\"", before, name);
	for (const char *c = value; *c; c++)
		if (*c < ' ' || *c > '~')
			put(s, "\\\\x%02x", (unsigned char)*c);
		else
			put(s, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
	put(s, "\"");
}

/*
 * Add a sample of the family.  Its labels are the forward, if there is one, and those of the
 * arguments: name, value, ..., END.
 */
static void __attribute__((sentinel)) add(struct scrape *s, const char *suffix, double value, ...)
{
	const char *label, *before = "{";
	va_list labels;

	put(s, "%s%s", s->family->name, suffix);
	if (s->forward) {
		put_label(s, before, "forward", forward_name(s->forward->conf));
		before = ",";
	}
	va_start(labels, value);
	while ((label = va_arg(labels, const char *))) {
		put_label(s, before, label, va_arg(labels, const char *));
		before = ",";
	}
	va_end(labels);
	put(s, "%s %.16g\n", *before == ',' ? "}" : "", value);
}

static double sum_forward(const struct scrape *s, size_t at)
{
	return (double)forward_sum(s->forward, at);
}

static void add_live(struct scrape *s)
{
	add(s, "", session_syn_forward_live(s->actions->service->shared, s->forward), END);
}

static void add_counter(struct scrape *s)
{
	add(s, "", sum_forward(s, s->family->at), END);
}

static const char *const directions[] = { "client-to-upstream", "upstream-to-client" };

static void add_bytes(struct scrape *s)
{
	for (unsigned int i = 0; i < 2 * CARRIERS; i++) {
		unsigned int dir = i / CARRIERS, c = i % CARRIERS;

		add(s, "", sum_forward(s, offsetof(struct forward_stats, carried[dir][c])),
		    "direction", directions[dir], "carrier", carrier_names[c], END);
	}
}

/* Forwards of TCP have no such series: it would be 0 for ever. */
static void add_datagrams(struct scrape *s)
{
	for (unsigned int dir = 0; dir < 2 && s->forward->conf->listen.udp; dir++)
		add(s, "", sum_forward(s, offsetof(struct forward_stats, datagrams[dir])),
		    "direction", directions[dir], END);
}

static void add_info(struct scrape *s)
{
	add(s, "", 1, "protocol", protocol_name(s->forward->conf->listen.udp), END);
}

static void add_histogram(struct scrape *s)
{
	size_t at = s->family->at;
	double n = 0;

	for (unsigned int i = 0; i < HISTOGRAM_BUCKETS; i++) {
		n += sum_forward(s, at + offsetof(struct histogram, n[i]));
		add(s, "_bucket", n, "le", histogram_bounds[i].text, END);
	}
	add(s, "_sum", sum_forward(s, at + offsetof(struct histogram, sum_us)) / 1e6, END);
	add(s, "_count", n, END);
}

enum { IS_UP, LIVE, CHOSEN, FAILURES, CHECK };

/*
 * The sample of server CONF, as configured.  With each-address a server is up while one of its
 * addresses is up, and the answer is of such an address.
 */
static void add_server(struct scrape *s, const struct servers *ss, const struct server_conf *conf,
		       const struct place *p)
{
	uint64_t values[] = { [CHOSEN] = p->sessions, [FAILURES] = p->failures };
	bool found = false, up;
	const char *answer = "";

	for (const struct member *m = ss->members; m < ss->members + ss->n; m++) {
		const struct health *h = &m->server->health;

		if (m->conf != conf)
			continue;
		up = m->list->n && !h->refused && !(h->checked && h->down) && !h->told_down;
		values[IS_UP] |= up;
		values[LIVE] += atomic_load(&m->server->live);
		if (up || !*answer)
			answer = m->server->answer;
		found = true;
	}
	if (found && s->family->at == CHECK && *answer)
		add(s, "", 1, "server", conf->at.text, "answer", answer, END);
	else if (found && s->family->at != CHECK) /* else another server has each of its addresses */
		add(s, "", (double)values[s->family->at], "server", conf->at.text, END);
}

static void add_servers(struct scrape *s)
{
	struct servers *ss = &s->forward->servers;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->conf->upstream.n; i++)
		add_server(s, ss, &ss->conf->upstream.servers[i], &ss->places[i]);
	pthread_mutex_unlock(ss->lock);
}

static void add_errors(struct scrape *s)
{
	for (unsigned int c = 0; c < CAUSES; c++)
		add(s, "",
		    (double)threads_sum(&s->actions->service->threads,
					offsetof(struct stats, errors[c])),
		    "cause", cause_names[c], END);
}

static void add_handovers(struct scrape *s)
{
	for (unsigned int i = 0; i < HANDOVERS * REASONS; i++) {
		unsigned int to = i / REASONS, why = i % REASONS;
		double n = (double)threads_sum(&s->actions->service->threads,
					       offsetof(struct stats, handovers[to][why]));

		if (n > 0) /* most pairs never occur */
			add(s, "", n, "carrier", to < CARRIERS ? carrier_names[to] : "failed",
			    "reason", reason_names[why], END);
	}
}

/* Add the carriers that a forward may use, once the trial of carriers is over. */
static void add_carriers(struct scrape *s)
{
	const struct probe_start *probe = s->actions->service->shared->probe;

	for (enum engine e = 0; e < ENGINES && !probe->runs; e++) {
		const struct probe_finding *f = &probe->of[e];

		if (f->usable || (*f->why && strcmp(f->why, PROBE_UNUSED) != 0))
			add(s, "", f->usable, "carrier", engine_name(e), END);
	}
}

static void add_build(struct scrape *s)
{
	add(s, "", 1, "version", CULVERT_VERSION, END);
}

enum { IN_SYNC, LAST_WORD };

/* Add a sample for each export and import.  Exports have no name, so a number tells them apart. */
static void add_streams(struct scrape *s)
{
	struct standby *sb = s->actions->standby;
	char number[12];

	if (!sb)
		return;
	pthread_mutex_lock(&sb->lock); /* guards the names */
	for (const struct stream *at = sb->streams; at < sb->streams + STREAMS_MAX; at++) {
		uint64_t last = at->last_ms, ago = clock_ms() - last;

		snprintf(number, sizeof(number), "%d", (int)(at - sb->streams));
		if (at->is_open)
			add(s, "",
			    s->family->at == IN_SYNC ? at->synced_ms != 0 : (double)ago / 1000,
			    "stream", at->is_import ? "import" : "export", "name", at->name,
			    "number", number, END);
	}
	pthread_mutex_unlock(&sb->lock);
}

#define STATS(field) offsetof(struct forward_stats, field)

static void add_families(struct scrape *s, const struct family *list, size_t n)
{
	for (const struct family *fam = list; fam < list + n; fam++) {
		put(s, "# HELP %s %s\n# TYPE %s %s\n", fam->name, fam->help, fam->name, fam->type);
		s->family = fam;
		if (fam->add)
			fam->add(s);
		else if (!fam->each)
			add(s, "", fam->value, END);
		TAILQ_FOREACH(s->forward, &s->actions->service->forwards.list, in_forwards)
			if (fam->each && s->forward->state == FORWARD_ACTIVE)
				fam->each(s);
	}
}

static void add_sessions(struct scrape *s)
{
	const struct family list[] = {
		{ "culvert_build_info", "gauge", "1; the labels tell what runs.", .add = add_build },
		{ "culvert_forward_info", "gauge", "1; the labels tell what it forwards.",
		  .each = add_info },
		{ "culvert_sessions", "gauge", "Sessions that live.", .each = add_live },
		{ "culvert_sessions_limit", "gauge", "Sessions that may live: max-sessions.",
		  .value = s->actions->service->shared->config->max_sessions },
		{ "culvert_sessions_accepted_total", "counter", "Sessions that have begun.",
		  .each = add_counter, .at = STATS(accepted) },
		{ "culvert_sessions_finished_total", "counter",
		  "Sessions that have ended, for any reason.", .each = add_counter,
		  .at = STATS(finished) },
		{ "culvert_sessions_adopted_total", "counter",
		  "Sessions that a daemon before this one, or another relay, had begun.",
		  .each = add_counter, .at = STATS(adopted) },
		{ "culvert_sessions_moved_total", "counter",
		  "Sessions that were left to another relay, or the next daemon.",
		  .each = add_counter, .at = STATS(moved) },
		{ "culvert_sessions_denied_total", "counter",
		  "Clients that allow and deny have refused.", .each = add_counter,
		  .at = STATS(denied) },
		{ "culvert_bytes_total", "counter", "Bytes of payload, by sender and carrier.",
		  .each = add_bytes },
		{ "culvert_datagrams_total", "counter", "Datagrams of UDP, by sender.",
		  .each = add_datagrams },
		{ "culvert_connect_duration_seconds", "histogram",
		  "From accept(2), or the PROXY header, until the upstream has answered.",
		  .each = add_histogram, .at = STATS(connects) },
		{ "culvert_session_duration_seconds", "histogram", "How long sessions have lived.",
		  .each = add_histogram, .at = STATS(durations) },
		{ "culvert_server_up", "gauge",
		  "0: no address, failed checks, or its last session could not connect.",
		  .each = add_servers, .at = IS_UP },
		{ "culvert_server_check_info", "gauge", "The answer of the server's last check.",
		  .each = add_servers, .at = CHECK },
		{ "culvert_server_sessions", "gauge", "Live sessions of the server.",
		  .each = add_servers, .at = LIVE },
		{ "culvert_server_chosen_total", "counter",
		  "Sessions for which the server was chosen.", .each = add_servers, .at = CHOSEN },
		{ "culvert_server_failures_total", "counter",
		  "Sessions that could not connect to the server.", .each = add_servers,
		  .at = FAILURES },
	};

	add_families(s, list, sizeof(list) / sizeof(list[0]));
}

/* Member KEY of O, as `culvert status` has it; 0 if O is NULL. */
static double number_of(struct json_object *o, const char *key)
{
	return json_object_get_double(json_object_object_get(o, key));
}

/* The same.  O is released. */
static double number_in(struct json_object *o, const char *key)
{
	double n = number_of(o, key);

	json_object_put(o);
	return n;
}

static void add_past(struct scrape *s)
{
	const struct shared *shared = s->actions->service->shared;

	for (enum graft_past why = 0; shared->syn && why < GRAFT_PASTS; why++)
		add(s, "", (double)graft_syn_past(shared->grafts, why), "cause",
		    graft_past_name(why), END);
}

static void add_standby(struct scrape *s)
{
	struct standby *standby = s->actions->standby;
	struct json_object *sb = standby ? standby_json(standby) : NULL;
	const struct family list[] = {
		{ "culvert_standby_owned", "gauge", "Sessions that this relay has itself.",
		  .value = number_of(sb, "owned") },
		{ "culvert_standby_helped", "gauge",
		  "Sessions of other relays whose packets go by this one.",
		  .value = number_of(sb, "helped") },
		{ "culvert_standby_held", "gauge",
		  "Sessions of other relays, no packets of which have come here.",
		  .value = number_of(sb, "held") },
		{ "culvert_standby_orphans", "gauge",
		  "Sessions, held or not, that no relay says to have.",
		  .value = number_of(sb, "orphans") },
		{ "culvert_standby_adopted_total", "counter",
		  "Sessions of other relays that this relay has adopted.",
		  .value = number_of(sb, "adopted") },
		{ "culvert_standby_refused_total", "counter",
		  "Records of sessions that this relay cannot carry.",
		  .value = number_of(sb, "refused") },
		{ "culvert_standby_in_sync", "gauge",
		  "1: the export has sent, or the import has received, all sessions.",
		  .add = add_streams, .at = IN_SYNC },
		{ "culvert_standby_last_word_seconds", "gauge",
		  "Seconds since the last record was sent or received.", .add = add_streams,
		  .at = LAST_WORD },
	};

	add_families(s, list, sizeof(list) / sizeof(list[0]));
	json_object_put(sb);
}

static void add_rest(struct scrape *s)
{
	const struct actions *a = s->actions;
	struct session_log *log = a->service->shared->session_log;
	const struct sockmap *k = a->service->shared->kernel;
	const struct family list[] = {
		{ "culvert_errors_total", "counter",
		  "What went wrong, by the causes of culvert status and of the session log.",
		  .add = add_errors },
		{ "culvert_handovers_total", "counter",
		  "Flows that got a carrier; failed: the flow kept its carrier.",
		  .add = add_handovers },
		{ "culvert_carrier_available", "gauge",
		  "0: kernel or privileges do not allow the carrier, and other carriers are used.",
		  .add = add_carriers },
		{ "culvert_last_reload_successful", "gauge",
		  "0: the last reload was refused, and changed nothing.",
		  .value = number_in(reload_json(a->service), "ok") },
		{ "culvert_log_lines_lost_total", "counter",
		  "Lines of the daemon's log that were lost: its reader was too slow.",
		  .value = (double)log_lines_lost() },
		{ "culvert_session_log_lines_lost_total", "counter",
		  "Lines of the session log that could not be written.",
		  .value = log ? number_in(session_log_json(log), "lost") : 0 },
		{ "culvert_kernel_memory_bytes", "gauge",
		  "Bytes queued in the kernel that count for kernel-memory.",
		  .value = k ? (double)sockmap_memory(k) : 0 },
		{ "culvert_kernel_memory_limit_bytes", "gauge",
		  "The limit of kernel memory: kernel-memory.",
		  .value = k ? (double)k->memory_limit : 0 },
		{ "culvert_set_up_past_total", "counter",
		  "SYNs that went to the listener though their forward has set-up = kernel.",
		  .add = add_past },
		{ "process_start_time_seconds", "gauge", "When the daemon has begun, since 1970.",
		  .value = (double)a->began_ms / 1000 },
		{ "process_open_fds", "gauge", "Descriptors that are open.",
		  .value = status_descriptors(a) },
		{ "process_max_fds", "gauge", "Descriptors that may be open.",
		  .value = (double)a->descriptors_max },
	};

	add_families(s, list, sizeof(list) / sizeof(list[0]));
}

/* The caller frees it.  NULL: there is no memory. */
static char *make_text(struct actions *a)
{
	char *text = NULL;
	size_t len;
	struct scrape s = { .actions = a, .out = open_memstream(&text, &len) };

	if (!s.out)
		return NULL;
	pthread_mutex_lock(&a->service->forwards.lock);
	round_update_counters(a); /* the lock lets one scrape at a time do this */
	add_sessions(&s);
	add_standby(&s);
	add_rest(&s);
	pthread_mutex_unlock(&a->service->forwards.lock);
	if (!fclose(s.out) && !s.failed)
		return text;
	free(text);
	return NULL;
}

/* --- HTTP --- */

static const struct {
	const char *path, *type;
	char *(*make)(struct actions *a); /* the caller frees it; NULL: it cannot be made */
} answers[] = {
	[ASKED_NOTHING] = { "", "text/plain", NULL },
	[ASKED_METRICS] = { "/metrics", "text/plain; version=0.0.4; charset=utf-8", make_text },
	[ASKED_STATE] = { "/state.json", "application/json", metrics_page_state },
	[ASKED_PAGE] = { "/", "text/html; charset=utf-8", metrics_page_html },
	[ASKED_BY_NAME] = { "", "text/plain", NULL },
};

/*
 * Is this host asked by its address, or as localhost?  A page of another origin, whose name leads here
 * by now (DNS rebinding), must not read the clients' addresses.
 */
static bool host_is_address(const char *request)
{
	const char *at = strcasestr(request, "\r\nHost:"), *host = at ? at + 7 : "";
	size_t len;

	host += strspn(host, " ");
	len = strcspn(host, "\r");
	return *host == '[' || strspn(host, "0123456789.:") >= len ||
	       (!strncasecmp(host, "localhost", 9) && strchr(":\r", host[9]));
}

enum metrics_asked metrics_asked(const char *request)
{
	enum metrics_asked asked = ASKED_PAGE;
	size_t method = !strncmp(request, "GET ", 4) ? 4 : !strncmp(request, "HEAD ", 5) ? 5 : 0;
	size_t len = strcspn(request + method, " ?\r");

	while (asked && (!method || strlen(answers[asked].path) != len ||
			 memcmp(answers[asked].path, request + method, len) != 0))
		asked--;
	return asked >= ASKED_STATE && !host_is_address(request) ? ASKED_BY_NAME : asked;
}

void metrics_serve(struct control *c, int fd, void *arg)
{
	char request[REQUEST_MAX] = "";
	int n, r = control_read(c, fd, "\r\n\r\n", REQUEST_MS, request, sizeof(request));
	enum metrics_asked asked = r ? ASKED_NOTHING : metrics_asked(request);
	bool known = asked && answers[asked].make;
	char *made = known ? answers[asked].make(arg) : NULL;
	const char *body = made ?: asked == ASKED_BY_NAME ? BY_NAME : ABOUT;
	size_t len = strlen(body);
	bool whole = r || *request != 'H'; /* HEAD wants no body */

	/* browsers connect in advance: an error would be the answer to a request that comes later */
	if (r && !*request)
		return;
	n = snprintf(request, sizeof(request),
		     "HTTP/1.1 %s\r\nContent-Type: %s\r\n%s"
		     "Content-Length: %zu\r\nConnection: close\r\n\r\n",
		     made  ? "200 OK" :
		     known ? "503 Service Unavailable" :
		     r     ? "400 Bad Request" :
			     "404 Not Found",
		     answers[made ? asked : ASKED_NOTHING].type, metrics_page_headers, len);
	control_send(c, fd, ANSWER_MS, request, (size_t)n);
	if (whole)
		control_send(c, fd, ANSWER_MS + (int)(len / 1024), body, len);
	free(made);
}
