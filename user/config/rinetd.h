/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RINETD_H
#define CULVERT_RINETD_H

#include <stdbool.h>
#include <stdio.h>

struct config;
struct config_text;

/*
 * The configuration of rinetd 0.62 to 0.73, and the four words of oi:
 *
 *	allow|deny PATTERN                              (before the first rule: for all of them)
 *	BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT [OPTION=VALUE,...]
 *	allow|deny PATTERN                              (for the rule before)
 *	logfile FILE, and the like
 *
 * docs/operations.md says what becomes of each, and what is refused.
 */

/* True if F does not begin with a section, or with KEY = VALUE. */
bool rinetd_is(FILE *f);

/* Read F, the file that C names, into TEXT, as config_file_read() does. */
int rinetd_parse(FILE *f, struct config *c, struct config_text *text);

#endif
