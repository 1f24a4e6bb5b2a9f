// SPDX-License-Identifier: BSD-2-Clause
/*
 * Numbers and texts.  The first byte says which:
 *
 *   0  a size, 1 a count, 2 seconds (user/base/size.c), against a second parser, which is slow and has
 *      numbers of 128 bits
 *   3  a size to be shown
 *   4  a text from anywhere to be shown (log_escape() of user/base/log.c)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "fuzz.h"

typedef unsigned __int128 wide;

#define UNTOUCHED UINT64_C(0x5ca1ab1e)

/* Digits of TEXT, from *AT on; -1 if there are none.  Stops growing far beyond 64 bits. */
static int digits(const char *text, size_t *at, wide *value)
{
	size_t begin = *at;

	for (; text[*at] >= '0' && text[*at] <= '9'; ++*at)
		if (*value >> 80 == 0)
			*value = *value * 10 + (wide)(text[*at] - '0');
	return *at == begin ? -1 : 0;
}

static int fits(wide value, uint64_t *ret)
{
	if (value > UINT64_MAX)
		return -ERANGE;
	*ret = (uint64_t)value;
	return 0;
}

static int model_count(const char *text, uint64_t *ret)
{
	wide value = 0;
	size_t at = 0;

	return digits(text, &at, &value) || text[at] ? -EINVAL : fits(value, ret);
}

static int model_size(const char *text, uint64_t *ret)
{
	static const struct {
		const char *suffix;
		unsigned int thousands; /* powers of 1024 */
	} units[] = {
		{ "", 0 }, { "b", 0 }, { "k", 1 }, { "kb", 1 }, { "kib", 1 }, { "m", 2 },
		{ "mb", 2 }, { "mib", 2 }, { "g", 3 }, { "gb", 3 }, { "gib", 3 },
	};
	wide value = 0;
	size_t at = 0;

	if (digits(text, &at, &value))
		return -EINVAL;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcasecmp(text + at, units[i].suffix))
			continue;
		for (unsigned int n = 0; n < units[i].thousands; n++)
			value *= 1024;
		return fits(value, ret);
	}
	return -EINVAL;
}

static int model_seconds(const char *text, uint64_t *ret)
{
	wide value = 0;
	size_t at = 0, point;

	/* a point needs no digit before it, but one behind it */
	if ((digits(text, &at, &value) && text[0] != '.') || at > 12)
		return -EINVAL;
	if (!text[at])
		return fits(value * 1000, ret);
	point = at++;
	if (text[point] != '.' || digits(text, &at, &value) || text[at] || at > point + 4)
		return -EINVAL;
	for (; at < point + 4; at++)
		value *= 10;
	return fits(value, ret);
}

static void check_text(unsigned int mode, const char *text)
{
	static int (*const parse[])(const char *, uint64_t *) = { size_parse, count_parse,
								   seconds_parse };
	static int (*const model[])(const char *, uint64_t *) = { model_size, model_count,
								   model_seconds };
	uint64_t is = UNTOUCHED, due = UNTOUCHED;
	int r = parse[mode](text, &is), r_due = model[mode](text, &due);

	must(r == r_due, "\"%s\": %d, not %d", text, r, r_due);
	must(is == due, "\"%s\": %llu, not %llu", text, (unsigned long long)is,
	     (unsigned long long)due);
}

/* It is shown rounded down, with one decimal below 100: less than a tenth, or a unit, too small. */
static void check_shown(uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	char buf[SIZE_STRLEN];
	const char *text = size_format(bytes, buf, sizeof(buf));
	wide whole = 0, tenths = 0, unit = 1, shown;
	size_t at = 0, i = 0;
	bool decimal;

	must(text == buf && strlen(text) < SIZE_STRLEN - 1, "\"%s\"", text);
	must(!digits(text, &at, &whole), "\"%s\"", text);
	decimal = text[at] == '.';
	if (decimal) {
		at++;
		must(!digits(text, &at, &tenths) && tenths >= 1 && tenths <= 9 && whole < 100,
		     "\"%s\"", text);
	}
	must(text[at] == ' ', "\"%s\"", text);
	while (i < 7 && strcmp(text + at + 1, units[i])) {
		unit *= 1024;
		i++;
	}
	must(i < 7 && whole < 1024 && (whole || !bytes), "\"%s\"", text);
	shown = whole * 10 + tenths;
	must(shown * unit <= (wide)bytes * 10, "%llu is less than %s", (unsigned long long)bytes,
	     text);
	must((wide)bytes * 10 < (shown + (whole < 100 ? 1 : 10)) * unit, "%llu is more than %s",
	     (unsigned long long)bytes, text);
}

/* Everything of TEXT, escaped, or a begin of it and three dots; and that once more is the same. */
static void check_escape(size_t room, const char *text)
{
	char *buf = malloc(room), *again = malloc(room), whole[16 * 1024 + 1];
	size_t n;

	if (!buf || !again)
		abort();
	must(log_escape(text, buf, room) == buf, "not what was given");
	must(strlen(text) <= sizeof(whole) / 4, "run it with -max_len=4096");
	log_escape(text, whole, sizeof(whole));
	n = strlen(buf);
	must(n < room && is_printable(buf, false), "\"%s\"", buf);
	must(strlen(whole) >= strlen(text), "\"%s\"", whole);
	if (strcmp(buf, whole)) {
		must(strlen(whole) >= room, "%zu bytes would fit", strlen(whole));
		must(n >= 3 && !strcmp(buf + n - 3, "...") && !strncmp(buf, whole, n - 3),
		     "\"%s\" of \"%s\"", buf, whole);
		must(n + 4 >= room, "room for %zu, but \"%s\"", room, buf);
	}
	/* NOLINTNEXTLINE(readability-suspicious-call-argument): what was escaped is the text now */
	must(!strcmp(log_escape(buf, again, room), buf), "\"%s\", then \"%s\"", buf, again);
	free(buf);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	unsigned int mode = input_byte(&in) % 8;
	size_t room = mode == 4 ? 4 + input_byte(&in) : 0;
	char *text;

	if (mode == 3) {
		check_shown(input_size(&in));
		return 0;
	}
	text = input_text(&in);
	if (mode == 4)
		check_escape(room, text);
	else if (mode < 3)
		check_text(mode, text);
	free(text);
	return 0;
}
