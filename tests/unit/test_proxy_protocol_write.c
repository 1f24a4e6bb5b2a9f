// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

#include "config/endpoint.h"
#include "proxy_rig.h"
#include "seeded.h"

/* Writing PROXY headers, and reading them again. */

#define FULL6 "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"

static struct addr addr_of(const char *text)
{
	struct endpoint e;
	char err[256];
	struct addr a;

	if (endpoint_parse(text, true, &e, err, sizeof(err)) < 0)
		fail_msg("%s: %s", text, err);
	a = e.addrs[0];
	endpoint_close(&e);
	return a;
}

static struct bytes write_header(unsigned int version, enum proxy_kind kind,
				 const struct addr *source, const struct addr *destination)
{
	struct proxy_header h = { .version = version, .kind = kind };
	struct bytes b = { .n = 0 };

	if (source)
		h.source = *source;
	if (destination)
		h.destination = *destination;
	b.n = proxy_protocol_write(&h, b.at);
	assert_true(b.n <= PROXY_PROTOCOL_WRITE_MAX);
	return b;
}

static struct bytes write_pair(unsigned int version, const char *source, const char *destination)
{
	struct addr a = addr_of(source), b = addr_of(destination);

	return write_header(version, PROXY_ADDRESSES, &a, &b);
}

/* NULL for both addresses: they are not told. */
static const struct {
	const char *source, *destination;
	const char *line;
	const char *read_source, *read_destination;
} v1[] = {
	{ "1.2.3.4:5", "6.7.8.9:10", "TCP4 1.2.3.4 6.7.8.9 5 10", "1.2.3.4:5", "6.7.8.9:10" },
	{ "0.0.0.0:0", "0.0.0.0:0", "TCP4 0.0.0.0 0.0.0.0 0 0", "0.0.0.0:0", "0.0.0.0:0" },
	{ "255.255.255.255:65535", "255.255.255.255:65535",
	  "TCP4 255.255.255.255 255.255.255.255 65535 65535", "255.255.255.255:65535",
	  "255.255.255.255:65535" },
	{ "[::]:0", "[2001:DB8::1]:80", "TCP6 :: 2001:db8::1 0 80", "[::]:0", "[2001:db8::1]:80" },
	{ "[" FULL6 "]:65535", "[" FULL6 "]:65535", "TCP6 " FULL6 " " FULL6 " 65535 65535",
	  "[" FULL6 "]:65535", "[" FULL6 "]:65535" },
	{ "[fe80::1%1]:1", "[fe80::2%1]:2", "TCP6 fe80::1 fe80::2 1 2", "[fe80::1]:1",
	  "[fe80::2]:2" },
	/* IPv4-mapped */
	{ "[::ffff:1.2.3.4]:5", "[::ffff:6.7.8.9]:10", "TCP4 1.2.3.4 6.7.8.9 5 10", "1.2.3.4:5",
	  "6.7.8.9:10" },
	{ "[::ffff:1.2.3.4]:5", "6.7.8.9:10", "TCP4 1.2.3.4 6.7.8.9 5 10", "1.2.3.4:5",
	  "6.7.8.9:10" },
	{ "1.2.3.4:5", "[::1]:6", "TCP6 0:0:0:0:0:ffff:102:304 ::1 5 6", "1.2.3.4:5", "[::1]:6" },
	{ "[::1]:6", "[::ffff:0.0.0.0]:0", "TCP6 ::1 0:0:0:0:0:ffff:0:0 6 0", "[::1]:6",
	  "0.0.0.0:0" },
	/* no dots in what is IPv6 */
	{ "[::1.2.3.4]:1", "[::1]:2", "TCP6 0:0:0:0:0:0:102:304 ::1 1 2", "[::1.2.3.4]:1",
	  "[::1]:2" },
	{ "unix:/run/a", "unix:/run/b", "UNKNOWN", NULL, NULL },
	{ "unix:/run/a", "1.2.3.4:5", "UNKNOWN", NULL, NULL },
	{ "[::1]:5", "unix:@b", "UNKNOWN", NULL, NULL },
};

static void test_v1(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(v1) / sizeof(v1[0]); i++) {
		struct bytes b = write_pair(1, v1[i].source, v1[i].destination);
		struct bytes line = bytes_of("PROXY ", 6);

		put(&line, v1[i].line, strlen(v1[i].line));
		put(&line, "\r\n", 2);
		if (b.n != line.n || memcmp(b.at, line.at, b.n))
			fail_msg("%.*s, not %.*s", (int)b.n, b.at, (int)line.n, line.at);
		if (v1[i].read_source)
			expect_addresses(&b, 1, v1[i].read_source, v1[i].read_destination);
		else
			expect_header(&b, 1, PROXY_UNKNOWN);
	}
}

static void expect_bytes(struct bytes b, const char *bytes, size_t n)
{
	assert_int_equal(b.n, N(SIGNATURE) + n);
	assert_memory_equal(b.at, SIGNATURE, N(SIGNATURE));
	assert_memory_equal(b.at + N(SIGNATURE), bytes, n);
}

static void test_v2(void **state)
{
	struct bytes b = write_pair(2, "1.2.3.4:5", "6.7.8.9:65535");

	(void)state;
	expect_bytes(b, "\x21\x11\0\x0c\1\2\3\4\6\7\x8\x9\0\5\xff\xff", 16);
	expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:65535");
	expect_bytes(write_pair(2, "[::ffff:1.2.3.4]:5", "6.7.8.9:65535"),
		     "\x21\x11\0\x0c\1\2\3\4\6\7\x8\x9\0\5\xff\xff", 16);

	b = write_pair(2, "[fe80::1%1]:1", "[::2]:258");
	expect_bytes(b, "\x21\x21\0\x24\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\1"
			"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\1\1\2", 40);
	expect_addresses(&b, 2, "[fe80::1]:1", "[::2]:258");
	b = write_pair(2, "1.2.3.4:1", "[::2]:258");
	expect_bytes(b, "\x21\x21\0\x24\0\0\0\0\0\0\0\0\0\0\xff\xff\1\2\3\4"
			"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\1\1\2", 40);
	expect_addresses(&b, 2, "1.2.3.4:1", "[::2]:258");
}

static void test_v2_unix(void **state)
{
	char longest[6 + 108] = "unix:/", expected[4 + 216] = "\x21\x31\0\xd8/run/a";
	struct addr unnamed = { .len = sizeof(sa_family_t) }, full = addr_of("unix:/x");
	struct bytes b = write_pair(2, "unix:/run/a", "unix:@b");

	(void)state;
	memcpy(expected + 4 + 108, "\0b", 2);
	expect_bytes(b, expected, sizeof(expected));
	expect_addresses(&b, 2, "unix:/run/a", "unix:@b");

	memset(longest + 6, 'p', 106);
	b = write_pair(2, longest, longest);
	expect_addresses(&b, 2, longest, longest);

	/* A path that fills its room has no end. */
	longest[112] = 'p';
	memset(((struct sockaddr_un *)&full.ss)->sun_path, 'p', 108);
	((struct sockaddr_un *)&full.ss)->sun_path[0] = '/';
	full.len = sizeof(struct sockaddr_un);
	unnamed.ss.ss_family = AF_UNIX;
	b = write_header(2, PROXY_ADDRESSES, &full, &unnamed);
	expect_addresses(&b, 2, longest, "unix:(unnamed)");
}

/* What is behind the end of a path, or behind the address, is nobody's business. */
static void test_unix_ends(void **state)
{
	struct addr path = addr_of("unix:/run/a"), name = addr_of("unix:@b");
	struct bytes expected = write_header(2, PROXY_ADDRESSES, &path, &name), b;

	(void)state;
	memset(((struct sockaddr_un *)&path.ss)->sun_path + 7, 'p', 20);
	path.len += 10;
	memset(((struct sockaddr_un *)&name.ss)->sun_path + 2, 'p', 20);
	b = write_header(2, PROXY_ADDRESSES, &path, &name);
	assert_int_equal(b.n, expected.n);
	assert_memory_equal(b.at, expected.at, b.n);
}

static void test_no_addresses(void **state)
{
	struct addr a = addr_of("1.2.3.4:5"), other = { .len = sizeof(sa_family_t) };
	struct bytes b;

	(void)state;
	other.ss.ss_family = AF_PACKET;
	expect_bytes(write_header(2, PROXY_LOCAL, NULL, NULL), "\x20\0\0\0", 4);
	expect_bytes(write_header(2, PROXY_LOCAL, &a, &a), "\x20\0\0\0", 4);
	expect_bytes(write_header(2, PROXY_UNKNOWN, NULL, NULL), "\x21\0\0\0", 4);
	expect_bytes(write_header(2, PROXY_UNKNOWN, &a, &a), "\x21\0\0\0", 4);
	expect_bytes(write_header(2, PROXY_ADDRESSES, &a, NULL), "\x21\0\0\0", 4);
	expect_bytes(write_header(2, PROXY_ADDRESSES, &other, &other), "\x21\0\0\0", 4);
	expect_bytes(write_pair(2, "unix:/a", "1.2.3.4:5"), "\x21\0\0\0", 4);
	expect_bytes(write_pair(2, "[::1]:5", "unix:/a"), "\x21\0\0\0", 4);

	b = write_header(2, PROXY_LOCAL, NULL, NULL);
	expect_header(&b, 2, PROXY_LOCAL);
	b = write_header(2, PROXY_UNKNOWN, NULL, NULL);
	expect_header(&b, 2, PROXY_UNKNOWN);
	for (int kind = PROXY_LOCAL; kind <= PROXY_ADDRESSES; kind++) {
		b = write_header(1, (enum proxy_kind)kind, &other, &a);
		assert_int_equal(b.n, 15);
		assert_memory_equal(b.at, "PROXY UNKNOWN\r\n", 15);
	}
}

/* What reading gives: never IPv4-mapped. */
static void random_inet(struct seeded *r, struct addr *a)
{
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
				    .sin6_port = (in_port_t)seeded_next(r) };
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = in6.sin6_port,
				  .sin_addr.s_addr = (in_addr_t)seeded_next(r) };

	memset(a, 0, sizeof(*a));
	if (seeded_below(r, 2)) {
		memcpy(&a->ss, &in, sizeof(in));
		a->len = sizeof(in);
		return;
	}
	/* with runs of zeros, for "::" */
	for (size_t i = 0; i < 8; i++) {
		uint16_t group = seeded_below(r, 2) ? (uint16_t)seeded_size(r, 16) : 0;

		memcpy(&in6.sin6_addr.s6_addr[2 * i], &group, 2);
	}
	memcpy(&a->ss, &in6, sizeof(in6));
	a->len = sizeof(in6);
}

static void test_round_trip(void **state)
{
	struct seeded r = { 400 };

	(void)state;
	for (int i = 0; i < 5000; i++) {
		struct addr source, destination;

		random_inet(&r, &source);
		random_inet(&r, &destination);
		for (unsigned int version = 1; version <= 2; version++) {
			struct bytes b = write_header(version, PROXY_ADDRESSES, &source,
						      &destination);
			struct proxy_header h = expect_header(&b, version, PROXY_ADDRESSES);

			assert_true(addr_equal(&h.source, &source));
			assert_true(addr_equal(&h.destination, &destination));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_v1),
		cmocka_unit_test(test_v2),
		cmocka_unit_test(test_v2_unix),
		cmocka_unit_test(test_unix_ends),
		cmocka_unit_test(test_no_addresses),
		cmocka_unit_test(test_round_trip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
