// SPDX-License-Identifier: BSD-2-Clause
#include "protocol.h"

#include <errno.h>
#include <string.h>

#define MAGIC_LEN 8
#define HEADER_MAGIC "cvb-head"
#define TAIL_MAGIC "cvb-tail"

static uint8_t *put(uint8_t *p, uint64_t value, unsigned int bytes)
{
	for (unsigned int i = 0; i < bytes; i++)
		p[i] = (uint8_t)(value >> (8 * i));
	return p + bytes;
}

static uint64_t get(const uint8_t **p, unsigned int bytes)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < bytes; i++)
		value |= (uint64_t)(*p)[i] << (8 * i);
	*p += bytes;
	return value;
}

/* FNV-1a.  It finds what a relay does to bytes; nobody attacks. */
static uint32_t checksum(const uint8_t *p, size_t n)
{
	uint32_t sum = UINT32_C(2166136261);

	for (size_t i = 0; i < n; i++)
		sum = (sum ^ p[i]) * UINT32_C(16777619);
	return sum;
}

/* A frame ends with the checksum of what is before. */
static bool frame_valid(const uint8_t *in, size_t len, const char *magic)
{
	const uint8_t *at = in + len - 4;

	return !memcmp(in, magic, MAGIC_LEN) && get(&at, 4) == checksum(in, len - 4);
}

void header_encode(const struct header *h, uint8_t out[PROTOCOL_HEADER])
{
	uint8_t *p = out;

	memset(out, 0, PROTOCOL_HEADER);
	memcpy(p, HEADER_MAGIC, MAGIC_LEN);
	p = put(p + MAGIC_LEN, h->wire, 1);
	p = put(p, h->full, 1);
	p = put(p + 2, h->size, 4);
	p = put(p, h->seed, 8);
	p = put(p, h->warmup_ms, 4);
	put(p, h->measure_ms, 4);
	put(out + PROTOCOL_HEADER - 4, checksum(out, PROTOCOL_HEADER - 4), 4);
}

static int check_limits(const struct header *h)
{
	uint32_t size_max = h->wire == WIRE_EXCHANGE ? EXCHANGE_SIZE_MAX : TRANSFER_SIZE_MAX;

	if (h->wire < WIRE_EXCHANGE || h->wire > WIRE_BOTH)
		return -ERANGE;
	if (h->size < 1 || h->size > size_max)
		return -ERANGE;
	if (h->warmup_ms > PHASE_MS_MAX || h->measure_ms > PHASE_MS_MAX)
		return -ERANGE;
	return 0;
}

int header_parse(const uint8_t in[PROTOCOL_HEADER], struct header *ret)
{
	const uint8_t *p = in + MAGIC_LEN;

	if (!frame_valid(in, PROTOCOL_HEADER, HEADER_MAGIC))
		return -EPROTO;
	ret->wire = (enum wire)get(&p, 1);
	ret->full = get(&p, 1) != 0;
	p += 2;
	ret->size = (uint32_t)get(&p, 4);
	ret->seed = get(&p, 8);
	ret->warmup_ms = (uint32_t)get(&p, 4);
	ret->measure_ms = (uint32_t)get(&p, 4);
	return check_limits(ret);
}

void tail_encode(const struct tail *t, uint8_t out[PROTOCOL_TAIL])
{
	uint8_t *p = out;

	memcpy(p, TAIL_MAGIC, MAGIC_LEN);
	p = put(p + MAGIC_LEN, t->sent, 8);
	p = put(p, t->received, 8);
	p = put(p, t->window, 8);
	p = put(p, t->wrong, 4);
	put(p, checksum(out, PROTOCOL_TAIL - 4), 4);
}

bool tail_begins(const uint8_t *in, size_t n)
{
	return !memcmp(in, TAIL_MAGIC, n < MAGIC_LEN ? n : MAGIC_LEN);
}

int tail_parse(const uint8_t in[PROTOCOL_TAIL], struct tail *ret)
{
	const uint8_t *p = in + MAGIC_LEN;

	if (!frame_valid(in, PROTOCOL_TAIL, TAIL_MAGIC))
		return -EPROTO;
	ret->sent = get(&p, 8);
	ret->received = get(&p, 8);
	ret->window = get(&p, 8);
	ret->wrong = (uint32_t)get(&p, 4);
	return 0;
}
