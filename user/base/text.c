// SPDX-License-Identifier: BSD-2-Clause
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

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

/* The number at *AT, of at most MOST digits of BASE, which are skipped; or -EINVAL. */
static int unescape_number(const char **at, int base, int most)
{
	static const char digits[] = "0123456789abcdef";
	const char *d;
	int code = -EINVAL;

	for (int n = 0; n < most && **at; n++, ++*at) {
		d = strchr(digits, tolower((unsigned char)**at));
		if (!d || d - digits >= base)
			break;
		code = (n ? code * base : 0) + (int)(d - digits);
	}
	return code < 0x100 ? code : -EINVAL;
}

int text_unescape(const char *text, char *to)
{
	static const char letters[] = "n\nr\rt\t\\\\\"\"";
	const char *known;
	char *begin = to;
	int c;

	while ((c = (unsigned char)*text++)) {
		if (c == '\\') {
			known = *text ? strchr(letters, *text) : NULL;
			c = known && (known - letters) % 2 == 0 ? (text++, known[1]) :
			    *text == 'x' ? (text++, unescape_number(&text, 16, 2)) :
					   unescape_number(&text, 8, 3);
		}
		if (c < 0)
			return c;
		*to++ = (char)c;
	}
	return (int)(to - begin);
}
