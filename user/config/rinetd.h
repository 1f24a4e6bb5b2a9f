/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

struct config_reader;

/*
 * The configuration of rinetd 0.62 to 0.73, and the four words of oi:
 *
 *	allow|deny PATTERN                              (before the first rule: for all of them)
 *	BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT [OPTION=VALUE,...]
 *	allow|deny PATTERN                              (for the rule before)
 *	logfile FILE, and the like
 *
 * docs/operations.md has the meaning of each line, and the lines that are refused.
 */

/* True if TEXT, the content of a file, does not begin with a section, or with KEY = VALUE. */
bool rinetd_is(const char *text);

/* Read all of R. */
void rinetd_read(struct config_reader *r);
