// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "proxy_rig.h"

/*
 * Reading PROXY headers of version 1: each rule of the specification; and of both versions: what is
 * told early, what real programs send, and what becomes of a header with one byte changed.
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
	{ LINE("PROX"), "no PROXY header" },
	{ LINE("PROXY"), "no PROXY header" },
	{ LINE("proxy TCP4 1.2.3.4 5.6.7.8 1 2"), "no PROXY header" },
	{ LINE("PROXY\tTCP4 1.2.3.4 5.6.7.8 1 2"), "no PROXY header" },
	{ LINE(" PROXY TCP4 1.2.3.4 5.6.7.8 1 2"), "no PROXY header" },
	{ LINE("PROXY "), "neither TCP4" },
	{ LINE("PROXY  TCP4 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY tcp4 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY TCP 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY TCP5 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY UDP4 1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY TCP4\t1.2.3.4 5.6.7.8 1 2"), "neither TCP4" },
	{ LINE("PROXY TCP4"), "neither TCP4" },
	{ LINE("PROXY unknown"), "neither TCP4" },
	{ LINE("PROXY UNKNOW"), "neither TCP4" },
	{ LINE("PROXY UNKNOWNS"), "neither TCP4" },
	{ LINE("PROXY UNKNOWN\tx"), "neither TCP4" },
	{ LINE("PROXY UNKNOWN\rx"), "neither TCP4" },
	{ LINE("PROXY UNKNOWN\n"), "neither TCP4" },

	{ LINE("PROXY TCP4 "), "bad source address" },
	{ LINE("PROXY TCP4  1.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.4"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.4.5 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2..4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.256 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.04 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 00.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 +1.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.0x4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 localhost 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.4\0 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 ::1 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 ::ffff:1.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1.2.3.4 5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 [::1] ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 fe80::1%1 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 ::: ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1::2::3 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1:2:3:4:5:6:7 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1:2:3:4:5:6:7:8:9 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1:2:3:4:5:6:7:8:: ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 00001::1 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1:::2 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 :1:2:3:4:5:6:7:8 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 1:2:3:4:5:6:7: ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 ::g ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 ::1\0 ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 " FULL6 "f ::1 1 2"), "bad source address" },
	{ LINE("PROXY TCP6 0000:0000:0000:0000:0000:ffff:111.111.111.111 ::1 1 2"),
	  "bad source address" },

	{ LINE("PROXY TCP4 1.2.3.4  5.6.7.8 1 2"), "bad destination address" },
	{ LINE("PROXY TCP4 1.2.3.4\t5.6.7.8 1 2"), "bad source address" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8"), "bad destination address" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.08 1 2"), "bad destination address" },
	{ LINE("PROXY TCP4 1.2.3.4 ::1 1 2"), "bad destination address" },
	{ LINE("PROXY TCP6 ::1 1.2.3.4 1 2"), "bad destination address" },

	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8  2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 65536 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 99999 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 4294967297 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 01 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 00 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 -1 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 +1 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 0x1 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 a 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1/ 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1: 2"), "bad source port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 "), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 "), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3"), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1  2"), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\0"), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 02"), "bad destination port" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 65536"), "bad destination port" },

	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n"), "CR or LF alone" },
	{ LINE("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r"), "CR or LF alone" },
	{ LINE("PROXY TCP4 1.2.3.4\n5.6.7.8 1 2"), "CR or LF alone" },
	{ LINE("PROXY TCP4 \r1.2.3.4 5.6.7.8 1 2"), "CR or LF alone" },

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

static void expect_least(const char *start, size_t least)
{
	struct proxy_header h;
	const char *reason;

	assert_int_equal(parse(start, strlen(start), &h, &reason), -EAGAIN);
	if (h.size != least)
		fail_msg("\"%s\" asks for %zu, not %zu", start, h.size, least);
}

/* As many as any header has that begins so. */
static void test_v1_least(void **state)
{
	(void)state;
	expect_least("", 15);
	expect_least("P", 15);
	expect_least("PROXY ", 15);
	expect_least("PROXY T", 22);
	expect_least("PROXY TCP4", 32);
	expect_least("PROXY TCP6 ", 22);
	expect_least("PROXY UNKNOWN", 15);
	expect_least("PROXY UNKNOWN\r", 15);
	expect_least("PROXY UNKNOWN ", 16);
	expect_least("PROXY TCP4 1.2.3.4 5.6.7.8 1 2", 32);
	expect_least("PROXY TCP4 1.2.3.4 5.6.7.8 1 20", 33);
	expect_least("PROXY TCP4 1.2.3.4 5.6.7.8 1 20\r", 33);
	expect_least("\r", 16);
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

/* --- both versions --- */

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

/*
 * The first answer that is not "more", asking as a session does: each time that as many bytes are
 * there as it wants.  It must be the answer to all bytes at once.
 */
static int expect_same_in_pieces(const struct bytes *b, struct proxy_header *h)
{
	const char *reason, *whole_reason;
	struct proxy_header whole;
	int r, whole_r;
	size_t n = 0;

	while ((r = parse(b->at, n, h, &reason)) == -EAGAIN && h->size <= b->n)
		n = h->size;
	whole_r = parse(b->at, b->n, &whole, &whole_reason);
	if (r == -EAGAIN) { /* it wants more than there is; a mistake may be there already */
		assert_int_not_equal(whole_r, 0);
		return r;
	}
	assert_int_equal(whole_r, r);
	assert_int_equal(whole.size, h->size);
	if (r == -EPROTO)
		assert_string_equal(reason, whole_reason);
	if (r == 0) {
		assert_int_equal(whole.kind, h->kind);
		assert_true(addr_equal(&whole.source, &h->source));
		assert_true(addr_equal(&whole.destination, &h->destination));
	}
	return r;
}

/* Every other value of every byte: an answer like any, and what is taken is told again the same. */
static void test_mutations(void **state)
{
	unsigned int taken = 0, refused = 0;

	(void)state;
	for (size_t i = 0; i < CAPTURES; i++) {
		struct bytes all = bytes_of(captures[i].bytes, captures[i].n);

		for (size_t k = 0; k < 256 * (all.n - captures[i].payload); k++) {
			struct bytes b = all, again;
			struct proxy_header h, h2;
			int r;

			b.at[k / 256] = (uint8_t)(k % 256);
			r = expect_same_in_pieces(&b, &h);
			refused += r == -EPROTO;
			taken += r == 0;
			if (r != 0)
				continue;
			again.n = proxy_protocol_write(&h, again.at);
			assert_int_equal(expect_same_in_pieces(&again, &h2), 0);
			assert_int_equal(h2.size, again.n);
			assert_true(h2.kind == h.kind);
			assert_true(addr_equal(&h2.source, &h.source));
			assert_true(addr_equal(&h2.destination, &h.destination));
		}
	}
	assert_true(taken > 1000);
	assert_true(refused > 1000);
}

/*
 * No byte of a header under a checksum can be changed and the addresses still be believed, unless
 * the change hides the checksum: a length that ends before it, or another type.
 */
static void test_mutations_under_checksum(void **state)
{
	unsigned int tried = 0;

	(void)state;
	for (size_t i = 0; i < CAPTURES; i++) {
		struct bytes all = captured_header(&captures[i]);
		size_t checksum = all.at[13] == 0x11 ? 28 : 52;

		if (captures[i].version != 2 || !captures[i].source || all.n <= checksum)
			continue;
		for (size_t k = 0; k < 256 * all.n; k++) {
			struct bytes b = all;
			struct proxy_header h;
			const char *reason;
			int r;

			b.at[k / 256] = (uint8_t)(k % 256);
			r = parse(b.at, b.n, &h, &reason);
			if (b.at[k / 256] == all.at[k / 256] || k / 256 == checksum ||
			    (k / 256 == 15 && r == 0 && h.size == checksum))
				continue;
			if (r == 0 && h.kind == PROXY_ADDRESSES)
				fail_msg("capture %zu: byte %zu may be %zu", i, k / 256, k % 256);
			tried++;
		}
	}
	assert_true(tried > 60000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_v1_good),
		cmocka_unit_test(test_v1_unknown),
		cmocka_unit_test(test_v1_bad),
		cmocka_unit_test(test_v1_least),
		cmocka_unit_test(test_early),
		cmocka_unit_test(test_real_programs),
		cmocka_unit_test(test_mutations),
		cmocka_unit_test(test_mutations_under_checksum),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
