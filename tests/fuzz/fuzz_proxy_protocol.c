// SPDX-License-Identifier: BSD-2-Clause
/*
 * PROXY headers (user/relay/proxy_protocol.c).  The first byte says which:
 *
 *   0  bytes as they come        2  two addresses to be written
 *   1  a header of version 2 with the right length, and if asked for the right checksum
 *
 * Every prefix asks for more, or gets the answer that all bytes get; the answer is that of a second
 * parser (proxy_model.c); what is read, written and read again is the same.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "fuzz.h"
#include "proxy_model.h"
#include "relay/proxy_protocol.h"

#define PREFIXES 300 /* of longer inputs not all */
#define INPUT_MAX 6000

/* In memory that ends where the bytes do. */
static int parse(const uint8_t *bytes, size_t n, struct proxy_header *ret, const char **ret_reason)
{
	uint8_t *room = malloc(n ? n : 1);
	int r;

	if (!room)
		abort();
	memcpy(room, bytes, n);
	memset(ret, 0xa5, sizeof(*ret));
	*ret_reason = NULL;
	r = proxy_protocol_parse(room, n, ret, ret_reason);
	free(room);
	must(r == 0 || r == -EAGAIN || r == -EPROTO, "returned %d", r);
	must((r == -EPROTO) == !!*ret_reason, "%d, and a reason: %d", r, !!*ret_reason);
	must(r != -EPROTO || is_printable(*ret_reason, false), "\"%s\"", *ret_reason);
	must(r || (ret->size && ret->size <= n), "%zu of %zu bytes", ret->size, n);
	must(r != -EAGAIN || ret->size > n, "%zu bytes are asked for, %zu are there", ret->size, n);
	must(r == -EPROTO || ret->size <= PROXY_PROTOCOL_MAX, "%zu bytes", ret->size);
	return r;
}

static void check_same(const struct proxy_header *a, const struct proxy_header *b)
{
	must(a->kind == b->kind, "kind %d, then %d", (int)a->kind, (int)b->kind);
	must(addr_equal(&a->source, &b->source), "another source");
	must(addr_equal(&a->destination, &b->destination), "another destination");
}

static void check_prefix(const uint8_t *bytes, size_t n, int r, const struct proxy_header *whole,
			 const char *reason)
{
	struct proxy_header h;
	const char *said;
	int got = parse(bytes, n, &h, &said);

	if (got == -EAGAIN) {
		must(r != 0 || h.size <= whole->size, "%zu bytes are asked for, of %zu", h.size,
		     whole->size);
		return;
	}
	must(got == r, "%d for %zu bytes, then %d", got, n, r);
	must(r || h.size == whole->size, "%zu bytes, then %zu", h.size, whole->size);
	must(!reason || !strcmp(reason, said), "%s, then %s", said, reason);
	if (r == 0)
		check_same(whole, &h);
}

static void check_shown(const struct addr *a)
{
	char buf[ADDR_STRLEN];

	addr_format((const struct sockaddr *)&a->ss, a->len, buf, sizeof(buf));
	must(is_printable(buf, false) && strcmp(buf, "?"), "\"%s\"", buf);
	must(a->len <= sizeof(struct sockaddr_un), "%u bytes", a->len);
}

/* Version 1 has no LOCAL and no unix addresses. */
static void check_again(const struct proxy_header *h, unsigned int version)
{
	uint8_t room[PROXY_PROTOCOL_WRITE_MAX];
	struct proxy_header to_write = *h, again, expected = *h;
	const char *reason;
	size_t n;
	int r;

	to_write.version = version;
	if (version == 1 &&
	    (h->kind == PROXY_LOCAL || (h->kind == PROXY_ADDRESSES && !addr_is_inet(&h->source)))) {
		memset(&expected, 0, sizeof(expected));
		expected.kind = PROXY_UNKNOWN;
	}
	n = proxy_protocol_write(&to_write, room);
	r = parse(room, n, &again, &reason);
	must(r == 0, "%d (%s) for what was written", r, reason ? reason : "-");
	must(again.size == n && again.version == version, "%zu of %zu bytes", again.size, n);
	check_same(&expected, &again);
}

/* There is one way to write two IPv4 addresses, and that is the one that is taken. */
static void check_only_line(const uint8_t *bytes, const struct proxy_header *h)
{
	uint8_t room[PROXY_PROTOCOL_WRITE_MAX];

	must(proxy_protocol_write(h, room) == h->size && !memcmp(room, bytes, h->size),
	     "\"%.*s\" is taken", (int)h->size, (const char *)bytes);
}

static void check_header(const uint8_t *bytes, const struct proxy_header *h)
{
	check_prefix(bytes, h->size, 0, h, NULL);
	if (h->kind == PROXY_ADDRESSES) {
		check_shown(&h->source);
		check_shown(&h->destination);
	} else {
		must(!h->source.len && !h->destination.len, "addresses, but kind %d", (int)h->kind);
	}
	check_again(h, 1);
	check_again(h, 2);
	if (h->version == 1 && !memcmp(bytes, "PROXY TCP4", 10))
		check_only_line(bytes, h);
}

static void check_bytes(const uint8_t *bytes, size_t n)
{
	struct proxy_header h, model;
	const char *reason;
	int r = parse(bytes, n, &h, &reason);
	bool good = proxy_model(bytes, n, &model);

	must(good == (r == 0), "%d (%s), but the model says %d", r, reason ? reason : "-", good);
	if (good) {
		must(model.size == h.size && model.version == h.version,
		     "%zu bytes of version %u, not %zu of %u", h.size, h.version, model.size,
		     model.version);
		check_same(&model, &h);
		check_header(bytes, &h);
	}
	for (size_t k = 0; k < n && k < PREFIXES; k++)
		check_prefix(bytes, k, r, &h, reason);
	for (size_t k = n < 8 ? 0 : n - 8; k < n; k++)
		check_prefix(bytes, k, r, &h, reason);
}

/* Version and command, family and protocol, how much payload, checksum or not; then bytes. */
static void check_v2(struct input *in)
{
	static const uint8_t start[] = { '\r', '\n', '\r', '\n', 0,   '\r',
					 '\n', 'Q',  'U',  'I',  'T', '\n' };
	static uint8_t bytes[16 + INPUT_MAX + 7];
	uint8_t payload, checksum;
	const uint8_t *rest;
	size_t n, size;

	memcpy(bytes, start, sizeof(start));
	bytes[12] = input_byte(in);
	bytes[13] = input_byte(in);
	payload = input_byte(in);
	checksum = input_byte(in);
	n = input_bytes(in, INPUT_MAX, &rest);
	if (n)
		memcpy(bytes + 16, rest, n);
	size = 16 + n;
	if (checksum % 2) {
		memcpy(bytes + size, "\3\0\4\0\0\0", 7);
		size += 7;
	}
	if (payload < n && !(checksum % 2))
		size -= payload;
	bytes[14] = (uint8_t)((size - 16) >> 8);
	bytes[15] = (uint8_t)(size - 16);
	if (checksum % 2) {
		uint32_t crc = proxy_model_crc(bytes, size);

		for (size_t i = 0; i < 4; i++)
			bytes[size - 4 + i] = (uint8_t)(crc >> (24 - 8 * i));
	}
	check_bytes(bytes, size < 16 + n ? 16 + n : size);
}

/* One as accept(2) may give it: IPv4-mapped ones among them. */
static void take_addr(struct input *in, uint8_t family, struct addr *ret, struct addr *ret_read)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in in4 = { .sin_family = AF_INET };
	const uint8_t *bytes;
	size_t n;

	memset(ret, 0, sizeof(*ret));
	in6.sin6_port = in4.sin_port = (in_port_t)input_number(in, 2);
	n = input_bytes(in, family == AF_UNIX ? 108 : 16, &bytes);
	if (family == AF_UNIX) {
		if (n)
			memcpy(un.sun_path, bytes, n);
		proxy_model_unix(un.sun_path, ret);
	} else if (family == AF_INET6) {
		if (n)
			memcpy(&in6.sin6_addr, bytes, n);
		memcpy(&ret->ss, &in6, sizeof(in6));
		ret->len = sizeof(in6);
	} else {
		if (n)
			memcpy(&in4.sin_addr, bytes, n < 4 ? n : 4);
		memcpy(&ret->ss, &in4, sizeof(in4));
		ret->len = sizeof(in4);
	}
	*ret_read = *ret;
	if (family == AF_INET6)
		proxy_model_unmap(ret_read);
}

static void check_written(struct input *in)
{
	static const uint8_t families[] = { AF_INET, AF_INET6, AF_UNIX };
	struct proxy_header h = { .version = 2, .kind = PROXY_ADDRESSES }, expected = { 0 }, got;
	uint8_t which = input_byte(in), room[PROXY_PROTOCOL_WRITE_MAX];
	const char *reason;
	bool same;
	size_t n;

	take_addr(in, families[which % 3], &h.source, &expected.source);
	take_addr(in, families[which / 3 % 3], &h.destination, &expected.destination);
	same = addr_is_inet(&h.source) == addr_is_inet(&h.destination);
	if (which / 9 % 2)
		h.version = 1;
	if (!same || (h.version == 1 && !addr_is_inet(&h.source)))
		memset(&expected, 0, sizeof(expected));
	expected.kind = expected.source.len ? PROXY_ADDRESSES : PROXY_UNKNOWN;
	n = proxy_protocol_write(&h, room);
	must(n <= (h.version == 1 ? 104 : PROXY_PROTOCOL_WRITE_MAX), "%zu bytes", n);
	must(parse(room, n, &got, &reason) == 0, "%s", reason ? reason : "more");
	must(got.size == n && got.version == h.version, "%zu of %zu bytes", got.size, n);
	check_same(&expected, &got);
	check_bytes(room, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned int mode = input_byte(&in) % 3;

	if (mode == 1)
		check_v2(&in);
	else if (mode == 2)
		check_written(&in);
	else
		check_bytes(in.at, in.left);
	return 0;
}
