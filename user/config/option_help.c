// SPDX-License-Identifier: BSD-2-Clause
#include "config/option_help.h"

#include <stdio.h>
#include <string.h>

#include "config/option.h"

static void option_help(const struct option_def *o)
{
	const char *initial = o->initial ? o->initial : o->computed;
	char left[40];

	snprintf(left, sizeof(left), "%s%s %s", o->scope == SCOPE_FORWARD ? "" : "--", o->name,
		 o->metavar ? o->metavar : "");
	printf("  %-29s%s", left, o->help);
	if (initial)
		printf(" (default %s)", initial);
	putchar('\n');
}

void options_help(void)
{
	const struct option_def *o;

	for (size_t i = 0; (o = option_at(i)); i++)
		if (o->scope != SCOPE_FORWARD)
			option_help(o);
}

/* The names as wide as the other lines. */
void options_help_forward(void)
{
	const struct option_def *o;
	int at = 0;

	for (size_t i = 0; (o = option_at(i)); i++)
		if (o->scope == SCOPE_FORWARD)
			option_help(o);
	puts("\n"
	     "and these options, which then count for it instead of those above:");
	for (size_t i = 0; (o = option_at(i)); i++) {
		int len = (int)strlen(o->name) + 2;

		if (o->scope != SCOPE_EACH)
			continue;
		if (at && at + len > 78) {
			puts(",");
			at = 0;
		}
		at += printf("%s%s", at ? ", " : "  ", o->name);
	}
	putchar('\n');
}
