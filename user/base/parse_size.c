/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/parse_size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int size_parse(const char *text, uint64_t *ret)
{
	static const char suffixes[] = "kmg";
	const char *suffix;
	unsigned int shift = 0;
	uint64_t value;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL; /* strtoull(3) would take blanks and signs */
	errno = 0;
	value = strtoull(text, &end, 10);
	if (*end) {
		suffix = strchr(suffixes, *end | 0x20);
		if (!suffix || end[1])
			return -EINVAL;
		shift = 10 * (unsigned int)(suffix - suffixes + 1);
	}
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
	static const char units[] = "smhd";
	static const unsigned int unit_ms[] = { 1000, 60000, 3600000, 24 * 3600000 };
	size_t len = strspn(text, "0123456789."), point = strcspn(text, ".smhd");
	const char *unit = text[len] ? strchr(units, text[len]) : units;

	if (!len || len > 11 || !unit || (text[len] && text[len + 1]) || point + 1 == len ||
	    len - point > 4 || strchr(text + point + (point < len), '.'))
		return -EINVAL;
	*ret = (uint64_t)(strtod(text, NULL) * unit_ms[unit - units] + 0.5);
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
