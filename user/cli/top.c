// SPDX-License-Identifier: BSD-2-Clause
/*
 * culvert top: a live view of a daemon's forwards and sessions.
 *
 * Theory of operation: a sample is the daemon's answers to `status` and `sessions`, one for each
 * table, and rows that point into them.  Rates are the difference to the sample before, which is
 * then given up.  Where there is no answer, the last sample stays on the screen.  While the daemon
 * is asked, keys wait: for some ms, or as long as client_ask() waits for a daemon that hangs.
 *
 * Forwards and sessions are tables alike: a column names the members of the answer that it shows.
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

enum { FORWARDS, SESSIONS, TABLES };

/* Pairs of paths for struct column: of a forward, of a session. */
#define BOTH_WAYS "/bytes_to_upstream", "/bytes_to_client"
#define BOTH_FLOWS(key) "/flows/0/" key, "/flows/1/" key

static struct table {
	const char *title;
	const char *array;   /* in the answer */
	const char *forward; /* in a row: the name of the forward */
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
	[FORWARDS] = { "Forwards", "/forwards", "/name", .sort = 5,
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
	[SESSIONS] = { "Sessions", "/sessions", "/forward", .sort = 4,
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
};

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

	return strcmp(a->text[column][0], b->text[column][0]) ?: (m < n) - (m > n);
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

/* --- drawing --- */

enum mode { LOOK, FILTER, KILL, ENGINE };

struct top {
	struct client_words words;  /* the request for sessions */
	uint64_t sample_ms, due_ms; /* when the sample was taken, and the next one is due */
	int focus;                  /* the table that the keys are for */
	enum mode mode;
	bool quit;
	char message[TEXT_MAX]; /* result of a command; until the next key */
	char lost[TEXT_MAX];    /* why there is no answer; "": there is */
	uint64_t asked_id;      /* the session, or the forward, of KILL and ENGINE */
	char asked[TEXT_MAX];
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
	else if (*v->message || *v->lost)
		draw_line(y, A_BOLD, "%s", *v->message ? v->message : v->lost);
	else
		draw_line(y, A_NORMAL,
			  "q quit  Tab table  < > sort  r reverse  / filter  "
			  "e engine  k kill session");
}

static void draw(const struct top *v)
{
	int body = LINES - 3, most = body / 3 + 2, all = 2 + (int)tables[FORWARDS].n_shown;
	int first = all < most ? all : most;

	erase();
	if (body < 10) { /* no room for two */
		draw_table(&tables[v->focus], true, 1, body);
	} else {
		draw_table(&tables[FORWARDS], v->focus == FORWARDS, 1, first);
		draw_table(&tables[SESSIONS], v->focus == SESSIONS, 1 + first, body - first);
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
		tables[FORWARDS].n = tables[SESSIONS].n = 0; /* no rates */
		v->mode = LOOK;                              /* the number means another session */
	}
	take_table(&tables[FORWARDS], status, now_ms - v->sample_ms);
	take_table(&tables[SESSIONS], sessions, now_ms - v->sample_ms);
	v->sample_ms = now_ms;
	return 0;
}

/* Change the forward that was asked about to ENGINE; NULL: kill the session. */
static void change(struct top *v, const char *engine)
{
	struct json_object *name = json_object_new_string(v->asked), *answer;
	char line[LINE_LEN];

	if (engine)
		snprintf(line, sizeof(line),
			 "{\"command\":\"engine\",\"forward\":%s,\"engine\":\"%s\"}",
			 json_object_to_json_string(name), engine);
	else
		snprintf(line, sizeof(line), "{\"command\":\"kill\",\"id\":%" PRIu64 "}",
			 v->asked_id);
	json_object_put(name);
	if (!ask(v, line, v->message, &answer)) {
		snprintf(v->message, TEXT_MAX, "%.200s: %s", v->asked,
			 engine                       ? text_at(answer, "/engine") :
			 number_at(answer, "/killed") ? "reset" :
							"the session had ended");
		v->due_ms = 0;
	}
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
	if (v->mode == KILL && key == 'y')
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

static void on_look_key(struct top *v, struct table *t, int key)
{
	struct json_object *o = t->n_shown ? t->shown[t->at]->object : NULL;

	if (key == 'q')
		v->quit = true;
	else if (key == '\t')
		v->focus = v->focus == SESSIONS ? FORWARDS : SESSIONS;
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
	else if (o && (key == 'e' || (key == 'k' && v->focus == SESSIONS))) {
		v->mode = key == 'e' ? ENGINE : KILL;
		v->asked_id = number_at(o, "/id");
		snprintf(v->asked, TEXT_MAX, "%s", text_at(o, key == 'e' ? t->forward : "/client"));
	} else {
		on_arrow_key(t, key);
	}
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
	struct top v = { .focus = SESSIONS };
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
