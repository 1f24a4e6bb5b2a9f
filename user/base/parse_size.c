// SPDX-License-Identifier: BSD-2-Clause
#include "base/parse_size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_MAX 0x1p53 /* a double has all whole numbers up to here */

/*
 * TEXT is a number with decimals, and perhaps one of LETTERS after it.  FACTORS has a factor for
 * each letter, and last the factor of a number without a letter.
 */
static int parse(const char *text, const char *letters, const double *factors, uint64_t *ret)
{
	size_t len = strspn(text, "0123456789."); /* strtod(3) would take more */
	const char *letter = strchr(letters, tolower((unsigned char)text[len]));
	char *end;
	double value = strtod(text, &end);

	if (!len || end < text + len || !letter || (text[len] && text[len + 1]))
		return -EINVAL;
	value = value * factors[letter - letters] + 0.5;
	if (value > VALUE_MAX)
		return -ERANGE;
	*ret = (uint64_t)value;
	return 0;
}

int size_parse(const char *text, uint64_t *ret)
{
	static const double factors[] = { 1 << 10, 1 << 20, 1 << 30, 1 };

	return parse(text, "kmg", factors, ret);
}

int seconds_parse(const char *text, uint64_t *ret)
{
	static const double factors[] = { 1000, 60000, 3600000, 24 * 3600000, 1000 };

	return parse(text, "smhd", factors, ret);
}

int count_parse(const char *text, uint64_t *ret)
{
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL; /* strtoull(3) would take blanks and signs */
	errno = 0;
	*ret = strtoull(text, &end, strncmp(text, "0x", 2) ? 10 : 16);
	return *end ? -EINVAL : -errno;
}

const char *size_format(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	unsigned int unit = 0;
	double value = (double)bytes;

	for (; value >= 1024; unit++)
		value /= 1024;
	snprintf(buf, len, "%.4g %s", value, units[unit]);
	return buf;
}
