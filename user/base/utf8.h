/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_UTF8_H
#define CULVERT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The length of the UTF-8 character (RFC 3629) at TEXT, which ends in NUL; 0: there is none. */
static inline size_t utf8_length(const char *text)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *p = (const unsigned char *)text;
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t c = p[0] & (0x7fU >> n);

	if (n == 1)
		return 1;
	if (p[0] < 0xc0 || p[0] >= 0xf8)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : n;
}

#endif
