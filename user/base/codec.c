// SPDX-License-Identifier: BSD-2-Clause
#include "base/codec.h"

#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"

uint64_t codec_number(struct codec *c, uint64_t v, int n)
{
	uint64_t is = 0;

	if (c->end - c->at < n) {
		c->is_short = true;
		return 0;
	}
	for (int i = 0; i < n; i++) {
		if (c->packs)
			c->at[i] = (uint8_t)(v >> 8 * (n - 1 - i));
		is = is << 8 | c->at[i];
	}
	c->at += n;
	return is;
}

uint64_t codec_moment(struct codec *c, uint64_t ns)
{
	uint64_t age = ns < c->now_ns ? (c->now_ns - ns) / NS_PER_MS : 0;

	age = codec_number(c, smaller(age, UINT32_MAX), 4) * NS_PER_MS;
	return age < c->now_ns ? c->now_ns - age : 1;
}

void codec_bytes(struct codec *c, void *p, int n)
{
	for (uint8_t *b = p; b < (uint8_t *)p + n; b++)
		CODEC_FIELD(c, *b, 1);
}

void codec_text(struct codec *c, char *text, size_t size)
{
	size_t len = c->packs ? strnlen(text, size - 1) : 0;

	CODEC_FIELD(c, len, 2);
	for (size_t i = 0; i < len; i++) {
		char b = (char)codec_number(c, i < size - 1 ? (uint8_t)text[i] : 0, 1);

		if (i < size - 1)
			text[i] = b;
	}
	text[len < size ? len : size - 1] = '\0';
}
