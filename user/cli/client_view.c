/* SPDX-License-Identifier: BSD-2-Clause */
#include "cli/client_view.h"

#include <errno.h>
#include <json-c/json.h>
#include <string.h>

#include "cli/client_value.h"
#include "cli/table.h"

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))
#define TEXT_MAX 256

static const struct field forward_fields[] = {
	{ "name", "NAME", KIND_TEXT },
	{ "listen", "LISTEN", KIND_TEXT },
	{ "upstream", "UPSTREAM", KIND_TEXT },
	{ "live", "LIVE", KIND_COUNT },
	{ "accepted", "ACCEPTED", KIND_COUNT },
	{ "finished", "FINISHED", KIND_COUNT },
	{ "bytes_to_upstream", "TO UPSTREAM", KIND_BYTES },
	{ "bytes_to_client", "TO CLIENT", KIND_BYTES },
};

static const struct field carrier_fields[] = {
	{ "carrier", "CARRIER", KIND_TEXT },
	{ "flows", "FLOWS", KIND_COUNT },
	{ "bytes", "BYTES", KIND_BYTES },
};

static const struct field handover_fields[] = {
	{ "to_sockmap", "TO SOCKMAP", KIND_COUNT },
	{ "to_splice", "TO SPLICE", KIND_COUNT },
	{ "to_copy", "TO COPY", KIND_COUNT },
	{ "failed", "FAILED", KIND_COUNT },
};

static const struct field resource_fields[] = {
	{ "sessions", "SESSIONS", KIND_COUNT },
	{ "slots_used", "SLOTS USED", KIND_COUNT },
	{ "slots_total", "SLOTS", KIND_COUNT },
	{ "kernel_memory", "KERNEL MEMORY", KIND_BYTES },
	{ "kernel_memory_limit", "AT MOST", KIND_BYTES },
	{ "pipes", "PIPES", KIND_COUNT },
	{ "pipes_idle", "PIPES IDLE", KIND_COUNT },
	{ "buffers", "BUFFERS", KIND_COUNT },
	{ "fds", "DESCRIPTORS", KIND_COUNT },
};

static const struct field session_log_fields[] = {
	{ "path", "FILE", KIND_TEXT },
	{ "lines", "LINES", KIND_COUNT },
	{ "lost", "LOST", KIND_COUNT },
	{ "errors", "ERRORS", KIND_COUNT },
	{ "last_error", "LAST ERROR", KIND_TEXT },
};

/* A flow stands below its session, with the carrier and its reason below the addresses. */
enum session_column {
	COLUMN_ID,
	COLUMN_FORWARD,
	COLUMN_CLIENT,
	COLUMN_UPSTREAM,
	COLUMN_AGE,
	COLUMN_BYTES,
	COLUMN_HANDOVERS,
	COLUMN_BACKLOG,
	COLUMN_STATE,
	COLUMNS,
};

static const struct table_column session_columns[COLUMNS] = {
	[COLUMN_ID] = { "ID", true },
	[COLUMN_FORWARD] = { "FORWARD", false },
	[COLUMN_CLIENT] = { "CLIENT", false },
	[COLUMN_UPSTREAM] = { "UPSTREAM", false },
	[COLUMN_AGE] = { "AGE", true },
	[COLUMN_BYTES] = { "BYTES", true },
	[COLUMN_HANDOVERS] = { "HAND-OVERS", true },
	[COLUMN_BACKLOG] = { "MAX BACKLOG", true },
	[COLUMN_STATE] = { "STATE", false },
};

/* "CLIENT", or "CLIENT via PROXY". */
static const char *client_cell(struct json_object *session, char *buf, size_t size)
{
	const char *client = member_text(session, "client", KIND_TEXT, NULL, 0);

	if (!member(session, "via"))
		return client;
	snprintf(buf, size, "%s via %s", client, member_text(session, "via", KIND_TEXT, NULL, 0));
	return buf;
}

static void add_session(struct table *t, struct json_object *session)
{
	char id[32], age[32], client[TEXT_MAX];
	const char *cells[COLUMNS] = {
		[COLUMN_ID] = member_text(session, "id", KIND_COUNT, id, sizeof(id)),
		[COLUMN_FORWARD] = member_text(session, "forward", KIND_TEXT, NULL, 0),
		[COLUMN_CLIENT] = client_cell(session, client, sizeof(client)),
		[COLUMN_UPSTREAM] = member_text(session, "upstream", KIND_TEXT, NULL, 0),
		[COLUMN_AGE] = member_text(session, "age_ms", KIND_AGE, age, sizeof(age)),
		[COLUMN_STATE] = member_text(session, "state", KIND_TEXT, NULL, 0),
	};

	table_add(t, cells);
}

static const char *arrow(struct json_object *flow)
{
	const char *direction = member_text(flow, "direction", KIND_TEXT, NULL, 0);

	if (strcmp(direction, "client-to-upstream") == 0)
		return "->";
	if (strcmp(direction, "upstream-to-client") == 0)
		return "<-";
	return "?";
}

static void add_flow(struct table *t, struct json_object *flow)
{
	const char *phase = member_text(flow, "phase", KIND_TEXT, NULL, 0);
	struct json_object *eof = member(flow, "eof");
	bool at_eof = json_object_is_type(eof, json_type_boolean) && json_object_get_boolean(eof);
	char carrier[TEXT_MAX], reason[TEXT_MAX], state[TEXT_MAX];
	char bytes[32], handovers[32], backlog[32];
	const char *cells[COLUMNS] = {
		[COLUMN_CLIENT] = carrier,
		[COLUMN_UPSTREAM] = reason,
		[COLUMN_BYTES] = member_text(flow, "bytes", KIND_BYTES, bytes, sizeof(bytes)),
		[COLUMN_HANDOVERS] =
			member_text(flow, "handovers", KIND_COUNT, handovers, sizeof(handovers)),
		[COLUMN_BACKLOG] =
			member_text(flow, "backlog_max", KIND_BYTES, backlog, sizeof(backlog)),
		[COLUMN_STATE] = state,
	};

	snprintf(carrier, sizeof(carrier), "%s %s", arrow(flow),
		 member_text(flow, "carrier", KIND_TEXT, NULL, 0));
	snprintf(reason, sizeof(reason), "(%s)", member_text(flow, "reason", KIND_TEXT, NULL, 0));
	snprintf(state, sizeof(state), "%s%s", phase, at_eof ? ", eof" : "");
	table_add(t, cells);
}

/* What is missing, and why. */
static void print_silent(FILE *out, struct json_object *answer, const char *what)
{
	int64_t n = json_object_get_int64(member(answer, "workers_silent"));

	if (n > 0)
		fprintf(out, "%lld worker%s not answered: %s missing\n", (long long)n,
			n == 1 ? " has" : "s have", what);
}

int client_view_sessions(struct json_object *answer, FILE *out)
{
	struct json_object *sessions = member(answer, "sessions");
	struct table *t;
	size_t n;
	int r;

	if (!json_object_is_type(sessions, json_type_array))
		return -EINVAL;
	n = json_object_array_length(sessions);
	if (n == 0) {
		fputs("No sessions.\n", out);
		print_silent(out, answer, "sessions may be");
		return 0;
	}

	t = table_new(session_columns, COLUMNS);
	for (size_t i = 0; i < n; i++) {
		struct json_object *session = json_object_array_get_idx(sessions, i);
		struct json_object *flows = member(session, "flows");
		size_t n_flows = json_object_is_type(flows, json_type_array) ?
					 json_object_array_length(flows) :
					 0;

		add_session(t, session);
		for (size_t k = 0; k < n_flows; k++)
			add_flow(t, json_object_array_get_idx(flows, k));
	}
	r = table_print(t, out, 0);
	table_free(t);
	print_silent(out, answer, "sessions may be");
	return r;
}

static struct json_object *lookup_of(struct json_object *forwards, size_t i)
{
	return member(json_object_array_get_idx(forwards, i), "lookup");
}

/* "10.0.0.1:80, [2001:db8::1]:80". */
static void join(struct json_object *list, char *buf, size_t size)
{
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; json_object_is_type(list, json_type_array) &&
			   i < json_object_array_length(list) && at < size; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? ", " : "",
				       value_text(json_object_array_get_idx(list, i), KIND_TEXT,
						  NULL, 0));
}

/* The forwards whose upstream is a name, if there are any. */
static int print_names(FILE *out, struct json_object *forwards)
{
	static const struct table_column columns[] = {
		{ "NAME", false }, { "AGE", true }, { "LOOK-UPS", true }, { "FAILED", true },
		{ "ADDRESSES", false }, { "ERROR", false },
	};
	struct table *t;
	size_t n = json_object_is_type(forwards, json_type_array) ?
			   json_object_array_length(forwards) : 0, names = 0;
	int r;

	for (size_t i = 0; i < n; i++)
		names += json_object_is_type(lookup_of(forwards, i), json_type_object);
	if (!names)
		return 0;
	t = table_new(columns, N_ELEMENTS(columns));
	for (size_t i = 0; i < n; i++) {
		struct json_object *f = json_object_array_get_idx(forwards, i);
		struct json_object *lookup = lookup_of(forwards, i);
		char age[32], lookups[32], failures[32], addresses[TEXT_MAX];
		const char *cells[] = {
			member_text(f, "upstream", KIND_TEXT, NULL, 0),
			member_text(lookup, "age_ms", KIND_AGE, age, sizeof(age)),
			member_text(lookup, "lookups", KIND_COUNT, lookups, sizeof(lookups)),
			member_text(lookup, "failures", KIND_COUNT, failures, sizeof(failures)),
			addresses,
			member_text(lookup, "error", KIND_TEXT, NULL, 0),
		};

		if (!json_object_is_type(lookup, json_type_object))
			continue;
		join(member(f, "addresses"), addresses, sizeof(addresses));
		if (!addresses[0])
			cells[4] = "none";
		table_add(t, cells);
	}
	fputs("\nNames\n", out);
	r = table_print(t, out, 2);
	table_free(t);
	return r;
}

/* The causes that happened: most never do. */
static int print_errors(FILE *out, struct json_object *errors)
{
	static const struct table_column columns[] = { { "CAUSE", false }, { "COUNT", true } };
	struct table *t;
	size_t n = 0;
	char buf[32];
	int r = 0;

	fputs("\nErrors\n", out);
	if (!json_object_is_type(errors, json_type_object)) {
		fputs("  ?\n", out);
		return 0;
	}
	t = table_new(columns, N_ELEMENTS(columns));
	json_object_object_foreach(errors, cause, value) {
		const char *cells[] = { cause, value_text(value, KIND_COUNT, buf, sizeof(buf)) };

		if (strcmp(cells[1], "0") == 0)
			continue;
		table_add(t, cells);
		n++;
	}
	if (n > 0)
		r = table_print(t, out, 2);
	else
		fputs("  none\n", out);
	table_free(t);
	return r;
}

/* "  NAME: yes", or "  NAME: no (why)". */
static void print_available(FILE *out, const char *name, struct json_object *obj)
{
	struct json_object *available = member(obj, "available");
	struct json_object *reason = member(obj, "reason");
	const char *answer = "?";

	if (json_object_is_type(available, json_type_boolean))
		answer = json_object_get_boolean(available) ? "yes" : "no";
	fputs("  ", out);
	print_text(out, name);
	fprintf(out, ": %s", answer);
	if (json_object_is_type(reason, json_type_string) &&
	    json_object_get_string_len(reason) > 0) {
		fputs(" (", out);
		print_text(out, json_object_get_string(reason));
		fputc(')', out);
	}
	fputc('\n', out);
}

/* A feature is a name, or an object with "name", "available" and "reason". */
static void print_kernel(FILE *out, struct json_object *kernel)
{
	struct json_object *features = member(kernel, "features");

	fputs("\nKernel\n", out);
	print_available(out, "available", kernel);
	if (json_object_get_int64(member(kernel, "events_lost")) != 0) {
		print_member(out, "  events lost: ", kernel, "events_lost", KIND_COUNT);
		fputc('\n', out);
	}
	if (!json_object_is_type(features, json_type_array))
		return;
	for (size_t i = 0; i < json_object_array_length(features); i++) {
		struct json_object *feature = json_object_array_get_idx(features, i);

		if (json_object_is_type(feature, json_type_object)) {
			print_available(out, member_text(feature, "name", KIND_TEXT, NULL, 0),
					feature);
			continue;
		}
		fputs("  ", out);
		print_text(out, value_text(feature, KIND_TEXT, NULL, 0));
		fputc('\n', out);
	}
}

int client_view_status(struct json_object *answer, FILE *out)
{
	int r = 0;

	if (!json_object_is_type(answer, json_type_object))
		return -EINVAL;
	print_member(out, "culvert ", answer, "version", KIND_TEXT);
	print_member(out, ", pid ", answer, "pid", KIND_COUNT);
	print_member(out, ", up ", answer, "uptime_ms", KIND_AGE);
	print_member(out, "\nengine ", answer, "engine", KIND_TEXT);
	print_member(out, ", workers ", answer, "workers_active", KIND_COUNT);
	print_member(out, " of ", answer, "workers", KIND_COUNT);
	print_member(out, ", at most ", answer, "max_sessions", KIND_COUNT);
	fputs(" sessions\n", out);
	print_silent(out, answer, "some flows, pipes and buffers are");

	if (member(answer, "forwards")) /* they were asked for */
		r |= print_section(out, "Forwards", forward_fields, N_ELEMENTS(forward_fields),
				   member(answer, "forwards"));
	r |= print_names(out, member(answer, "forwards"));
	r |= print_section(out, "Carriers", carrier_fields, N_ELEMENTS(carrier_fields),
			   member(answer, "carriers"));
	r |= print_section(out, "Hand-overs", handover_fields, N_ELEMENTS(handover_fields),
			   member(answer, "handovers"));
	r |= print_errors(out, member(answer, "errors"));
	print_kernel(out, member(answer, "kernel"));
	if (member(answer, "session_log")) /* there is one */
		r |= print_section(out, "Session log", session_log_fields,
				   N_ELEMENTS(session_log_fields), member(answer, "session_log"));
	r |= print_section(out, "Resources", resource_fields, N_ELEMENTS(resource_fields),
			   member(answer, "resources"));
	return r ? -ENOMEM : 0;
}
