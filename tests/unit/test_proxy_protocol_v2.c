// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

#include "proxy_rig.h"

/* Reading PROXY headers of version 2: each rule of the specification. */

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

/* The length counts, also where the addresses do not. */
static void test_v2_lengths(void **state)
{
	static const struct {
		uint8_t command, family;
		size_t least;
	} cases[] = {
		{ 0x20, 0x00, 0 }, { 0x20, 0x11, 0 }, { 0x20, 0xff, 0 }, { 0x21, 0x00, 0 },
		{ 0x21, 0x10, 0 }, { 0x21, 0x01, 0 }, { 0x21, 0x11, 12 }, { 0x21, 0x12, 12 },
		{ 0x21, 0x21, 36 }, { 0x21, 0x22, 36 }, { 0x21, 0x31, 216 }, { 0x21, 0x32, 216 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (size_t n = 0; n <= 300; n++) {
			struct bytes b = v2_begin(cases[i].command, cases[i].family);
			struct proxy_header h;
			const char *reason;
			int r;

			for (size_t k = 0; k < n; k++)
				put(&b, "\xee", 1);
			v2_end(&b);
			r = parse(b.at, b.n, &h, &reason);
			/* 0xeeee is too long for a TLV, where TLVs must be */
			assert_int_equal(r, cases[i].least == 0 || n == cases[i].least ? 0
										       : -EPROTO);
			assert_int_equal(r == 0 ? h.size : b.n, b.n);
			assert_int_equal(reason && strstr(reason, "too short"), n < cases[i].least);
		}
	}
}

/* Once the length is there, all of the header is asked for at once. */
static void test_v2_least(void **state)
{
	struct bytes b = v2_inet(0x21, 0x11);
	struct proxy_header h;
	const char *reason;

	(void)state;
	v2_tlv(&b, 1, "h2", 2);
	v2_end(&b);
	for (size_t n = 1; n < b.n; n++) {
		assert_int_equal(parse(b.at, n, &h, &reason), -EAGAIN);
		assert_int_equal(h.size, n < 16 ? 16 : 33);
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

/* --- TLVs --- */

static void test_tlvs_are_skipped(void **state)
{
	(void)state;
	for (unsigned int type = 0; type < 256; type++) {
		struct bytes b = v2_inet(0x21, 0x11);

		if (type == 3)
			continue;
		v2_tlv(&b, (uint8_t)type, "\3\0\4abcd", 7);
		v2_tlv(&b, (uint8_t)type, "", 0);
		v2_tlv(&b, 4, "", 0);
		v2_end(&b);
		expect_addresses(&b, 2, "1.2.3.4:5", "6.7.8.9:10");
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

static void test_checksum_form(void **state)
{
	struct bytes b;

	(void)state;
	for (size_t n = 0; n < 8; n++) {
		b = v2_inet(0x21, 0x11);
		v2_tlv(&b, 3, "\0\0\0\0\0\0\0", n);
		v2_end(&b);
		expect_bad(b.at, b.n, b.n, n == 4 ? "wrong checksum" : "not of four bytes");
	}
	b = v2_inet(0x21, 0x11);
	v2_tlv(&b, 3, "\0\0\0\0", 4);
	v2_tlv(&b, 3, "\0\0\0\0", 4);
	v2_end(&b);
	expect_bad(b.at, b.n, b.n, "two checksums");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_v2_inet),
		cmocka_unit_test(test_v2_inet6),
		cmocka_unit_test(test_v2_unix),
		cmocka_unit_test(test_v2_families),
		cmocka_unit_test(test_v2_commands),
		cmocka_unit_test(test_v2_lengths),
		cmocka_unit_test(test_v2_least),
		cmocka_unit_test(test_v2_longest),
		cmocka_unit_test(test_tlvs_are_skipped),
		cmocka_unit_test(test_tlvs_are_well_formed),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_checksum_form),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
