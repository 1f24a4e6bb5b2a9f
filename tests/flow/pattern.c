/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdlib.h>
#include <string.h>

#include "pattern.h"

#define GOLDEN 0x9e3779b97f4a7c15ULL

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Word K of the endless stream; cheaper than mix(), for it runs for every eight bytes. */
static uint64_t word(uint64_t key, uint64_t k)
{
	uint64_t x = key + k * GOLDEN;

	x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9ULL;
	return x ^ (x >> 29);
}

uint64_t rng_next(uint64_t *state)
{
	*state += GOLDEN;
	return mix(*state);
}

uint64_t rng_range(uint64_t *state, uint64_t low, uint64_t high)
{
	return low + rng_next(state) % (high - low + 1);
}

bool rng_chance(uint64_t *state, unsigned int percent)
{
	return rng_next(state) % 100 < percent;
}

void pattern_init(struct pattern *p, uint64_t seed, uint64_t connection, enum pattern_direction dir)
{
	memset(p, 0, sizeof(*p));
	p->key = mix(mix(mix(seed + GOLDEN) + connection) + (uint64_t)dir + 1);
}

/* Copy bytes [OFF, OFF + LEN) ignoring the head. */
static void fill_body(uint64_t key, uint64_t off, unsigned char *buf, size_t len)
{
	uint64_t w;

	while (len > 0) {
		size_t skip = off % 8;
		size_t n = 8 - skip;

		w = word(key, off / 8);
		if (n > len)
			n = len;
		if (n == 8)
			memcpy(buf, &w, 8); /* the common case: a plain store */
		else
			memcpy(buf, (unsigned char *)&w + skip, n);
		buf += n;
		off += n;
		len -= n;
	}
}

void pattern_fill(const struct pattern *p, uint64_t off, void *buf, size_t len)
{
	unsigned char *out = buf;

	if (off < p->head_len) {
		size_t n = p->head_len - off;

		if (n > len)
			n = len;
		memcpy(out, p->head + off, n);
		out += n;
		off += n;
		len -= n;
	}
	fill_body(p->key, off, out, len);
}

/* Byte by byte, for the places where the fast comparison fails or does not fit. */
static bool check_slow(const struct pattern *p, uint64_t off, const unsigned char *buf, size_t len,
		       uint64_t *ret_wrong)
{
	unsigned char want[64];

	while (len > 0) {
		size_t n = len < sizeof(want) ? len : sizeof(want);

		pattern_fill(p, off, want, n);
		for (size_t i = 0; i < n; i++) {
			if (buf[i] != want[i]) {
				*ret_wrong = off + i;
				return false;
			}
		}
		buf += n;
		off += n;
		len -= n;
	}
	return true;
}

bool pattern_check(const struct pattern *p, uint64_t off, const void *buf, size_t len,
		   uint64_t *ret_wrong)
{
	const unsigned char *in = buf;
	uint64_t got, diff = 0;
	size_t lead, i;

	lead = off < p->head_len ? p->head_len - off : 0;
	lead += (8 - (off + lead) % 8) % 8;
	if (lead > len)
		lead = len;
	if (!check_slow(p, off, in, lead, ret_wrong))
		return false;
	for (i = lead; i + 8 <= len; i += 8) {
		memcpy(&got, in + i, 8);
		diff |= got ^ word(p->key, (off + i) / 8);
	}
	if (diff) /* somewhere above: find out where */
		return check_slow(p, off + lead, in + lead, len - lead, ret_wrong);
	return check_slow(p, off + i, in + i, len - i, ret_wrong);
}

bool pattern_locate(const struct pattern *p, uint64_t off, const void *buf, size_t len,
		    uint64_t *ret_off)
{
	const uint64_t reach = 32 << 20;
	const size_t chunk = 256 << 10, overlap = 64;
	uint64_t at = off > reach ? off - reach : 0, end = off + reach;
	unsigned char *window, *hit = NULL;

	if (len > overlap)
		len = overlap;
	window = malloc(chunk + overlap);
	if (len < 8 || !window) {
		free(window);
		return false;
	}
	for (; at < end && !hit; at += chunk) {
		pattern_fill(p, at, window, chunk + overlap);
		hit = memmem(window, chunk + overlap, buf, len);
		if (hit)
			*ret_off = at + (uint64_t)(hit - window);
	}
	free(window);
	return hit != NULL;
}
