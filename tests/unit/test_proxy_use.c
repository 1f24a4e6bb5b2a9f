// SPDX-License-Identifier: BSD-2-Clause
/* The value of `proxy-protocol`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>

#include "relay/proxy_use.h"

static void test_good(void **state)
{
	static const struct {
		const char *text;
		unsigned int use;
	} cases[] = {
		{ "off", 0 },
		{ "receive", PROXY_RECEIVE },
		{ "send-v1", PROXY_SEND_V1 },
		{ "send-v2", PROXY_SEND_V2 },
		{ "receive, send-v1", PROXY_RECEIVE | PROXY_SEND_V1 },
		{ "receive,send-v2", PROXY_RECEIVE | PROXY_SEND_V2 },
		{ "send-v2 receive", PROXY_RECEIVE | PROXY_SEND_V2 },
		{ " send-v1\t,,receive ,", PROXY_RECEIVE | PROXY_SEND_V1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned int use = 77, again = 78;

		assert_int_equal(proxy_use_parse(cases[i].text, &use), 0);
		assert_int_equal(use, cases[i].use);
		assert_int_equal(proxy_use_parse(proxy_use_text(use), &again), 0);
		assert_int_equal(again, use);
	}
}

static void test_bad(void **state)
{
	static const char *const cases[] = {
		"", " ", ",", "yes", "on", "send", "v2", "Receive", "receiver", "receive-", "recv",
		"send-v3", "send-v1, send-v2", "send-v2 send-v2", "receive, receive", "off, off",
		"off, receive", "send-v1 off", "receive; send-v1", "receive+send-v1", "offreceive",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned int use = 77;

		assert_int_equal(proxy_use_parse(cases[i], &use), -EINVAL);
		assert_int_equal(use, 77);
	}
}

static void test_text(void **state)
{
	(void)state;
	assert_string_equal(proxy_use_text(PROXY_RECEIVE | PROXY_SEND_V2), "receive, send-v2");
	assert_string_equal(proxy_use_text(PROXY_SEND), "?");
	assert_string_equal(proxy_use_text(8), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
