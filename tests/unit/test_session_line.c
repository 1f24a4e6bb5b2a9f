// SPDX-License-Identifier: BSD-2-Clause
/* Every kind of record as a line, which json-c must read as what was put in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <json-c/json.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/session_line.h"

/* 2024-02-29T23:59:59.999Z */
#define LEAP_MS 1709251199999LL

static void set_client(union session_record_room *room, const char *text, uint16_t port)
{
	union client_addr *a = &room->record.client;

	memset(a, 0, sizeof(*a));
	if (inet_pton(AF_INET, text, &a->in.sin_addr) == 1) {
		a->in.sin_family = AF_INET;
		a->in.sin_port = htons(port);
	} else if (inet_pton(AF_INET6, text, &a->in6.sin6_addr) == 1) {
		a->in6.sin6_family = AF_INET6;
		a->in6.sin6_port = htons(port);
	} else {
		a->sa.sa_family = AF_UNIX;
	}
}

static void set_tail(union session_record_room *room, const void *upstream, size_t len,
		     const char *forward)
{
	struct session_record *r = &room->record;

	r->upstream_len = (uint16_t)len;
	r->forward_len = (uint16_t)strlen(forward);
	if (len)
		memcpy(r->tail, upstream, len);
	memcpy(r->tail + len, forward, r->forward_len);
}

/* A session of 5 s that has come to its end, with nothing remarkable about it. */
static void plain(union session_record_room *room)
{
	struct sockaddr_in up = { .sin_family = AF_INET, .sin_port = htons(5432) };

	memset(room, 0, sizeof(*room));
	inet_pton(AF_INET, "10.0.2.2", &up.sin_addr);
	room->record.id = 7;
	room->record.born_ms = 1000;
	room->record.ended_ms = 6000;
	room->record.connect_ms = 3;
	room->record.end = SESSION_FINISHED;
	set_client(room, "10.0.0.5", 40112);
	set_tail(room, &up, sizeof(up), "database");
}

/* The text of the line, terminated, in RET; it must be one line of JSON. */
static struct json_object *line_of(const union session_record_room *room, int64_t offset_ms,
				   char ret[SESSION_LINE_MAX + 1])
{
	struct session_clock clock = { .offset_ms = offset_ms };
	size_t len = session_line(&room->record, &clock, ret);
	struct json_tokener *tok = json_tokener_new();
	struct json_object *o;

	assert_true(len > 2 && len <= SESSION_LINE_MAX);
	ret[len] = '\0';
	assert_int_equal(strlen(ret), len);
	assert_ptr_equal(strchr(ret, '\n'), ret + len - 1);
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	o = json_tokener_parse_ex(tok, ret, (int)len);
	if (!o)
		fail_msg("%s: %s", json_tokener_error_desc(json_tokener_get_error(tok)), ret);
	json_tokener_free(tok);
	return o;
}

static struct json_object *member(struct json_object *o, const char *key)
{
	struct json_object *value = NULL;

	if (!json_object_object_get_ex(o, key, &value))
		fail_msg("no member %s", key);
	return value;
}

static const char *text(struct json_object *o, const char *key)
{
	return json_object_get_string(member(o, key));
}

static int64_t number(struct json_object *o, const char *key)
{
	assert_true(json_object_is_type(member(o, key), json_type_int));
	return json_object_get_int64(member(o, key));
}

static void test_finished(void **state)
{
	union session_record_room room;
	char line[SESSION_LINE_MAX + 1];
	struct json_object *o, *flow;

	(void)state;
	plain(&room);
	room.record.flows[0] = (struct flow_record){ .bytes = { 1, 20, 300 }, .handovers = 2,
						     .carrier = CARRIER_SPLICE,
						     .reason = REASON_BULK };
	room.record.flows[1] = (struct flow_record){ .bytes = { 4000, 0, 0 } };
	o = line_of(&room, LEAP_MS - 6000, line);
	assert_string_equal(
		line,
		"{\"time\":\"2024-02-29T23:59:59.999Z\",\"start\":\"2024-02-29T23:59:54.999Z\","
		"\"id\":7,\"forward\":\"database\",\"client\":\"10.0.0.5:40112\","
		"\"upstream\":\"10.0.2.2:5432\",\"end\":\"finished\",\"duration_ms\":5000,"
		"\"connect_ms\":3,\"bytes_to_upstream\":321,\"bytes_to_client\":4000,\"flows\":["
		"{\"direction\":\"client-to-upstream\",\"carrier\":\"splice\",\"reason\":\"bulk\","
		"\"handovers\":2,\"copy_bytes\":1,\"splice_bytes\":20,\"kernel_bytes\":300},"
		"{\"direction\":\"upstream-to-client\",\"carrier\":\"copy\",\"reason\":\"start\","
		"\"handovers\":0,\"copy_bytes\":4000,\"splice_bytes\":0,\"kernel_bytes\":0}]}\n");
	flow = json_object_array_get_idx(member(o, "flows"), 0);
	assert_int_equal(number(flow, "kernel_bytes"), 300);
	json_object_put(o);
}

/* Each cause by its name; what never connected has no flows. */
static void test_ends(void **state)
{
	union session_record_room room;
	char line[SESSION_LINE_MAX + 1];
	struct json_object *o;

	(void)state;
	for (unsigned int end = 0; end <= CAUSES; end++) {
		plain(&room);
		room.record.end = (uint8_t)end;
		room.record.connect_ms = end % 2 ? 0 : SESSION_NEVER_CONNECTED;
		o = line_of(&room, 0, line);
		assert_string_equal(text(o, "end"), end == CAUSES ? "finished" : cause_name(end));
		assert_int_equal(json_object_array_length(member(o, "flows")), end % 2 ? 2 : 0);
		if (end % 2)
			assert_int_equal(number(o, "connect_ms"), 0);
		else
			assert_null(member(o, "connect_ms"));
		json_object_put(o);
	}
}

static void test_refused(void **state)
{
	struct sockaddr_in6 client = { .sin6_family = AF_INET6, .sin6_port = htons(1),
				       .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	union session_record_room room;
	char line[SESSION_LINE_MAX + 1];
	struct json_object *o;

	(void)state;
	session_record_refused(&room, "web", (struct sockaddr *)&client, 86400000, CAUSE_DENIED);
	assert_true(room.record.size <= sizeof(room));
	assert_int_equal(room.record.size % _Alignof(struct session_record), 0);
	o = line_of(&room, 0, line);
	assert_string_equal(text(o, "time"), "1970-01-02T00:00:00.000Z");
	assert_string_equal(text(o, "start"), text(o, "time"));
	assert_null(member(o, "id"));
	assert_null(member(o, "upstream"));
	assert_null(member(o, "connect_ms"));
	assert_string_equal(text(o, "forward"), "web");
	assert_string_equal(text(o, "client"), "[::1]:1");
	assert_string_equal(text(o, "end"), "denied");
	assert_int_equal(number(o, "duration_ms"), 0);
	assert_int_equal(number(o, "bytes_to_upstream"), 0);
	json_object_put(o);
}

static void test_addresses(void **state)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(443) };
	struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "/run/a\"b\\\xff.sock" };
	union session_record_room room;
	char line[SESSION_LINE_MAX + 1];
	struct json_object *o;

	(void)state;
	plain(&room);
	inet_pton(AF_INET6, "2001:db8::7", &six.sin6_addr);
	set_client(&room, "2001:db8::1", 65535);
	set_tail(&room, &six, sizeof(six), "six");
	o = line_of(&room, 0, line);
	assert_string_equal(text(o, "client"), "[2001:db8::1]:65535");
	assert_false(json_object_object_get_ex(o, "via", NULL));
	assert_string_equal(text(o, "upstream"), "[2001:db8::7]:443");
	assert_string_equal(text(o, "forward"), "six");
	json_object_put(o);

	plain(&room);
	set_client(&room, "unix", 0);
	set_tail(&room, &un, sizeof(un), "local");
	client_addr_set(&room.record.via, (struct sockaddr *)&six);
	o = line_of(&room, 0, line);
	assert_string_equal(text(o, "client"), "unix:");
	assert_string_equal(text(o, "via"), "[2001:db8::7]:443");
	assert_string_equal(text(o, "upstream"), "unix:/run/a\"b\\?.sock");
	assert_string_equal(text(o, "forward"), "local");
	json_object_put(o);
}

/* A name is what the configuration says: whatever that is, the line is JSON, in UTF-8. */
static void test_names(void **state)
{
	static const struct {
		const char *name, *want;
	} names[] = {
		{ "", "" },
		{ "b\xc3\xbcro-\xe2\x82\xac-\xf0\x9f\x9a\xb0",
		  "b\xc3\xbcro-\xe2\x82\xac-\xf0\x9f\x9a\xb0" },
		{ "q\"uo\\te", "q\"uo\\te" },
		{ "\x01\n\t\x7f", "\x01\n\t\x7f" },
		{ "\xff\xfe", "??" },
		{ "cut\xe2\x82", "cut??" },
		{ "\xc0\xaf", "??" },                 /* overlong */
		{ "\xe0\x80\x80\xf0\x80\x80\x80", "???????" },
		{ "\xed\xa0\x80", "???" },            /* a surrogate */
		{ "\xf4\x90\x80\x80\xf5", "?????" },  /* beyond the last one */
		{ "\xc3(", "?(" },
	};
	union session_record_room room;
	char line[SESSION_LINE_MAX + 1];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct json_object *o;

		plain(&room);
		set_tail(&room, NULL, 0, names[i].name);
		o = line_of(&room, 0, line);
		assert_string_equal(text(o, "forward"), names[i].want);
		json_object_put(o);
	}
}

/* The longest that there can be. */
static void test_room(void **state)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_storage client = { .ss_family = AF_INET6 };
	char line[SESSION_LINE_MAX + 1], name[2 * SESSION_FORWARD_MAX];
	union session_record_room room;

	(void)state;
	memset(name, 1, sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	session_record_refused(&room, name, (struct sockaddr *)&client, UINT64_MAX / 4, 0);
	assert_int_equal(room.record.forward_len, SESSION_FORWARD_MAX);
	assert_true(room.record.size <= sizeof(room));
	memset(&room.record.client, 0xff, sizeof(room.record.client));
	room.record.client.sa.sa_family = AF_INET6;
	memset(un.sun_path, '\\', sizeof(un.sun_path));
	name[SESSION_FORWARD_MAX] = '\0';
	set_tail(&room, &un, sizeof(un), name);
	memset(room.record.flows, 0x7f, sizeof(room.record.flows));
	room.record.connect_ms = UINT32_MAX - 1;
	room.record.id = UINT64_MAX;
	room.record.born_ms = 0;
	room.record.ended_ms = 100000000000ULL * 365 * 24; /* far beyond the year 9999 */
	json_object_put(line_of(&room, 0, line));
}

/* One clock for many lines: the text of a second is kept, and must change with it. */
static void test_clock(void **state)
{
	static const struct {
		uint64_t at_ms;
		int64_t offset_ms;
		const char *want;
	} times[] = {
		{ 0, LEAP_MS, "2024-02-29T23:59:59.999Z" },
		{ 1, LEAP_MS, "2024-03-01T00:00:00.000Z" },
		{ 10, LEAP_MS, "2024-03-01T00:00:00.009Z" },
		{ 100, LEAP_MS, "2024-03-01T00:00:00.099Z" },
		{ 0, LEAP_MS, "2024-02-29T23:59:59.999Z" },
		{ 0, LEAP_MS - 3600000, "2024-02-29T22:59:59.999Z" }, /* somebody set the clock */
		{ 0, 0, "1970-01-01T00:00:00.000Z" },
	};
	struct session_clock clock = { .offset_ms = 0 };
	union session_record_room room;
	char line[SESSION_LINE_MAX + 1];

	(void)state;
	plain(&room);
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		size_t len;

		room.record.born_ms = room.record.ended_ms = times[i].at_ms;
		clock.offset_ms = times[i].offset_ms;
		len = session_line(&room.record, &clock, line);
		assert_memory_equal(line, "{\"time\":\"", 9);
		line[len] = '\0';
		assert_memory_equal(line + 9, times[i].want, strlen(times[i].want));
		assert_non_null(strstr(line, "\"start\":\""));
		assert_memory_equal(strstr(line, "\"start\":\"") + 9, times[i].want,
				    strlen(times[i].want));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_finished),  cmocka_unit_test(test_ends),
		cmocka_unit_test(test_refused),   cmocka_unit_test(test_addresses),
		cmocka_unit_test(test_names),     cmocka_unit_test(test_room),
		cmocka_unit_test(test_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
