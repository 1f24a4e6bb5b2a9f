/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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
	char *suffix;
	uint64_t value;
	int shift;

	if (*text < '0' || *text > '9')
		return -EINVAL; /* strtoull(3) would take blanks and signs */
	errno = 0;
	value = strtoull(text, &suffix, 10);
	shift = suffix_shift(suffix);
	if (shift < 0)
		return -EINVAL;
	if (errno || value > UINT64_MAX >> shift)
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
	size_t len = strlen(text), point = strcspn(text, ".");

	if (!len || len > 16 || text[strspn(text, "0123456789.")] || point + 1 == len ||
	    strchr(text + point + (point < len), '.'))
		return -EINVAL;
	*ret = (uint64_t)(strtod(text, NULL) * 1000 + 0.5);
	return 0;
}

const char *size_format(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	unsigned int unit = 0, tenths = 0;

	for (; bytes >= 1024; unit++) {
		tenths = (unsigned int)(bytes % 1024 * 10 / 1024);
		bytes /= 1024;
	}
	if (bytes < 100 && tenths > 0)
		snprintf(buf, len, "%u.%u %s", (unsigned int)bytes, tenths, units[unit]);
	else
		snprintf(buf, len, "%u %s", (unsigned int)bytes, units[unit]);
	return buf;
}
