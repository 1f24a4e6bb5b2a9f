/* SPDX-License-Identifier: BSD-2-Clause */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

#define OPTIONS_MAX 24

static void set(const struct test_option *row, const char *text)
{
	if (row->kind == TEXT)
		*(const char **)row->to = text;
	else if (row->kind == NUMBER)
		*(uint64_t *)row->to = strtoull(text, NULL, 0);
	else if (row->kind == SECONDS)
		*(double *)row->to = atof(text);
	else
		*(bool *)row->to = true;
}

void options_parse(int argc, char **argv, const struct test_option *rows, size_t n)
{
	struct option options[OPTIONS_MAX] = { [0] = { "help", no_argument, NULL, 'h' } };
	int c, at;

	for (size_t i = 0; i < n && i < OPTIONS_MAX - 2; i++)
		options[i + 1] = (struct option){ rows[i].name, rows[i].kind != FLAG, NULL, 0 };
	while ((c = getopt_long(argc, argv, "", options, &at)) == 0)
		set(&rows[at - 1], optarg);
	if (c == -1 && (optind == argc || !strcmp(argv[optind - 1], "--")))
		return;
	for (size_t i = 0; i < n; i++)
		printf("  --%s %s\t%s\n", rows[i].name, rows[i].value, rows[i].help);
	exit(c == 'h' ? 0 : 2);
}
