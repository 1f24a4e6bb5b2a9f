// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <string.h>

#include "cli/client_value.h"
#include "cli/client_view.h"
#include "cli/table.h"

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))
#define TEXT_MAX 256

enum forward_column {
	COLUMN_NAME,
	COLUMN_LISTEN,
	COLUMN_UPSTREAM,
	COLUMN_ENGINE,
	COLUMN_STATE,
	COLUMN_LIVE,
	COLUMN_ACCEPTED,
	COLUMN_DENIED,
	COLUMN_UP,
	COLUMN_DOWN,
	COLUMN_MOST,
	COLUMN_MOST_EACH,
	COLUMNS,
};

static const struct table_column forward_columns[COLUMNS] = {
	[COLUMN_NAME] = { "NAME", false },
	[COLUMN_LISTEN] = { "LISTEN", false },
	[COLUMN_UPSTREAM] = { "UPSTREAM", false },
	[COLUMN_ENGINE] = { "ENGINE", false },
	[COLUMN_STATE] = { "STATE", false },
	[COLUMN_LIVE] = { "LIVE", true },
	[COLUMN_ACCEPTED] = { "ACCEPTED", true },
	[COLUMN_DENIED] = { "DENIED", true },
	[COLUMN_UP] = { "TO UPSTREAM", true },
	[COLUMN_DOWN] = { "TO CLIENT", true },
	[COLUMN_MOST] = { "AT MOST", true },
	[COLUMN_MOST_EACH] = { "A CLIENT", true },
};

/* What the cells of the columns are, but for the engine's. */
static const struct {
	enum forward_column column;
	const char *key;
	enum kind kind;
} forward_members[] = {
	{ COLUMN_NAME, "name", KIND_TEXT },
	{ COLUMN_LISTEN, "listen", KIND_TEXT },
	{ COLUMN_UPSTREAM, "upstream", KIND_TEXT },
	{ COLUMN_STATE, "state", KIND_TEXT },
	{ COLUMN_LIVE, "live", KIND_COUNT },
	{ COLUMN_ACCEPTED, "accepted", KIND_COUNT },
	{ COLUMN_DENIED, "denied", KIND_COUNT },
	{ COLUMN_UP, "bytes_to_upstream", KIND_BYTES },
	{ COLUMN_DOWN, "bytes_to_client", KIND_BYTES },
	{ COLUMN_MOST, "max_sessions", KIND_COUNT },
	{ COLUMN_MOST_EACH, "max_sessions_per_client", KIND_COUNT },
};

/* "auto", or "copy (auto)" where something else is configured. */
static const char *engine_text(struct json_object *forward, char *buf, size_t size)
{
	const char *now = member_text(forward, "engine", KIND_TEXT, NULL, 0);
	const char *configured = member_text(forward, "engine_configured", KIND_TEXT, NULL, 0);

	if (!strcmp(now, configured))
		return now;
	snprintf(buf, size, "%s (%s)", now, configured);
	return buf;
}

static void add_forward(struct table *t, struct json_object *forward)
{
	char engine[TEXT_MAX], text[COLUMNS][32];
	const char *cells[COLUMNS] = {
		[COLUMN_ENGINE] = engine_text(forward, engine, sizeof(engine)),
	};

	for (size_t i = 0; i < N_ELEMENTS(forward_members); i++) {
		enum forward_column at = forward_members[i].column;

		cells[at] = member_text(forward, forward_members[i].key, forward_members[i].kind,
					text[at], sizeof(text[at]));
	}
	table_add(t, cells);
}

int client_view_forwards(struct json_object *answer, FILE *out)
{
	struct json_object *forwards = member(answer, "forwards");
	struct table *t;
	int r;

	if (!json_object_is_type(forwards, json_type_array))
		return -EINVAL;
	t = table_new(forward_columns, COLUMNS);
	for (size_t i = 0; i < json_object_array_length(forwards); i++)
		add_forward(t, json_object_array_get_idx(forwards, i));
	r = table_print(t, out, 0);
	table_free(t);
	return r;
}

int client_view_kill(struct json_object *answer, FILE *out)
{
	struct json_object *killed = member(answer, "killed");

	if (!json_object_is_type(killed, json_type_int))
		return -EINVAL;
	print_member(out, "", answer, "killed", KIND_COUNT);
	fputs(json_object_get_int64(killed) == 1 ? " session reset\n" : " sessions reset\n", out);
	return 0;
}

/* What is said in one line: each member behind a few words, and what is behind all of them. */
struct piece {
	const char *before, *key; /* no KEY: the end */
	enum kind kind;
};

/* -EINVAL: member KEY of ANSWER, which makes it the answer that it should be, is not of TYPE. */
static int print_pieces(struct json_object *answer, FILE *out, const char *key, enum json_type type,
			const struct piece *p)
{
	if (!json_object_is_type(member(answer, key), type))
		return -EINVAL;
	for (; p->key; p++)
		print_member(out, p->before, answer, p->key, p->kind);
	fputs(p->before, out);
	return 0;
}

int client_view_engine(struct json_object *answer, FILE *out)
{
	static const struct piece pieces[] = {
		{ "", "forward", KIND_TEXT },
		{ ": engine ", "engine", KIND_TEXT },
		{ ", configured ", "engine_configured", KIND_TEXT },
		{ ", sessions ", "live", KIND_COUNT },
		{ ", flows still moving ", "flows_moving", KIND_COUNT },
		{ .before = "\n" },
	};

	return print_pieces(answer, out, "engine", json_type_string, pieces);
}

int client_view_drain(struct json_object *answer, FILE *out)
{
	static const struct piece pieces[] = {
		{ "", "forward", KIND_TEXT },
		{ ": ", "state", KIND_TEXT },
		{ ", sessions ", "live", KIND_COUNT },
		{ .before = "\n" },
	};
	struct json_object *warning = member(answer, "warning");
	int r = print_pieces(answer, out, "state", json_type_string, pieces);

	if (r || !json_object_get_string_len(warning))
		return r;
	print_member(out, "warning: ", answer, "warning", KIND_TEXT);
	fputc('\n', out);
	return 0;
}

int client_view_reload(struct json_object *answer, FILE *out)
{
	static const struct piece pieces[] = {
		{ "forwards: ", "added", KIND_COUNT },
		{ " added, ", "changed", KIND_COUNT },
		{ " changed, ", "removed", KIND_COUNT },
		{ " removed, ", "kept", KIND_COUNT },
		{ .before = " as before\n" },
	};

	return print_pieces(answer, out, "finished", json_type_int, pieces);
}

int client_view_log_level(struct json_object *answer, FILE *out)
{
	static const struct piece pieces[] = {
		{ "", "level", KIND_TEXT },
		{ .before = "\n" },
	};

	return print_pieces(answer, out, "level", json_type_string, pieces);
}
