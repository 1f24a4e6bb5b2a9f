// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a host name is, and what a hello offers.  fuzz_tls_hello compares the parser with a model;
 * flow/server_names.py has hellos of any size and in any pieces.
 */
#include <string.h>

#include "unit.h"
#include "base/tls_hello.h"

TEST(test_names)
{
	static const char *const none[] = { "",           "example.org.", ".example.org",
					    "a..b",       "192.0.2.1",    "2001:db8::1",
					    "1",          "exa mple",     "a/b",
					    "ex\x80mple", "*.b" };
	char name[TLS_NAME_MAX + 1], longest[TLS_NAME_MAX + 2];

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		if (tls_name(none[i], strlen(none[i]), name))
			fail_msg("%s", none[i]);
	assert_true(tls_name("Example.Org", 11, name));
	assert_string_equal(name, "example.org");
	/* labels of at most 63 bytes, and 255 in all */
	memset(longest, 'a', sizeof(longest));
	assert_true(tls_name(longest, 63, name));
	assert_false(tls_name(longest, 64, name));
	for (size_t i = 63; i < sizeof(longest); i += 64)
		longest[i] = '.';
	assert_true(tls_name(longest, TLS_NAME_MAX, name));
	longest[255] = 'a';
	longest[200] = '.';
	assert_false(tls_name(longest, TLS_NAME_MAX + 1, name));
}

TEST(test_offers)
{
	const struct tls_hello h = { .alpn = "\2h2\10http/1.1", .alpn_len = 12 };

	assert_true(tls_hello_offers(&h, "h2", 2) && tls_hello_offers(&h, "http/1.1", 8));
	assert_false(tls_hello_offers(&h, "h", 1) || tls_hello_offers(&h, "h3", 2));
}

UNIT_MAIN(NULL, NULL)
