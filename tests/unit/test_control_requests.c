/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests as they are understood, and what is refused. */
#include <stdbool.h>
#include <string.h>

#include "unit.h"
#include "daemon/control_requests.h"

TEST(test_changes)
{
	static const struct {
		const char *line;
		bool changes;
	} cases[] = {
		{ "{\"command\":\"kill\",\"id\":9223372036854775807}", true },
		{ "{\"command\":\"kill\",\"all\":false,\"id\":1}", true },
		{ "{\"command\":\"engine\",\"forward\":\"x\"}", false },
		{ "{\"command\":\"engine\",\"forward\":\"x\",\"engine\":\"copy\"}", true },
		{ "{\"command\":\"drain\",\"forward\":\"x\",\"undo\":true}", true },
		{ "{\"command\":\"status\",\"brief\":true}", false },
		{ "{\"command\":\"log-level\"}", false },
		{ "{\"command\":\"reload\"}", true },
		{ "{\"command\":\"reload\",\"number\":7}", false },
		{ "{\"command\":\"log-level\",\"level\":\"debug\"}", true },
		{ "{\"command\":\"forwards\",\"forward\":\"x\"}", false },
		{ "status", false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct request req;
		struct json_object *wrong = request_parse(cases[i].line, &req);

		if (wrong || request_changes(&req) != cases[i].changes)
			fail_msg("%s: %s", cases[i].line, json_object_to_json_string(wrong));
		request_close(&req);
	}
}

static const struct {
	const char *line, *due;
} refused[] = {
	{ "", ERROR_MALFORMED },
	{ "{}", ERROR_MALFORMED },
	{ "status status", ERROR_MALFORMED },
	{ "{\"command\":[\"status\"]}", ERROR_MALFORMED },
	{ "{\"command\":\"st\\u0000\"}", ERROR_MALFORMED },
	{ "{\"command\":\"\xff\"}", ERROR_MALFORMED },
	{ "{\"command\":\"status\",\"a\":[[[[1]]]]}", ERROR_MALFORMED },
	{ "true", ERROR_UNKNOWN_COMMAND },
	{ "{\"command\":\"x\\u001b[2J\\n\"}", ERROR_UNKNOWN_COMMAND },
	{ "{\"command\":\"status\",\"id\":1}", ERROR_UNKNOWN_KEY },
	{ "{\"command\":\"status\",\"all\":true}", ERROR_UNKNOWN_KEY },
	{ "{\"command\":\"sessions\",\"forward\":\"\"}", ERROR_BAD_VALUE },
	{ "{\"command\":\"sessions\",\"forward\":\"a\\u0000b\"}", ERROR_BAD_VALUE },
	{ "{\"command\":\"sessions\",\"client\":\"10.0.0.1/8\"}", ERROR_BAD_VALUE },
	{ "{\"command\":\"sessions\",\"carrier\":\"Copy\"}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\",\"id\":0}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\",\"id\":9223372036854775808}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\",\"id\":[1,99999999999999999999999]}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\",\"id\":[]}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\",\"id\":[1,\"2\"]}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\",\"all\":1}", ERROR_BAD_VALUE },
	{ "{\"command\":\"reload\",\"number\":0}", ERROR_BAD_VALUE },
	{ "{\"command\":\"kill\"}", ERROR_MISSING_KEY },
	{ "{\"command\":\"kill\",\"all\":false}", ERROR_MISSING_KEY },
	{ "{\"command\":\"engine\",\"engine\":\"copy\"}", ERROR_MISSING_KEY },
	{ "{\"command\":\"engine\",\"forward\":\"x\",\"engine\":\"fast\"}", ERROR_BAD_VALUE },
	{ "{\"command\":\"drain\",\"forward\":\"x\",\"deadline\":-1}", ERROR_BAD_VALUE },
	{ "{\"command\":\"drain\",\"forward\":\"x\",\"deadline\":86401}", ERROR_BAD_VALUE },
	{ "{\"command\":\"drain\",\"forward\":\"x\",\"deadline\":1e999}", ERROR_BAD_VALUE },
};

TEST(test_refused)
{
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct request req;
		struct json_object *wrong = request_parse(refused[i].line, &req), *code = NULL;

		json_pointer_get(wrong, "/error/code", &code);
		if (!code || strcmp(json_object_get_string(code), refused[i].due) != 0)
			fail_msg("%s: %s", refused[i].line, json_object_to_json_string(wrong));
		json_object_put(wrong);
		request_close(&req);
	}
}

UNIT_MAIN(NULL, NULL)
