// SPDX-License-Identifier: BSD-2-Clause
#include "base/text.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "base/minmax.h"

bool text_is_utf8(const char *text)
{
	/* of a character of so many bytes; less needs fewer bytes */
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
			return false; /* the last are surrogates */
	}
	return true;
}

unsigned int text_distance(const char *a, const char *b)
{
	unsigned int row[64 + 1]; /* [j]: between what of A was seen, and J letters of B */
	size_t n = strlen(b);

	if (n >= sizeof(row) / sizeof(row[0]) || strlen(a) >= sizeof(row) / sizeof(row[0]))
		return UINT_MAX;
	for (unsigned int j = 0; j <= n; j++)
		row[j] = j;
	for (; *a; a++) {
		unsigned int before = row[0]++;

		for (size_t j = 1; j <= n; j++) {
			unsigned int changed = before + (*a != b[j - 1]);

			before = row[j];
			row[j] = (unsigned int)smaller(changed, smaller(before, row[j - 1]) + 1);
		}
	}
	return row[n];
}
