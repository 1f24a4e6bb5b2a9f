// SPDX-License-Identifier: BSD-2-Clause
/*
 * Reading and writing PROXY headers: the rules of the specification; flow/real_programs has real
 * ones.
 */
#include <string.h>

#include "unit.h"
#include "config/endpoint.h"
#include "proxy_rig.h"

#define D10 "1234567890"
#define D90 D10 D10 D10 D10 D10 D10 D10 D10 D10
#define FULL6 "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"

/* As culvert does not write them; the others are below. */
static const struct {
	const char *line; /* without CRLF */
	const char *source;
	const char *destination;
} v1_good[] = {
	{ "PROXY TCP6 ::1 2001:DB8::a 1 10", "[::1]:1", "[2001:db8::a]:10" },
	{ "PROXY TCP6 0001:02:3:4:5:6:7:8 1:2:3:4:5:6:7:: 1 2", "[1:2:3:4:5:6:7:8]:1",
	  "[1:2:3:4:5:6:7:0]:2" },
	{ "PROXY TCP6 1::8 ::2:3:4:5:6:7:8 1 2", "[1::8]:1", "[0:2:3:4:5:6:7:8]:2" },
	/* IPv4-mapped, in either notation */
	{ "PROXY TCP6 ::ffff:1.2.3.4 0:0:0:0:0:FFFF:0506:0708 1 2", "1.2.3.4:1", "5.6.7.8:2" },
	{ "PROXY TCP6 ::ffff:102:304 ::1 1 2", "1.2.3.4:1", "[::1]:2" },
	{ "PROXY TCP6 ::fffe:102:304 ::1.2.3.4 1 2", "[::fffe:102:304]:1", "[::1.2.3.4]:2" },
};

TEST(test_v1_good)
{
	for (size_t i = 0; i < sizeof(v1_good) / sizeof(v1_good[0]); i++) {
		struct bytes b = bytes_of(v1_good[i].line, strlen(v1_good[i].line));

		put(&b, "\r\n", 2);
		expect_addresses(&b, 1, v1_good[i].source, v1_good[i].destination);
	}
}

/* What is between UNKNOWN and CRLF is ignored, whatever it is; it may be omitted. */
TEST(test_v1_unknown)
{
	static const struct {
		const char *line;
		size_t n;
	} good[] = {
#define CRLF(text) { text "\r\n", N(text) + 2 }
		CRLF("PROXY UNKNOWN"),
		CRLF("PROXY UNKNOWN " FULL6 " " FULL6 " 65535 65535"), /* 107 bytes */
		CRLF("PROXY UNKNOWN \0\xff\t  \x7f"),
		CRLF("PROXY UNKNOWN a\rb\nc\n\rd"),
		CRLF("PROXY UNKNOWN \r"),
#undef CRLF
	};

	assert_int_equal(good[1].n, 107);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct bytes b = bytes_of(good[i].line, good[i].n);

		expect_header(&b, 1, false);
	}
}

#define LINE(text) text, N(text)
#define TALK(text) LINE("PROXY TCP4 1.2.3.4" text)

TEST(test_v1_bad)
{
	static const struct {
		const char *line; /* CRLF is behind */
		size_t n;
	} bad[] = {
		{ LINE("PROXY ") },
		{ LINE("PROXY tcp4 1.2.3.4 5.6.7.8 1 2") },
		{ LINE("PROXY TCP5 1.2.3.4 5.6.7.8 1 2") },
		{ LINE("PROXY UNKNOWNS") },
		{ LINE("PROXY TCP4  1.2.3.4 5.6.7.8 1 2") },
		{ LINE("PROXY TCP4 1.2.3.256 5.6.7.8 1 2") },
		{ LINE("PROXY TCP4 ::1 ::1 1 2") },
		{ LINE("PROXY TCP6 1.2.3.4 5.6.7.8 1 2") },
		{ LINE("PROXY TCP6 fe80::1%1 ::1 1 2") },
		{ LINE("PROXY TCP6 " FULL6 "f ::1 1 2") },
		{ LINE("PROXY TCP6 ::1 1.2.3.4 1 2") },
		{ TALK("") },
		{ TALK("\0 5.6.7.8 1 2") },
		{ TALK(" 5.6.7.8 1") },
		{ TALK(" 5.6.7.8  2") },
		{ TALK(" 5.6.7.8 65536 2") },
		{ TALK(" 5.6.7.8 01 2") },
		{ TALK(" 5.6.7.8 1 ") },
		{ TALK(" 5.6.7.8 1 2 ") },
		{ TALK(" 5.6.7.8 1 2\0") },
		{ TALK(" 5.6.7.8 1 2\r") },
		{ TALK("\n5.6.7.8 1 2") },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct bytes b = bytes_of(bad[i].line, bad[i].n);

		put(&b, "\r\n", 2);
		expect_bad(b.at, b.n, "bad addresses or ports");
	}
}

/* What is no header at all is told at once. */
TEST(test_early)
{
	expect_bad("G", 1, "no PROXY header");
	expect_bad("PROXY\tTCP4", 10, "no PROXY header");
	expect_bad("PROXY\n", 6, "no PROXY header");
	expect_bad("\r\n\r\nG", 5, "no PROXY header");
	expect_bad("PROXY " D90 "12345678901", 107, "line too long");
	expect_bad("PROXY UNKNOWN " FULL6 " " FULL6 " 65535 655350\r\n", 108, "line too long");
	expect_bad(SIGNATURE "\x21\x11\x00\x0b", 16, "too short");
	expect_bad(SIGNATURE "\x21\x21\x00\x23", 16, "too short");
	expect_bad(SIGNATURE "\x21\x11\x0f\xf1", 16, "too long");
}

/* --- version 2 --- */

/* Each value of the byte for family and protocol: known, UNSPEC, or refused; never with LOCAL. */
TEST(test_v2_families)
{
	for (unsigned int i = 0; i < 256; i++) {
		unsigned int family = i >> 4, protocol = i & 15;
		struct bytes b = v2_begin(0x21, (uint8_t)i);

		put(&b, (uint8_t[216]){ 0 }, 216);
		v2_end(&b);
		if (family > 3 || protocol > 2) {
			expect_bad(b.at, 16, "unknown address family");
		} else {
			bool known = (family == 1 || family == 2) && protocol;

			expect_header(&b, 2, known);
		}
		b.at[12] = 0x20;
		expect_header(&b, 2, false);
	}
}

/* Of all bytes for version and command two are good. */
TEST(test_v2_commands)
{
	for (unsigned int i = 0; i < 256; i++) {
		struct bytes b = v2_inet((uint8_t)i, 0x11);

		if (i == 0x20 || i == 0x21)
			expect_header(&b, 2, i == 0x21);
		else
			expect_bad(b.at, 16, "unknown version or command");
	}
}

TEST(test_v2_longest)
{
	struct bytes b = v2_inet(0x21, 0x11);
	static const uint8_t zeros[PROXY_PROTOCOL_MAX];

	v2_tlv(&b, 4, zeros, PROXY_PROTOCOL_MAX - b.n - 3);
	v2_end(&b);
	assert_int_equal(b.n, PROXY_PROTOCOL_MAX);
	expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:10");
	for (size_t n = PROXY_PROTOCOL_MAX - 15; n <= 65535; n += n == 65535 ? 1 : 30720) {
		v2_length(&b, n);
		expect_bad(b.at, 16, "too long");
	}
}

/* --- writing --- */

static union client_addr addr_of(const char *text)
{
	union client_addr a;
	struct endpoint e;

	assert_null(endpoint_parse(text, true, false, &e));
	client_addr_set(&a, (const struct sockaddr *)&e.addrs[0].ss);
	endpoint_close(&e);
	return a;
}

static struct bytes write_pair(unsigned int version, const char *source, const char *destination)
{
	struct proxy_header h = { .version = version,
				  .has_addresses = true,
				  .source = addr_of(source),
				  .destination = addr_of(destination) };
	struct bytes b = { .n = 0 };

	b.n = proxy_protocol_write(&h, b.at);
	assert_true(b.n < PROXY_PROTOCOL_WRITE_MAX);
	return b;
}

static const struct {
	const char *source, *destination;
	const char *line;
	const char *read_source, *read_destination;
} written[] = {
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
	{ "1.2.3.4:5", "[::1]:6", "TCP6 ::ffff:1.2.3.4 ::1 5 6", "1.2.3.4:5", "[::1]:6" },
	{ "[::1]:6", "0.0.0.0:0", "TCP6 ::1 ::ffff:0.0.0.0 6 0", "[::1]:6", "0.0.0.0:0" },
};

TEST(test_write_v1)
{
	for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
		struct bytes b = write_pair(1, written[i].source, written[i].destination);
		struct bytes line = bytes_of("PROXY ", 6);

		put(&line, written[i].line, strlen(written[i].line));
		put(&line, "\r\n", 2);
		if (b.n != line.n || memcmp(b.at, line.at, b.n))
			fail_msg("%.*s, not %.*s", (int)b.n, b.at, (int)line.n, line.at);
		expect_addresses(&b, 1, written[i].read_source, written[i].read_destination);
	}
}

static void expect_bytes(struct bytes b, const char *bytes, size_t n)
{
	assert_int_equal(b.n, N(SIGNATURE) + n);
	assert_memory_equal(b.at, SIGNATURE, N(SIGNATURE));
	assert_memory_equal(b.at + N(SIGNATURE), bytes, n);
}

TEST(test_write_v2)
{
	struct bytes b = write_pair(2, "1.2.3.4:5", "6.7.8.9:65535");

	expect_bytes(b, "\x21\x11\0\x0c\1\2\3\4\6\7\x8\x9\0\5\xff\xff", 16);
	expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:65535");

	b = write_pair(2, "[fe80::1%1]:1", "[::2]:258");
	expect_bytes(b,
		     "\x21\x21\0\x24\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\1"
		     "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\1\1\2",
		     40);
	expect_addresses(&b, 2, "[fe80::1]:1", "[::2]:258");
	b = write_pair(2, "1.2.3.4:1", "[::2]:258");
	expect_bytes(b,
		     "\x21\x21\0\x24\0\0\0\0\0\0\0\0\0\0\xff\xff\1\2\3\4"
		     "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\1\1\2",
		     40);
	expect_addresses(&b, 2, "1.2.3.4:1", "[::2]:258");
}

TEST(test_write_local)
{
	struct proxy_header h = { .version = 2 };
	struct bytes b = { .n = proxy_protocol_write(&h, b.at) };

	expect_bytes(b, "\x20\0\0\0", 4);
	h.version = 1;
	b.n = proxy_protocol_write(&h, b.at);
	expect_header(&b, 1, false);
}

UNIT_MAIN(NULL, NULL)
