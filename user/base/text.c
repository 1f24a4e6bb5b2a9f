// SPDX-License-Identifier: BSD-2-Clause
#include "base/text.h"

#include <stdint.h>

bool text_is_utf8(const char *text)
{
	/* by number of bytes: the least code; smaller codes have a shorter form */
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };

	for (unsigned char c; (c = (unsigned char)*text++);) {
		unsigned int n = c < 0x80 ? 1 : c < 0xc0 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
		uint32_t code = n > 1 ? c & (0x7fU >> n) : c;

		for (unsigned int i = 1; i < n; i++, text++) {
			if (((unsigned char)*text & 0xc0) != 0x80)
				return false;
			code = code << 6 | ((unsigned char)*text & 0x3f);
		}
		if (!n || c > 0xf7 || code < least[n] || code > 0x10ffff || code >> 11 == 0x1b)
			return false; /* the last test is for surrogates */
	}
	return true;
}
