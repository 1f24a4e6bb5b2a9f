/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * PROXY headers for tests: composing them byte by byte, and what must hold for every good and for
 * every bad one.  Included after cmocka.h.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "relay/proxy_protocol.h"

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"
#define N(literal) (sizeof(literal) - 1)

struct bytes {
	uint8_t at[8192];
	size_t n;
};

static inline void put(struct bytes *b, const void *data, size_t n)
{
	assert_true(n <= sizeof(b->at) - b->n);
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static inline struct bytes bytes_of(const void *data, size_t n)
{
	struct bytes b = { .n = 0 };

	put(&b, data, n);
	return b;
}

/* --- version 2 --- */

static inline struct bytes v2_begin(uint8_t version_command, uint8_t family_protocol)
{
	struct bytes b = bytes_of(SIGNATURE, N(SIGNATURE));

	put(&b, (uint8_t[]){ version_command, family_protocol, 0, 0 }, 4);
	return b;
}

static inline void v2_tlv(struct bytes *b, uint8_t type, const void *value, size_t n)
{
	put(b, (uint8_t[]){ type, (uint8_t)(n >> 8), (uint8_t)n }, 3);
	put(b, value, n);
}

static inline void v2_length(struct bytes *b, size_t length)
{
	b->at[14] = (uint8_t)(length >> 8);
	b->at[15] = (uint8_t)length;
}

static inline void v2_end(struct bytes *b)
{
	v2_length(b, b->n - 16);
}

/* 1.2.3.4:5 to 6.7.8.9:10 */
static inline struct bytes v2_inet(uint8_t version_command, uint8_t family_protocol)
{
	struct bytes b = v2_begin(version_command, family_protocol);

	put(&b, "\1\2\3\4\6\7\10\11\0\5\0\12", 12);
	v2_end(&b);
	return b;
}

/* --- what must hold --- */

/* In memory that ends where the bytes do, for AddressSanitizer. */
static inline int parse(const void *bytes, size_t n, struct proxy_header *ret,
			const char **ret_reason)
{
	uint8_t *room = malloc(n ? n : 1);
	int r;

	assert_non_null(room);
	memcpy(room, bytes, n);
	memset(ret, 0xa5, sizeof(*ret));
	*ret_reason = "untouched";
	r = proxy_protocol_parse(room, n, ret, ret_reason);
	free(room);
	assert_true(r == 0 || r == -EAGAIN || r == -EPROTO);
	if (r == -EPROTO)
		assert_true(*ret_reason && **ret_reason);
	else
		assert_null(*ret_reason);
	if (r == 0)
		assert_true(ret->size > 0 && ret->size <= n && ret->size <= PROXY_PROTOCOL_MAX);
	return r;
}

/* Every prefix of the SIZE bytes asks for more. */
static inline void expect_prefixes(const uint8_t *bytes, size_t size)
{
	for (size_t n = 0; n < size; n++) {
		struct proxy_header h;
		const char *reason;

		if (parse(bytes, n, &h, &reason) != -EAGAIN)
			fail_msg("%zu of %zu bytes are taken for all: %s", n, size, reason);
	}
}

/* The header is good, whatever comes behind it.  Returns it. */
static inline struct proxy_header expect_header(const struct bytes *b, unsigned int version,
						bool has_addresses)
{
	static const char *const payloads[] = { "", "\n", "\r\n", "PROXY UNKNOWN\r\n",
						"GET / HTTP/1.1\r\n\r\n" };
	struct proxy_header h;
	const char *reason;

	expect_prefixes(b->at, b->n);
	for (size_t i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
		struct bytes all = *b;

		put(&all, payloads[i], strlen(payloads[i]));
		if (parse(all.at, all.n, &h, &reason) != 0)
			fail_msg("\"%.*s\" and \"%s\": %s", (int)b->n, b->at, payloads[i], reason);
		assert_int_equal(h.size, b->n);
		assert_int_equal(h.version, version);
		assert_int_equal(h.has_addresses, has_addresses);
	}
	return h;
}

static inline struct proxy_header expect_addresses(const struct bytes *b, unsigned int version,
						   const char *source, const char *destination)
{
	struct proxy_header h = expect_header(b, version, true);
	char buf[ADDR_STRLEN];

	assert_string_equal(client_addr_text(&h.source, buf, sizeof(buf)), source);
	assert_string_equal(client_addr_text(&h.destination, buf, sizeof(buf)), destination);
	return h;
}

/* Bad for REASON with N bytes at the latest, whatever comes behind. */
static inline void expect_bad(const void *bytes, size_t n, const char *reason)
{
	struct bytes b = bytes_of(bytes, n);
	bool bad = false;

	put(&b, "\r\nbehind\r\n", 10);
	for (size_t i = 0; i <= b.n; i++) {
		struct proxy_header h;
		const char *said;
		int r = parse(b.at, i, &h, &said);

		if (r == 0 || (r == -EAGAIN && (bad || i >= n)))
			fail_msg("\"%.*s\": %d after %zu bytes", (int)n, (const char *)bytes, r, i);
		if (r == -EPROTO && !strstr(said, reason))
			fail_msg("\"%.*s\": %s, not %s", (int)n, (const char *)bytes, said, reason);
		bad = r == -EPROTO;
	}
}
