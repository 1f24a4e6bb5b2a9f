// SPDX-License-Identifier: BSD-2-Clause
/*
 * culvert top: a live view of a daemon's forwards and servers, sessions and clients.
 *
 * Theory of operation: a sample is the daemon's answers to `status` and `sessions`, what servers and
 * clients are made of, and rows that point into these four.  Rates are the difference to the sample before, which is
 * then given up.  Where there is no answer, the last sample stays on the screen.  While the daemon
 * is asked, keys wait: for some ms, or as long as client_ask() waits for a daemon that hangs.
 *
 * All four are tables alike, and two are on the screen: forwards or servers, and sessions or clients.
 * A column names the members of the answer that it shows.
 * The first column is the identity of a row: rows of two samples with the same identity are one row
 * for rates and for the highlight.  `shown` points to the rows that match the filter, in the order
 * of the screen; only those on the screen are drawn.  Each drawing begins with an empty screen and
 * the terminal's size of that moment; lines and texts that do not fit are left out or cut off.
 *
 * There are no colours: reverse and bold work on every terminal.
 */
#include "cli/top.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/parse_size.h"
#include "cli/control_client.h"
#include "cli/view.h"

#include <ncurses.h> /* after control_requests.h: KEY_UNDO is a macro of ncurses */

#define TEXT_MAX 256
#define LINE_LEN 2048 /* of the screen, or of a request with a forward's name */
#define FILTER_MAX 40
#define COLUMNS_MAX 16   /* with a last column without a title */
#define INTERVAL_MS 1000 /* between two samples; longer where the daemon is slow to answer */
#define ESCAPE 27

/* --- tables --- */

enum kind { TEXT, NUMBER, RATE };

struct column {
	const char *title;
	enum kind kind;
	int width;
	int least;            /* a terminal with fewer columns does not show this one */
	const char *paths[2]; /* in a row.  Two: the sum; of texts: both, if they differ */
};

struct row {
	struct json_object *object;
	const char *text[COLUMNS_MAX][2]; /* "": none */
	uint64_t number[COLUMNS_MAX];
	uint64_t bytes[COLUMNS_MAX]; /* the counter of a RATE */
};

/* Those of an area of the screen are neighbours. */
enum { FORWARDS, SERVERS, SESSIONS, CLIENTS, TABLES };
#define AREA(table) ((table) / 2)
#define NEIGHBOUR(table) ((table) ^ 1)

/* Pairs of paths for struct column: of a forward, and of a client; of a session. */
#define BOTH_WAYS "/bytes_to_upstream", "/bytes_to_client"
#define BOTH_FLOWS(key) "/flows/0/" key, "/flows/1/" key

static struct table {
	const char *title;
	const char *array;   /* in the answer */
	const char *forward; /* in a row: the name of the forward; NULL: a row has many */
	const char *keys;    /* that are for this table alone */
	struct column columns[COLUMNS_MAX];
	/* of the sample */
	struct json_object *answer;
	struct row *rows; /* by identity */
	size_t n;
	/* choices of the user */
	int sort;
	bool reverse;
	char filter[FILTER_MAX];
	const struct row *chosen; /* in the sample; NULL: the first one */
	/* computed from the choices and the sample */
	const struct row **shown;
	size_t n_shown, at; /* AT is highlighted */
	size_t height;      /* rows on the screen */
} tables[TABLES] = {
	[FORWARDS] = { "Forwards", "/forwards", "/name", "s servers  e engine", .sort = 5,
		       .columns = { { "NAME", TEXT, 16, 0, { "/name" } },
				    { "LISTEN", TEXT, 21, 120, { "/listen" } },
				    { "UPSTREAM", TEXT, 21, 0, { "/upstream" } },
				    { "STATE", TEXT, 9, 100, { "/state" } },
				    { "LIVE", NUMBER, 6, 0, { "/live" } },
				    { "RATE/s", RATE, 8, 0, { BOTH_WAYS } },
				    { "UP/s", RATE, 8, 140, { "/bytes_to_upstream" } },
				    { "DOWN/s", RATE, 8, 140, { "/bytes_to_client" } },
				    { "BYTES", NUMBER, 8, 0, { BOTH_WAYS } },
				    { "DENIED", NUMBER, 6, 110, { "/denied" } },
				    { "PROTO", TEXT, 5, 100, { "/protocol" } },
				    { "ENGINE", TEXT, 40, 0, { "/engine", "/engine_configured" } } } },
	[SERVERS] = { "Servers", "", "/forward", "s forwards  d drain  u use again", .sort = 0,
		      .columns = { { "FORWARD/SERVER", TEXT, 34, 0, { "/forward", "/server" } },
				   { "STATE", TEXT, 10, 0, { "/state" } },
				   { "WEIGHT", NUMBER, 6, 110, { "/weight" } },
				   { "BACKUP", TEXT, 6, 160, { "/backup" } },
				   { "LIVE", NUMBER, 6, 0, { "/live" } },
				   { "NEW/s", RATE, 6, 0, { "/sessions" } },
				   { "SESSIONS", NUMBER, 8, 100, { "/sessions" } },
				   { "FAILURES", NUMBER, 8, 0, { "/failures" } },
				   { "CHECK", TEXT, 24, 120, { "/check" } },
				   { "AGENT", TEXT, 16, 180, { "/agent" } },
				   { "LAST ERROR", TEXT, 40, 0, { "/last_error" } } } },
	[SESSIONS] = { "Sessions", "/sessions", "/forward", "c clients  e engine  k kill", .sort = 4,
		       .columns = { { "ID", NUMBER, 6, 0, { "/id" } },
				    { "CLIENT", TEXT, 21, 0, { "/client" } },
				    { "FORWARD", TEXT, 16, 120, { "/forward" } },
				    { "UPSTREAM", TEXT, 21, 160, { "/upstream" } },
				    { "RATE/s", RATE, 8, 0, { BOTH_FLOWS("bytes") } },
				    { "UP/s", RATE, 8, 140, { "/flows/0/bytes" } },
				    { "DOWN/s", RATE, 8, 140, { "/flows/1/bytes" } },
				    { "AGE", NUMBER, 6, 100, { "/age_ms" } },
				    { "BACKLOG", NUMBER, 8, 0, { BOTH_FLOWS("backlog_max") } },
				    { "PROTO", TEXT, 5, 100, { "/protocol" } },
				    { "CARRIER", TEXT, 14, 0, { BOTH_FLOWS("carrier") } },
				    { "REASON", TEXT, 40, 0, { BOTH_FLOWS("reason") } },
				    { "STANDBY", TEXT, 11, 170, { "/standby" } },
				    { "SERVER NAME", TEXT, 20, 180, { "/server_name" } },
				    { "NOT GRAFTED", TEXT, 40, 200, { "/not_grafted" } } } },
	[CLIENTS] = { "Clients", "", NULL, "c sessions", .sort = 1,
		      .columns = { { "CLIENT", TEXT, 40, 0, { "/client" } },
				   { "SESSIONS", NUMBER, 8, 0, { "/sessions" } },
				   { "RATE/s", NUMBER, 8, 0, { "/bytes_rate" } },
				   { "UP/s", NUMBER, 8, 140, { "/bytes_rate_up" } },
				   { "DOWN/s", NUMBER, 8, 140, { "/bytes_rate_down" } },
				   { "BYTES", NUMBER, 8, 0, { BOTH_WAYS } } } },
};

/* Each RATE of a session, in the order of its columns, has a sum in the row of its client. */
static const char *const sums[] = { "bytes_rate", "bytes_rate_up", "bytes_rate_down" };

/* --- samples --- */

/* NULL: O has nothing at PATH, or there is no PATH. */
static struct json_object *member(struct json_object *o, const char *path)
{
	struct json_object *value = NULL;

	if (path)
		json_pointer_get(o, path, &value);
	return value;
}

static uint64_t number_at(struct json_object *o, const char *path)
{
	return json_object_get_uint64(member(o, path));
}

/* Lives as long as O. */
static const char *text_at(struct json_object *o, const char *path)
{
	return json_object_get_string(member(o, path)) ?: "";
}

/* Texts are in ascending order, numbers in descending order. */
static int compare_cells(const struct row *a, const struct row *b, int column)
{
	uint64_t m = a->number[column], n = b->number[column];
	int r = strcmp(a->text[column][0], b->text[column][0]) ?:
			strcmp(a->text[column][1], b->text[column][1]);

	return r ?: (m < n) - (m > n);
}

static int compare_identity(const void *one, const void *other)
{
	return compare_cells(one, other, 0);
}

static void take_row(struct row *r, struct json_object *o, const struct column *columns)
{
	r->object = o;
	for (int i = 0; columns[i].title; i++) {
		const struct column *c = &columns[i];
		bool is_text = c->kind == TEXT;
		uint64_t n = is_text ? 0 : number_at(o, c->paths[0]) + number_at(o, c->paths[1]);

		r->text[i][0] = is_text ? text_at(o, c->paths[0]) : "";
		r->text[i][1] = is_text ? text_at(o, c->paths[1]) : "";
		r->bytes[i] = c->kind == RATE ? n : 0;
		r->number[i] = c->kind == RATE ? 0 : n;
	}
}

/* --- the rows that are shown, and their order --- */

static int compare_shown(const void *one, const void *other, void *arg)
{
	const struct row *a = *(const struct row *const *)one;
	const struct row *b = *(const struct row *const *)other;
	const struct table *t = arg;
	int r = compare_cells(a, b, t->sort) ?: compare_identity(a, b);

	return t->reverse ? -r : r;
}

static bool matches(const struct table *t, const struct row *r)
{
	for (int i = 0; t->columns[i].title; i++)
		if (strcasestr(r->text[i][0], t->filter) || strcasestr(r->text[i][1], t->filter))
			return true;
	return false;
}

static void choose(struct table *t, ssize_t at)
{
	ssize_t last = (ssize_t)t->n_shown - 1, most = at < last ? at : last;

	t->at = most > 0 ? (size_t)most : 0;
	t->chosen = t->at ? t->shown[t->at] : NULL;
}

/*
 * Filter and sort the rows.  The highlight stays on the row with the identity of CHOSEN, a row of
 * this sample or of the sample before.  If that row is gone, the highlight keeps its place.
 */
static void arrange(struct table *t)
{
	size_t at = t->at;

	t->shown = allocated(realloc(t->shown, (t->n + 1) * sizeof(struct row *)));
	t->n_shown = 0;
	for (size_t i = 0; i < t->n; i++)
		if (matches(t, &t->rows[i]))
			t->shown[t->n_shown++] = &t->rows[i];
	qsort_r(t->shown, t->n_shown, sizeof(struct row *), compare_shown, t);
	for (size_t i = 0; t->chosen && i < t->n_shown; i++)
		if (!compare_identity(t->shown[i], t->chosen))
			at = i;
	choose(t, (ssize_t)at);
}

/* Replace T's part of the sample by ANSWER, taken MS after that sample.  T then owns ANSWER. */
static void take_table(struct table *t, struct json_object *answer, uint64_t ms)
{
	struct json_object *list = member(answer, t->array), *answer_before = t->answer;
	size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
	struct row *rows = allocated(calloc(n + 1, sizeof(*rows))), *before = t->rows;

	for (size_t i = 0; i < n; i++) {
		struct row *r = &rows[i];
		const struct row *old;

		take_row(r, json_object_array_get_idx(list, i), t->columns);
		old = t->n ? bsearch(r, before, t->n, sizeof(*r), compare_identity) : NULL;
		for (int c = 0; old && t->columns[c].title; c++)
			if (r->bytes[c] > old->bytes[c])
				r->number[c] = (r->bytes[c] - old->bytes[c]) * 1000 / (ms ?: 1);
	}
	qsort(rows, n, sizeof(*rows), compare_identity);
	t->answer = answer;
	t->rows = rows;
	t->n = n;
	arrange(t);
	free(before);
	json_object_put(answer_before);
}

/* The servers of all forwards of STATUS, each with the name of its forward. */
static struct json_object *servers_of(struct json_object *status)
{
	struct json_object *list = json_object_new_array(), *forwards = member(status, "/forwards");
	size_t n = forwards ? json_object_array_length(forwards) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *f = json_object_array_get_idx(forwards, i);
		struct json_object *servers = member(f, "/servers");
		size_t m = servers ? json_object_array_length(servers) : 0;

		for (size_t k = 0; k < m; k++) {
			struct json_object *server = json_object_array_get_idx(servers, k);

			json_add_text(server, "forward", text_at(f, "/name"));
			json_append(list, json_object_get(server));
		}
	}
	return list;
}

static void add_to(struct json_object *o, const char *key, uint64_t n)
{
	json_object_int_inc(json_object_object_get(o, key), (int64_t)n);
}

/* The client of address TEXT in BY_ADDRESS, as yet without sessions. */
static struct json_object *client_of(struct json_object *by_address, const char *text)
{
	static const char *const counters[] = { "sessions",          "bytes_rate",
						"bytes_rate_up",     "bytes_rate_down",
						"bytes_to_upstream", "bytes_to_client" };
	struct json_object *o = json_object_object_get(by_address, text);

	if (o)
		return o;
	o = json_object_new_object();
	json_add_text(o, "client", text);
	for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
		json_add_int(o, counters[i], 0);
	json_add(by_address, text, o);
	return o;
}

/*
 * The clients of T, the table of sessions.  Their rates are sums of the sessions' rates: a client's
 * bytes become fewer when a session ends.
 */
static struct json_object *clients_of(const struct table *t)
{
	struct json_object *list = json_object_new_array(), *by_address = json_object_new_object();

	for (const struct row *r = t->rows; r < t->rows + t->n; r++) {
		const char *text = text_at(r->object, "/client"), *colon = strrchr(text, ':');
		bool has_port = colon && colon[1]; /* "unix:" has none */
		char host[TEXT_MAX];
		struct json_object *o;

		snprintf(host, sizeof(host), "%.*s", has_port ? (int)(colon - text) : TEXT_MAX - 1,
			 text);
		o = client_of(by_address, host);
		add_to(o, "sessions", 1);
		for (int c = 0, rate = 0; t->columns[c].title; c++)
			if (t->columns[c].kind == RATE)
				add_to(o, sums[rate++], r->number[c]);
		add_to(o, "bytes_to_upstream", number_at(r->object, "/flows/0/bytes"));
		add_to(o, "bytes_to_client", number_at(r->object, "/flows/1/bytes"));
	}
	json_object_object_foreach(by_address, address, client) {
		(void)address;
		json_append(list, json_object_get(client));
	}
	json_object_put(by_address);
	return list;
}

/* --- drawing --- */

enum mode { LOOK, FILTER, KILL, ENGINE, ORDER };

struct top {
	struct client_words words;  /* the request for sessions */
	uint64_t sample_ms, due_ms; /* when the sample was taken, and the next one is due */
	int focus;                  /* the table that the keys are for */
	int beside;                 /* the table of the other area */
	enum mode mode;
	bool quit;
	char message[TEXT_MAX]; /* result of a command; until the next key */
	char lost[TEXT_MAX];    /* why there is no answer; "": there is */
	uint64_t asked_id;      /* the session, or the forward, of KILL and ENGINE */
	char asked[TEXT_MAX];
	char asked_server[TEXT_MAX];
	const char *order; /* of ORDER */
};

static const char *cell_text(const struct table *t, int i, const struct row *r, char buf[TEXT_MAX])
{
	const char *one = r->text[i][0], *other = r->text[i][1];
	bool both = *other && strcmp(one, other) != 0;

	if (t->columns[i].kind == TEXT)
		snprintf(buf, TEXT_MAX, "%s%s%s", one, both ? "/" : "", both ? other : "");
	else
		view_number(t->columns[i].paths[0], r->number[i], buf, TEXT_MAX);
	return buf;
}

/* The daemon sends printable ASCII; nothing else gets to the terminal. */
__attribute__((format(printf, 3, 4))) static void draw_line(int y, attr_t attr, const char *fmt,
							    ...)
{
	char line[LINE_LEN], clean[LINE_LEN];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	mvhline(y, 0, ' ', COLS);
	mvaddnstr(y, 0, log_escape(line, clean, sizeof(clean)), COLS);
	mvchgat(y, 0, -1, attr, 0, NULL);
}

/* The line of R; NULL: the titles. */
static void draw_row(const struct table *t, int y, const struct row *r, attr_t attr)
{
	char line[LINE_LEN] = "", text[TEXT_MAX];
	int len = 0;

	for (int i = 0; t->columns[i].title; i++) {
		const struct column *c = &t->columns[i];
		int cut = c->kind == TEXT ? c->width : TEXT_MAX;

		if (c->least <= COLS)
			len += snprintf(line + len, sizeof(line) - (size_t)len, "%*.*s ",
					c->kind == TEXT ? -c->width : c->width, cut,
					r ? cell_text(t, i, r, text) : c->title);
	}
	draw_line(y, attr, "%s", line);
}

/* LINES_FREE lines from Y: one about the table, the titles, and the page with the highlight. */
static void draw_table(struct table *t, bool focus, int y, int lines_free)
{
	size_t top;

	t->height = lines_free > 2 ? (size_t)lines_free - 2 : 1;
	top = t->at - t->at % t->height;
	draw_line(y, focus ? A_REVERSE : A_NORMAL, "%s: %zu by %s%s%s", t->title, t->n_shown,
		  t->columns[t->sort].title, *t->filter ? ", filter " : "", t->filter);
	draw_row(t, y + 1, NULL, A_BOLD);
	for (size_t i = 0; i < t->height && top + i < t->n_shown; i++)
		draw_row(t, y + 2 + (int)i, t->shown[top + i],
			 focus && top + i == t->at ? A_REVERSE : A_NORMAL);
}

/* All texts of the highlighted row, uncut, from the last column to the first. */
static void draw_details(const struct table *t, int y)
{
	const struct row *r = t->n_shown ? t->shown[t->at] : NULL;
	char line[LINE_LEN] = "", text[TEXT_MAX];
	int len = 0;

	for (int i = COLUMNS_MAX - 1; r && i >= 0 && len < LINE_LEN; i--)
		if (t->columns[i].title && *r->text[i][0])
			len += snprintf(line + len, sizeof(line) - (size_t)len, "%s %s  ",
					t->columns[i].title, cell_text(t, i, r, text));
	draw_line(y, A_NORMAL, "%s", line);
}

static void draw_head(const struct top *v)
{
	char age[TEXT_MAX], used[SIZE_STRLEN], max[SIZE_STRLEN];
	struct json_object *status = tables[FORWARDS].answer;
	uint64_t silent = number_at(tables[SESSIONS].answer, "/workers_silent");

	view_age(*v->lost ? clock_ms() - v->sample_ms : number_at(status, "/uptime_ms"), age,
		 sizeof(age));
	size_format(number_at(status, "/resources/kernel_memory"), used, sizeof(used));
	size_format(number_at(status, "/resources/kernel_memory_limit"), max, sizeof(max));
	if (*v->lost)
		draw_line(0, A_BOLD, "culvert: no answer for %s, trying again", age);
	else
		draw_line(0, A_BOLD,
			  "culvert %s %s  sessions %" PRIu64 "/%" PRIu64 "  backlog %s of %s%s",
			  text_at(status, "/version"), age,
			  number_at(status, "/resources/sessions"),
			  number_at(status, "/max_sessions"), used, max,
			  silent ? "  some workers do not answer" : "");
}

static void draw_status(const struct top *v)
{
	int y = LINES - 1;

	if (v->mode == FILTER)
		draw_line(y, A_BOLD, "Filter: %s_   (Enter: keep, Esc: show all)",
			  tables[v->focus].filter);
	else if (v->mode == KILL)
		draw_line(y, A_BOLD, "Kill session %" PRIu64 " of %s?  y/n", v->asked_id, v->asked);
	else if (v->mode == ENGINE)
		draw_line(y, A_BOLD,
			  "Engine of %s:  a auto  g graft  m sockmap  s splice  c copy  d default",
			  v->asked);
	else if (v->mode == ORDER)
		draw_line(y, A_BOLD, "Server %s of %s: %s?  y/n", v->asked_server, v->asked,
			  v->order);
	else if (*v->message || *v->lost)
		draw_line(y, A_BOLD, "%s", *v->message ? v->message : v->lost);
	else
		draw_line(y, A_NORMAL, "q quit  Tab table  < > sort  r reverse  / filter  %s",
			  tables[v->focus].keys);
}

static void draw(const struct top *v)
{
	bool lower = AREA(v->focus) == AREA(SESSIONS);
	struct table *one = &tables[lower ? v->beside : v->focus];
	struct table *other = &tables[lower ? v->focus : v->beside];
	int body = LINES - 3, most = body / 3 + 2, all = 2 + (int)one->n_shown;
	int first = all < most ? all : most;

	erase();
	if (body < 10) { /* no room for two */
		draw_table(&tables[v->focus], true, 1, body);
	} else {
		draw_table(one, !lower, 1, first);
		draw_table(other, lower, 1 + first, body - first);
	}
	draw_details(&tables[v->focus], LINES - 2);
	draw_head(v);
	draw_status(v);
	refresh();
}

/* --- requests to the daemon --- */

/* client_ask(), with the complaint in WHY. */
static int ask(const struct top *v, const char *line, char why[TEXT_MAX], struct json_object **ret)
{
	sigset_t resize;
	int r;

	sigemptyset(&resize);
	sigaddset(&resize, SIGWINCH);
	sigprocmask(SIG_BLOCK, &resize, NULL); /* it would interrupt read(2) */
	log_keep_complaint(why, TEXT_MAX);
	r = client_ask(v->words.control, line, ret);
	log_keep_complaint(NULL, 0);
	sigprocmask(SIG_UNBLOCK, &resize, NULL);
	return r;
}

/* Take a sample in place of the last one.  Returns 0, or an exit code: V->lost says why. */
static int take_sample(struct top *v)
{
	struct json_object *status = NULL, *sessions = NULL, *then = tables[FORWARDS].answer;
	uint64_t begun_ms = clock_ms(), now_ms;
	int r = ask(v, "{\"command\":\"status\"}", v->lost, &status);

	r = r ?: ask(v, v->words.line, v->lost, &sessions);
	now_ms = clock_ms();
	v->due_ms = now_ms + INTERVAL_MS + 2 * (now_ms - begun_ms);
	if (r) {
		json_object_put(status);
		json_object_put(sessions);
		return r;
	}
	v->lost[0] = '\0';
	/* another daemon begins its counters and the numbers of its sessions anew */
	if (number_at(status, "/pid") != number_at(then, "/pid") ||
	    number_at(status, "/uptime_ms") < number_at(then, "/uptime_ms")) {
		for (int i = 0; i < TABLES; i++)
			tables[i].n = 0; /* no rates */
		v->mode = LOOK;          /* the number means another session */
	}
	take_table(&tables[FORWARDS], status, now_ms - v->sample_ms);
	take_table(&tables[SERVERS], servers_of(status), now_ms - v->sample_ms);
	take_table(&tables[SESSIONS], sessions, now_ms - v->sample_ms);
	take_table(&tables[CLIENTS], clients_of(&tables[SESSIONS]), now_ms - v->sample_ms);
	v->sample_ms = now_ms;
	return 0;
}

/* The request of the mode: to change the forward to ENGINE, to kill the session, to order. */
static struct json_object *request_of(const struct top *v, const char *engine)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "command",
		      v->mode == ENGINE ? "engine" :
		      v->mode == ORDER  ? "upstream" :
					  "kill");
	if (v->mode == KILL) {
		json_add_int(o, "id", v->asked_id);
		return o;
	}
	json_add_text(o, "forward", v->asked);
	if (v->mode == ENGINE) {
		json_add_text(o, "engine", engine);
		return o;
	}
	json_add_text(o, "server", v->asked_server);
	json_add_text(o, "order", v->order);
	return o;
}

/* The user has said yes, or has chosen ENGINE. */
static void change(struct top *v, const char *engine)
{
	struct json_object *request = request_of(v, engine), *answer;

	if (!ask(v, json_object_to_json_string(request), v->message, &answer)) {
		snprintf(v->message, TEXT_MAX, "%.200s: %s",
			 v->mode == ORDER ? v->asked_server : v->asked,
			 v->mode == ENGINE            ? text_at(answer, "/engine") :
			 v->mode == ORDER             ? text_at(answer, "/order") :
			 number_at(answer, "/killed") ? "reset" :
							"the session had ended");
		v->due_ms = 0;
	}
	json_object_put(request);
	json_object_put(answer);
}

/* --- keys --- */

static void on_filter_key(struct top *v, struct table *t, int key)
{
	size_t len = strlen(t->filter);

	if (key == ESCAPE || key == '\n' || key == '\r' || key == KEY_ENTER)
		v->mode = LOOK;
	if (key == ESCAPE)
		memset(t->filter, 0, sizeof(t->filter));
	else if ((key == KEY_BACKSPACE || key == 127 || key == '\b') && len)
		t->filter[len - 1] = '\0';
	else if (key >= ' ' && key < 127 && len < FILTER_MAX - 1)
		t->filter[len] = (char)key; /* zeros follow */
}

static void on_answer_key(struct top *v, int key)
{
	static const char keys[] = "amscgd"; /* by enum engine, and ENGINE_DEFAULT */

	for (size_t i = 0; v->mode == ENGINE && keys[i]; i++)
		if (keys[i] == key)
			change(v, request_keys[KEY_ENGINE].choices[i]);
	if ((v->mode == KILL || v->mode == ORDER) && key == 'y')
		change(v, NULL);
	v->mode = LOOK;
}

static void on_arrow_key(struct table *t, int key)
{
	ssize_t page = (ssize_t)t->height, all = (ssize_t)t->n_shown;
	ssize_t by = key == KEY_UP    ? -1 :
		     key == KEY_DOWN  ? 1 :
		     key == KEY_PPAGE ? -page :
		     key == KEY_NPAGE ? page :
		     key == KEY_HOME  ? -all :
		     key == KEY_END   ? all :
					0;

	choose(t, (ssize_t)t->at + by);
}

/* Table T in its area of the screen, with the focus. */
static void show_table(struct top *v, int t)
{
	if (AREA(t) != AREA(v->focus))
		v->beside = v->focus;
	v->focus = t;
}

/* Keys that begin a change of O, of the highlighted row; false: KEY is another one. */
static bool on_change_key(struct top *v, const struct table *t, struct json_object *o, int key)
{
	enum mode mode = key == 'e' && t->forward                          ? ENGINE :
			 key == 'k' && v->focus == SESSIONS                ? KILL :
			 (key == 'd' || key == 'u') && v->focus == SERVERS ? ORDER :
									     LOOK;

	if (!o || mode == LOOK)
		return false;
	v->mode = mode;
	v->asked_id = number_at(o, "/id");
	v->order = key == 'd' ? "drain" : "ready";
	snprintf(v->asked, TEXT_MAX, "%s", text_at(o, mode == KILL ? "/client" : t->forward));
	snprintf(v->asked_server, TEXT_MAX, "%s", text_at(o, "/server"));
	return true;
}

static void on_look_key(struct top *v, struct table *t, int key)
{
	bool upper = AREA(v->focus) == AREA(FORWARDS);

	if (key == 'q')
		v->quit = true;
	else if (key == '\t')
		show_table(v, v->beside);
	else if (key == 's')
		show_table(v, NEIGHBOUR(upper ? v->focus : v->beside));
	else if (key == 'c')
		show_table(v, NEIGHBOUR(upper ? v->beside : v->focus));
	else if (key == '/')
		v->mode = FILTER;
	else if (key == ESCAPE)
		memset(t->filter, 0, sizeof(t->filter));
	else if (key == '>')
		t->sort += t->columns[t->sort + 1].title != NULL;
	else if (key == '<')
		t->sort -= t->sort > 0;
	else if (key == 'r')
		t->reverse = !t->reverse;
	else if (!on_change_key(v, t, t->n_shown ? t->shown[t->at]->object : NULL, key))
		on_arrow_key(t, key);
}

static void on_key(struct top *v, int key)
{
	struct table *t = &tables[v->focus];

	v->message[0] = '\0';
	if (v->mode == LOOK)
		on_look_key(v, t, key);
	else if (v->mode == FILTER)
		on_filter_key(v, t, key);
	else
		on_answer_key(v, key);
	arrange(t);
}

/* --- the command --- */

static int run(struct top *v)
{
	int r = take_sample(v);

	if (r)
		return log_complain(r, "%s", v->lost);
	signal(SIGHUP, SIG_DFL); /* a terminal that is gone ends the program */
	initscr();
	cbreak();
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	set_escdelay(50); /* ms, until an ESC is a key and not the begin of another */
	while (!v->quit) {
		uint64_t now_ms = clock_ms();
		int key;

		draw(v);
		timeout(v->due_ms > now_ms ? (int)(v->due_ms - now_ms) : 0);
		key = getch();
		if (key != ERR && key != KEY_RESIZE) /* ncurses has taken the new size */
			on_key(v, key);
		if (clock_ms() >= v->due_ms)
			take_sample(v);
	}
	endwin();
	return EXIT_CODE_OK;
}

int top_run(int argc, char **argv)
{
	struct top v = { .focus = SESSIONS, .beside = FORWARDS };
	int r = client_words_parse(&commands[COMMAND_SESSIONS], argc, argv, &v.words);

	if (r)
		r = EXIT_CODE_USAGE;
	else if (v.words.own[OWN_JSON] || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		r = log_complain(EXIT_CODE_USAGE, "top needs a terminal; for programs there is "
						  "`culvert sessions --json`");
	r = r ?: run(&v);
	client_words_close(&v.words);
	return r;
}
