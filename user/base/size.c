/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/size.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static int suffix_shift(const char *suffix)
{
	static const char letters[] = "kmg";
	const char *letter;

	if (!suffix[0] || strcasecmp(suffix, "B") == 0)
		return 0;
	letter = strchr(letters, suffix[0] | 0x20);
	if (!letter || !*letter)
		return -EINVAL;
	if (suffix[1] && strcasecmp(suffix + 1, "B") != 0 && strcasecmp(suffix + 1, "iB") != 0)
		return -EINVAL;
	return (int)(letter - letters + 1) * 10;
}

int size_parse(const char *text, uint64_t *ret)
{
	uint64_t value = 0;
	const char *p;
	int overflow = 0;
	int shift;

	for (p = text; *p >= '0' && *p <= '9'; p++) {
		overflow |= __builtin_mul_overflow(value, 10, &value);
		overflow |= __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value);
	}
	shift = suffix_shift(p);
	if (p == text || shift < 0)
		return -EINVAL;
	if (overflow || value > UINT64_MAX >> shift)
		return -ERANGE;
	*ret = value << shift;
	return 0;
}

int count_parse(const char *text, uint64_t *ret)
{
	if (strspn(text, "0123456789") != strlen(text))
		return -EINVAL; /* size_parse() would take a suffix */
	return size_parse(text, ret);
}

int seconds_parse(const char *text, uint64_t *ret)
{
	const char *point = strchrnul(text, '.');
	size_t whole_len = (size_t)(point - text);
	char digits[24];
	size_t decimals;

	decimals = *point ? strlen(point + 1) : 0;
	if (whole_len > 12 || decimals > 3 || (*point && decimals == 0) || !*text)
		return -EINVAL;
	/* The number of milliseconds has the same digits, filled up to three decimals. */
	snprintf(digits, sizeof(digits), "%.*s%s%s", (int)whole_len, text, *point ? point + 1 : "",
		 &"000"[decimals]);
	return count_parse(digits, ret);
}

const char *size_format(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	unsigned int unit = 0;
	uint64_t whole, tenths;

	while (bytes >> (10 * unit) >= 1024)
		unit++;
	whole = bytes >> (10 * unit);
	tenths = (bytes - (whole << (10 * unit))) * 10 >> (10 * unit);
	if (whole < 100 && tenths > 0)
		snprintf(buf, len, "%u.%u %s", (unsigned int)whole, (unsigned int)tenths,
			 units[unit]);
	else
		snprintf(buf, len, "%u %s", (unsigned int)whole, units[unit]);
	return buf;
}
