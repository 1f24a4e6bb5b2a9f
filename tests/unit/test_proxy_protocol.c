// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

#include "config/endpoint.h"
#include "proxy_rig.h"

/*
 * Reading and writing PROXY headers: the rules of the specification, and what real programs send.
 * fuzz_proxy_protocol compares the reader with a second one, byte by byte.
 */

#define D10 "1234567890"
#define D90 D10 D10 D10 D10 D10 D10 D10 D10 D10
#define FULL6 "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"

static const struct {
	const char *line; /* without CRLF */
	const char *source;
	const char *destination;
} v1_good[] = {
	{ "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443", "192.168.0.1:56324",
	  "192.168.0.11:443" },
	{ "PROXY TCP4 0.0.0.0 0.0.0.0 0 0", "0.0.0.0:0", "0.0.0.0:0" },
	{ "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535", "255.255.255.255:65535",
	  "255.255.255.255:65535" },
	{ "PROXY TCP6 :: :: 0 0", "[::]:0", "[::]:0" },
	{ "PROXY TCP6 ::1 2001:DB8::a 1 10", "[::1]:1", "[2001:db8::a]:10" },
	{ "PROXY TCP6 " FULL6 " " FULL6 " 65535 65535", "[" FULL6 "]:65535", "[" FULL6 "]:65535" },
	{ "PROXY TCP6 0001:02:3:4:5:6:7:8 1:2:3:4:5:6:7:: 1 2", "[1:2:3:4:5:6:7:8]:1",
	  "[1:2:3:4:5:6:7:0]:2" },
	{ "PROXY TCP6 1::8 ::2:3:4:5:6:7:8 1 2", "[1::8]:1", "[0:2:3:4:5:6:7:8]:2" },
	/* IPv4-mapped, in either notation */
	{ "PROXY TCP6 ::ffff:1.2.3.4 0:0:0:0:0:FFFF:0506:0708 1 2", "1.2.3.4:1", "5.6.7.8:2" },
	{ "PROXY TCP6 ::ffff:102:304 ::1 1 2", "1.2.3.4:1", "[::1]:2" },
	{ "PROXY TCP6 ::fffe:102:304 ::1.2.3.4 1 2", "[::fffe:102:304]:1", "[::1.2.3.4]:2" },
};

static void test_v1_good(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(v1_good) / sizeof(v1_good[0]); i++) {
		struct bytes b = bytes_of(v1_good[i].line, strlen(v1_good[i].line));

		put(&b, "\r\n", 2);
		expect_addresses(&b, 1, v1_good[i].source, v1_good[i].destination);
	}
}

/* What is between UNKNOWN and CRLF is ignored, whatever it is; it may be omitted. */
static void test_v1_unknown(void **state)
{
	static const struct {
		const char *line;
		size_t n;
	} good[] = {
#define LINE(text) { text "\r\n", N(text) + 2 }
		LINE("PROXY UNKNOWN"),
		LINE("PROXY UNKNOWN "),
		LINE("PROXY UNKNOWN 1.2.3.4 5.6.7.8 1 2"),
		LINE("PROXY UNKNOWN " FULL6 " " FULL6 " 65535 65535"), /* 107 bytes */
		LINE("PROXY UNKNOWN \0\xff\t  \x7f"),
		LINE("PROXY UNKNOWN a\rb\nc\n\rd"),
		LINE("PROXY UNKNOWN \r"),
#undef LINE
	};

	(void)state;
	assert_int_equal(good[3].n, 107);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct bytes b = bytes_of(good[i].line, good[i].n);
		struct proxy_header h = expect_header(&b, 1, PROXY_UNKNOWN);

		assert_int_equal(h.source.len, 0);
		assert_int_equal(h.destination.len, 0);
	}
}

static const struct {
	const char *line; /* CRLF is behind */
	size_t n;
	const char *reason;
} v1_bad[] = {
#define LINE(text) text, N(text)
	{ LINE("GET / HTTP/1.1"), "no PROXY header" },
	{ LINE("PROXY"), "no PROXY header" },
	{ LINE("proxy TCP4 1.2.3.4 5.6.7.8 1 2"), "no PROXY header" },
	{ LINE("PROXY\tTCP4 1.2.3.4 5.6.7.8 1 2"), "no PROXY header" },
	{ LINE("PROXY "), "neither TCP4" },
	{ LINE("PROXY tcp4 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY TCP5 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY TCP4"), "neither TCP4" },
	{ LINE("PROXY UNKNOWNS"), "neither TCP4" },
	{ LINE("PROXY UNKNOWN\tx"), "neither TCP4" },
	{ LINE("PROXY UNKNOWN\rx"), "neither TCP4" },

	{ LINE("PROXY TCP4 "), "bad source address" },
	{ LINE("PROXY TCP4  1.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.4"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.256 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.04 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 00.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 localhost 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.4\0 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 ::1 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 fe80::1%1 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 ::: ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1:2:3:4:5:6:7:8:9 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 00001::1 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 " FULL6 "f ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 0000:0000:0000:0000:0000:ffff:111.111.111.111 ::1 1 2"),
	  "bad source address" },

	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8"), "bad destination address" },
	{ LINE("PROXY TCP4 1.2.3.4 ::1 1 2"), "bad destination address" },
	{ LINE("PROXY TCP6 ::1 1.2.3.4 1 2"), "bad destination address" },

	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8  2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 65536 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 01 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 -1 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1/ 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 "), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 "), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\0"), "bad destination port" },

	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n"), "CR or LF alone" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r"), "CR or LF alone" },
	{ LINE("PROXY TCP4 1.2.3.4\n5.6.7.8 1 2"), "CR or LF alone" },

	/* one byte more than the longest of each form */
	{ LINE("PROXY TCP4 255.255.255.255 255.255.255.255 65535 655350"), "line too long" },
	{ LINE("PROXY TCP6 " FULL6 " " FULL6 " 65535 655350"), "line too long" },
	{ LINE("PROXY UNKNOWN " FULL6 " " FULL6 " 65535 655350"), "line too long" },
	{ LINE("PROXY UNKNOWN " D90 D90), "line too long" },
#undef LINE
};

static void test_v1_bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(v1_bad) / sizeof(v1_bad[0]); i++) {
		struct bytes b = bytes_of(v1_bad[i].line, v1_bad[i].n);

		put(&b, "\r\n", 2);
		expect_bad(b.at, b.n, b.n + 1, v1_bad[i].reason);
	}
}

/* What no further byte can mend is told at once. */
static void test_early(void **state)
{
	(void)state;
	expect_bad("GET", 3, 1, "no PROXY header");
	expect_bad("\r\nG", 3, 3, "no PROXY header");
	expect_bad("\r\n\r\nG", 5, 5, "no PROXY header");
	expect_bad("PROXY X", 7, 7, "neither TCP4");
	expect_bad("PROXY UNKNOWNX", 14, 14, "neither TCP4");
	expect_bad("PROXY TCP4 \n", 12, 12, "CR or LF alone");
	expect_bad("PROXY TCP4 \rx", 13, 13, "CR or LF alone");
	/* No room for the LF, and no CR. */
	expect_bad("PROXY TCP4 " D10 D10 D10 D10 "12345", 56, 55, "line too long");
	expect_bad("PROXY TCP4 " D10 D10 D10 D10 "1234\n", 56, 55, "line too long");
	expect_bad("PROXY TCP4 " D10 D10 D10 D10 "123\rx", 56, 56, "CR or LF alone");
	expect_bad(SIGNATURE "\x31", 13, 13, "unknown version");
	expect_bad(SIGNATURE "\x22", 13, 13, "unknown command");
	expect_bad(SIGNATURE "\x21\x41", 14, 14, "unknown address family");
	expect_bad(SIGNATURE "\x21\x13", 14, 14, "unknown transport protocol");
	expect_bad(SIGNATURE "\x21\x11\x00\x0b", 16, 16, "too short");
	expect_bad(SIGNATURE "\x21\x11\x0f\xf1", 16, 16, "too long");
}

/*
 * Sent by haproxy 2.6.12 over loopback, and captured by a plain receiver, with "payload" from the
 * client behind; the options of its server line are beside each.
 */
static const struct capture {
	const char *bytes;
	size_t n;
	size_t payload;
	unsigned int version;
	enum proxy_kind kind;
	const char *source;
	const char *destination;
} captures[] = {
#define BYTES(text) text "payload", N(text "payload"), N("payload")
	/* send-proxy */
	{ BYTES("PROXY TCP4 127.0.0.1 127.0.0.1 38998 7001\r\n"), 1, PROXY_ADDRESSES,
	  "127.0.0.1:38998", "127.0.0.1:7001" },
	{ BYTES("PROXY TCP6 ::1 ::1 55790 7002\r\n"), 1, PROXY_ADDRESSES, "[::1]:55790",
	  "[::1]:7002" },
	/* the same, an IPv4 client of "bind :::7003 v4v6" */
	{ BYTES("PROXY TCP6 ::ffff:127.0.0.1 ::ffff:127.0.0.1 60874 7003\r\n"), 1, PROXY_ADDRESSES,
	  "127.0.0.1:60874", "127.0.0.1:7003" },
	/* the same, a client of a unix socket */
	{ BYTES("PROXY UNKNOWN\r\n"), 1, PROXY_UNKNOWN, NULL, NULL },
	/* send-proxy check check-send-proxy */
	{ "PROXY TCP4 127.0.0.1 127.0.0.1 37506 8013\r\n", 43, 0, 1, PROXY_ADDRESSES,
	  "127.0.0.1:37506", "127.0.0.1:8013" },
	/* send-proxy-v2 */
	{ BYTES(SIGNATURE "!\021\000\014\177\000\000\001\177\000\000\001\350\026\033]"), 2,
	  PROXY_ADDRESSES, "127.0.0.1:59414", "127.0.0.1:7005" },
	{ BYTES(SIGNATURE "!!\000$\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001"
		"\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001\347f\033^"), 2,
	  PROXY_ADDRESSES, "[::1]:59238", "[::1]:7006" },
	/* send-proxy-v2 proxy-v2-options crc32c,unique-id */
	{ BYTES(SIGNATURE "!\021\0001\177\000\000\001\177\000\000\001\347\370\033_\003\000\004\014"
		"\257s\035\005\000\0337F000001:E7F8_7F000001:1B5F"), 2,
	  PROXY_ADDRESSES, "127.0.0.1:59384", "127.0.0.1:7007" },
	/* send-proxy-v2 proxy-v2-options crc32c */
	{ BYTES(SIGNATURE "!!\000+\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001"
		"\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\001\222\364\033`\003"
		"\000\004Z\255\244>"), 2,
	  PROXY_ADDRESSES, "[::1]:37620", "[::1]:7008" },
	/* the same, an IPv4 client of "bind :::7010 v4v6" */
	{ BYTES(SIGNATURE "!!\000+\000\000\000\000\000\000\000\000\000\000\377\377\177\000\000\001"
		"\000\000\000\000\000\000\000\000\000\000\377\377\177\000\000\001\232N\033b\003"
		"\000\004:\360\213\035"), 2,
	  PROXY_ADDRESSES, "127.0.0.1:39502", "127.0.0.1:7010" },
	/* the same, a client of a unix socket */
	{ BYTES(SIGNATURE " \000\000\007\003\000\004\251\270~\217"), 2, PROXY_LOCAL, NULL, NULL },
	/* send-proxy-v2 proxy-v2-options crc32c check check-send-proxy */
	{ SIGNATURE " \000\000\007\003\000\004\251\270~\217", 23, 0, 2, PROXY_LOCAL, NULL, NULL },
	/*
	 * send-proxy-v2-ssl-cn
	 * proxy-v2-options crc32c,ssl,cert-cn,ssl-cipher,cert-key,cert-sig,authority
	 */
	{ BYTES(SIGNATURE "!\021\000g\177\000\000\001\177\000\000\001\235\030\033c\003\000\004#\356"
		"\3145\001\000\002h2\002\000\ndb.example \000?\001\000\000\000\000!\000\007TLSv1.3"
		"%\000\007RSA2048$\000\nRSA-SHA256#\000\026TLS_AES_256_GCM_SHA384"), 2,
	  PROXY_ADDRESSES, "127.0.0.1:40216", "127.0.0.1:7011" },
#undef BYTES
};
#define CAPTURES (sizeof(captures) / sizeof(captures[0]))

static struct bytes captured_header(const struct capture *c)
{
	return bytes_of(c->bytes, c->n - c->payload);
}

static void test_real_programs(void **state)
{
	struct proxy_header h;
	const char *reason;

	(void)state;
	for (size_t i = 0; i < CAPTURES; i++) {
		const struct capture *c = &captures[i];
		struct bytes b = captured_header(c);

		if (c->source)
			expect_addresses(&b, c->version, c->source, c->destination);
		else
			expect_header(&b, c->version, c->kind);
		assert_int_equal(parse(c->bytes, c->n, &h, &reason), 0);
		assert_int_equal(h.size, c->n - c->payload);
	}
}

/* --- version 2 --- */

static void test_v2_inet(void **state)
{
	struct bytes b = v2_inet(0x21, 0x11);

	(void)state;
	expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:10");
	b = v2_begin(0x21, 0x11);
	put(&b, "\xff\xff\xff\xff\0\0\0\0\xff\xff\0\0", 12);
	v2_end(&b);
	expect_addresses(&b, 2, "255.255.255.255:65535", "0.0.0.0:0");
}

static void test_v2_inet6(void **state)
{
	struct bytes b = v2_begin(0x21, 0x21);

	(void)state;
	put(&b, "\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1", 16);
	put(&b, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\x12\x34\0\x50", 20);
	v2_end(&b);
	expect_addresses(&b, 2, "[2001:db8::1]:4660", "[::1]:80");
	memcpy(b.at + 16, "\0\0\0\0\0\0\0\0\0\0\xff\xff\1\2\3\4", 16);
	expect_addresses(&b, 2, "1.2.3.4:4660", "[::1]:80");
}

static void put_path(struct bytes *b, const char *path, size_t n)
{
	uint8_t room[108] = { 0 };

	memcpy(room, path, n);
	put(b, room, sizeof(room));
}

static void test_v2_unix(void **state)
{
	struct bytes b = v2_begin(0x21, 0x31);
	char longest[6 + 108] = "unix:/";
	struct proxy_header h;

	(void)state;
	put_path(&b, "/run/x\0behind", 13);
	put_path(&b, "\0name", 5);
	v2_end(&b);
	h = expect_addresses(&b, 2, "unix:/run/x", "unix:@name");
	assert_int_equal(h.source.len, offsetof(struct sockaddr_un, sun_path) + 7);
	assert_int_equal(h.destination.len, offsetof(struct sockaddr_un, sun_path) + 5);

	b = v2_begin(0x21, 0x31);
	memset(longest + 6, 'p', 107);
	put_path(&b, longest + 5, 108);
	put_path(&b, "", 0);
	v2_end(&b);
	assert_int_equal(b.n, 232);
	h = expect_addresses(&b, 2, longest, "unix:(unnamed)");
	assert_int_equal(h.source.len, sizeof(struct sockaddr_un));
	assert_int_equal(h.destination.len, sizeof(sa_family_t));
}

/* Each value of the byte for family and protocol: known, UNSPEC, or refused; never with LOCAL. */
static void test_v2_families(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 256; i++) {
		unsigned int family = i >> 4, protocol = i & 15;
		struct bytes b = v2_begin(0x21, (uint8_t)i);

		put(&b, (uint8_t[216]){ 0 }, 216);
		v2_end(&b);
		if (family > 3 || protocol > 2) {
			expect_bad(b.at, b.n, 14,
				   family > 3 ? "address family" : "transport protocol");
		} else {
			bool known = family != 0 && protocol == 1;

			expect_header(&b, 2, known ? PROXY_ADDRESSES : PROXY_UNKNOWN);
		}
		b.at[12] = 0x20;
		expect_header(&b, 2, PROXY_LOCAL);
	}
}

/* Of all bytes for version and command two are good. */
static void test_v2_commands(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < 256; i++) {
		struct bytes b = v2_inet((uint8_t)i, 0x11);

		if (i == 0x20 || i == 0x21)
			expect_header(&b, 2, i == 0x20 ? PROXY_LOCAL : PROXY_ADDRESSES);
		else
			expect_bad(b.at, b.n, 13, i >> 4 == 2 ? "command" : "version");
	}
}

static void test_v2_longest(void **state)
{
	struct bytes b = v2_inet(0x21, 0x11);
	static const uint8_t zeros[PROXY_PROTOCOL_MAX];

	(void)state;
	v2_tlv(&b, 4, zeros, PROXY_PROTOCOL_MAX - b.n - 3);
	v2_end(&b);
	assert_int_equal(b.n, PROXY_PROTOCOL_MAX);
	expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:10");
	for (size_t n = PROXY_PROTOCOL_MAX - 15; n <= 65535; n += n == 65535 ? 1 : 30720) {
		v2_length(&b, n);
		expect_bad(b.at, 16, 16, "too long");
	}
}

static void test_tlvs_are_well_formed(void **state)
{
	struct bytes b = v2_inet(0x21, 0x11), whole;

	(void)state;
	v2_tlv(&b, 1, "h2", 2);
	v2_tlv(&b, 2, "db.example", 10);
	v2_end(&b);
	whole = b;
	for (b.n = 29; b.n < whole.n; b.n++) {
		v2_end(&b);
		if (b.n == 33)
			expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:10");
		else
			expect_bad(b.at, b.n, b.n, "TLV");
	}
	whole.at[29] = 1; /* 258 bytes */
	expect_bad(whole.at, whole.n, whole.n, "a TLV is longer");
}

static struct bytes with_checksum(uint8_t command, uint8_t family, size_t addresses)
{
	struct bytes b = v2_begin(command, family);
	size_t at;

	for (size_t i = 0; i < addresses; i++)
		put(&b, (uint8_t[]){ (uint8_t)(i + 1) }, 1);
	v2_tlv(&b, 1, "h2", 2);
	v2_tlv(&b, 3, "\0\0\0\0", 4);
	at = b.n - 4;
	v2_tlv(&b, 4, "behind", 6);
	v2_end(&b);
	v2_checksum(&b, at);
	return b;
}

/* Right, and with each bit of the checksum or of the end wrong; wherever the TLVs can be found. */
static void test_checksum(void **state)
{
	static const struct {
		uint8_t command, family;
		size_t addresses;
		enum proxy_kind kind;
	} cases[] = {
		{ 0x21, 0x11, 12, PROXY_ADDRESSES }, { 0x21, 0x21, 36, PROXY_ADDRESSES },
		{ 0x21, 0x31, 216, PROXY_ADDRESSES }, { 0x21, 0x12, 12, PROXY_UNKNOWN },
		{ 0x21, 0x10, 12, PROXY_UNKNOWN }, { 0x21, 0x00, 0, PROXY_UNKNOWN },
		{ 0x20, 0x00, 0, PROXY_LOCAL }, { 0x20, 0x11, 12, PROXY_LOCAL },
	};

	(void)state;
	assert_int_equal(crc_by_bits((const uint8_t *)"123456789", 9), 0xe3069283);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bytes b = with_checksum(cases[i].command, cases[i].family,
					       cases[i].addresses);
		size_t end = b.n;

		expect_header(&b, 2, cases[i].kind);
		for (size_t bit = 0; bit < 32; bit++) {
			b.at[end - 13 + bit / 8] ^= (uint8_t)(1 << bit % 8);
			expect_bad(b.at, b.n, b.n, "wrong checksum");
			b.at[end - 13 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		b.at[end - 1] ^= 1;
		expect_bad(b.at, b.n, b.n, "wrong checksum");
	}
}

/* --- writing --- */

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

static void test_write_v1(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
		struct bytes b = write_pair(1, written[i].source, written[i].destination);
		struct bytes line = bytes_of("PROXY ", 6);

		put(&line, written[i].line, strlen(written[i].line));
		put(&line, "\r\n", 2);
		if (b.n != line.n || memcmp(b.at, line.at, b.n))
			fail_msg("%.*s, not %.*s", (int)b.n, b.at, (int)line.n, line.at);
		if (written[i].read_source)
			expect_addresses(&b, 1, written[i].read_source, written[i].read_destination);
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

static void test_write_v2(void **state)
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

static void test_write_unix(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_v1_good),
		cmocka_unit_test(test_v1_unknown),
		cmocka_unit_test(test_v1_bad),
		cmocka_unit_test(test_early),
		cmocka_unit_test(test_real_programs),
		cmocka_unit_test(test_v2_inet),
		cmocka_unit_test(test_v2_inet6),
		cmocka_unit_test(test_v2_unix),
		cmocka_unit_test(test_v2_families),
		cmocka_unit_test(test_v2_commands),
		cmocka_unit_test(test_v2_longest),
		cmocka_unit_test(test_tlvs_are_well_formed),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_write_v1),
		cmocka_unit_test(test_write_v2),
		cmocka_unit_test(test_write_unix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
