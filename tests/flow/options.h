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

/* What an option sets, and what --help says of it. */
struct test_option {
	const char *name, *value, *help;
	enum option_kind kind;
	void *to;
};

/*
 * Set what ARGV asks for.  Arguments that are no options must stand behind "--", where optind is
 * then.  Exits after --help, and with 2 after what it does not know.
 */
void options_parse(int argc, char **argv, const struct test_option *rows, size_t n);
