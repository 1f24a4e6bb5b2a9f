// SPDX-License-Identifier: BSD-2-Clause
/*
 * PROXY headers (user/relay/proxy_protocol.c).  The first byte says which:
 *
 *   0  bytes as they come        1  a header of version 2 with the right length
 *
 * Every prefix asks for more, or gets the answer that all bytes get; what is read, written and read
 * again is the same.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "relay/proxy_protocol.h"

#define INPUT_MAX 6000

static int parse(const uint8_t *bytes, size_t n, struct proxy_header *ret)
{
	uint8_t *room = exact_copy(bytes, n);
	const char *reason;
	int r;

	r = proxy_protocol_parse(room, n, ret, &reason);
	free(room);
	must(r == 0 || r == -EAGAIN || r == -EPROTO, "returned %d", r);
	must((r == -EPROTO) == !!reason, "%d, and a reason: %d", r, !!reason);
	must(r || (ret->size && ret->size <= n && ret->size <= PROXY_PROTOCOL_MAX),
	     "%zu of %zu bytes", ret->size, n);
	return r;
}

/* Byte by byte: what the parser does not set is zero. */
static bool is_same(const void *a, const void *b)
{
	return !memcmp(a, b, sizeof(union client_addr));
}

static void check_same(const struct proxy_header *a, const struct proxy_header *b)
{
	must(a->has_addresses == b->has_addresses, "addresses: %d, then %d", a->has_addresses,
	     b->has_addresses);
	must(is_same(&a->source, &b->source), "another source");
	must(is_same(&a->destination, &b->destination), "another destination");
}

/* There is one way to write two IPv4 addresses, and that is taken. */
static void check_again(const uint8_t *bytes, const struct proxy_header *h, unsigned int version)
{
	struct proxy_header to_write = *h, again;
	uint8_t room[PROXY_PROTOCOL_WRITE_MAX];
	size_t n;

	to_write.version = version;
	n = proxy_protocol_write(&to_write, room);
	must(n < sizeof(room) && parse(room, n, &again) == 0, "%zu bytes are not read again", n);
	must(again.size == n && again.version == version, "%zu of %zu bytes", again.size, n);
	check_same(h, &again);
	if (version == 1 && h->version == 1 && !memcmp(bytes, "PROXY TCP4", 10))
		must(n == h->size && !memcmp(room, bytes, n), "\"%.*s\" is taken", (int)h->size,
		     (const char *)bytes);
}

static void check_bytes(const uint8_t *bytes, size_t n)
{
	struct proxy_header h, other;
	int r = parse(bytes, n, &h);
	size_t step = n > 300 ? 7 : 1;

	for (size_t k = 0; k < n; k += step) {
		int got = parse(bytes, k, &other);

		must(got == -EAGAIN || got == r, "%d for %zu bytes, then %d", got, k, r);
		must(got || other.size == h.size, "%zu bytes, then %zu", other.size, h.size);
	}
	if (r)
		return;
	must(parse(bytes, h.size - 1, &other) == -EAGAIN, "the last byte is not asked for");
	must(parse(bytes, h.size, &other) == 0, "what is behind it counts");
	check_same(&h, &other);
	check_again(bytes, &h, 1);
	check_again(bytes, &h, 2);
}

/* Version and command, family and protocol, how much payload; then bytes. */
static void check_v2(struct input *in)
{
	static uint8_t bytes[16 + INPUT_MAX] = { '\r', '\n', '\r', '\n', 0,   '\r',
						 '\n', 'Q',  'U',  'I',  'T', '\n' };
	const uint8_t *rest;
	size_t payload, n;

	bytes[12] = input_byte(in);
	bytes[13] = input_byte(in);
	payload = input_byte(in);
	n = input_bytes(in, INPUT_MAX, &rest);
	if (n)
		memcpy(bytes + 16, rest, n);
	if (payload > n)
		payload = n;
	bytes[14] = (uint8_t)((n - payload) >> 8);
	bytes[15] = (uint8_t)(n - payload);
	check_bytes(bytes, 16 + n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	if (input_byte(&in) % 2)
		check_v2(&in);
	else
		check_bytes(in.at, in.left);
	return 0;
}
