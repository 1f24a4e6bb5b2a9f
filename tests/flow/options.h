/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>

/* The options of a test program, as a table. */

enum option_kind {
	TEXT,    /* const char * */
	NUMBER,  /* uint64_t */
	SECONDS, /* double */
	FLAG,    /* bool */
};

/* One option: the variable that it sets, and its line in --help. */
struct test_option {
	const char *name, *value, *help;
	enum option_kind kind;
	void *to;
};

/*
 * Set the variables of the options in ARGV.  Other arguments must stand behind "--", and optind is
 * the first of them.  Exits with 0 after --help, and with 2 after an unknown option.
 */
void options_parse(int argc, char **argv, const struct test_option *rows, size_t n);
