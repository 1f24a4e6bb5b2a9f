// SPDX-License-Identifier: BSD-2-Clause
/* Socket addresses: odd ones as text (fuzz_addr: in less room), and their ports. */
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "unit.h"
#include "base/addr.h"

#define A10 "aaaaaaaaaa"
#define A100 A10 A10 A10 A10 A10 A10 A10 A10 A10 A10

static void expect_format(const void *sa, size_t len, const char *expected)
{
	char buf[ADDR_STRLEN];

	assert_string_equal(addr_format(sa, (socklen_t)len, buf, sizeof(buf)), expected);
}

TEST(test_format_odd)
{
	size_t offset = offsetof(struct sockaddr_un, sun_path);
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_storage ss = { .ss_family = AF_UNSPEC };
	struct sockaddr_in in = { .sin_family = AF_INET };

	expect_format(&un, 0, "?");
	expect_format(&un, 1, "?");
	expect_format(&un, offset, "unix:(unnamed)");
	expect_format(&ss, sizeof(ss), "?");
	expect_format(&in, sizeof(in) - 1, "?");
	expect_format(&(struct sockaddr_in6){ .sin6_family = AF_INET6 }, sizeof(in), "?");

	memcpy(un.sun_path, "/a\n\x1b\xff", 5);
	expect_format(&un, offset + 5, "unix:/a???");
	expect_format(&un, sizeof(un), "unix:/a???");
	memcpy(un.sun_path, "\0b\nc", 4);
	expect_format(&un, offset + 4, "unix:@b?c");
	expect_format(&un, offset + 1, "unix:@");

	/* The kernel may report a path that fills sun_path and has no terminator. */
	memcpy(un.sun_path, "/1234567" A100, sizeof(un.sun_path));
	expect_format(&un, sizeof(un), "unix:/1234567" A100);
	expect_format(&un, sizeof(un) + 1, "unix:/1234567" A100);
}

static struct addr inet(sa_family_t family, in_port_t port)
{
	struct addr a = { .ss.ss_family = family };

	a.len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	addr_set_port(&a, port);
	return a;
}

TEST(test_port)
{
	static const sa_family_t families[] = { AF_INET, AF_INET6 };
	struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "/run/a" };
	struct addr a, same;

	for (size_t i = 0; i < 2; i++) {
		struct addr none = inet(families[i], 0), one = inet(families[i], htons(443));

		assert_int_equal(addr_port(&none), 0);
		assert_true(addr_takes_any_port(&none));
		assert_int_equal(addr_port(&one), htons(443));
		assert_false(addr_takes_any_port(&one));
	}
	a = inet(AF_INET6, htons(443));
	assert_int_equal(((struct sockaddr_in6 *)&a.ss)->sin6_port, htons(443));

	a = (struct addr){ .len = sizeof(un) };
	memcpy(&a.ss, &un, sizeof(un));
	same = a;
	addr_set_port(&a, htons(443)); /* which would be a part of the path */
	assert_memory_equal(&a, &same, sizeof(a));
	assert_int_equal(addr_port(&a), 0);
	assert_false(addr_takes_any_port(&a));
}

UNIT_MAIN(NULL, NULL)
