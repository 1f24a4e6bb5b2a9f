/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_RINETD_H
#define CULVERT_CONFIG_RINETD_H

#include <stdbool.h>
#include <stdio.h>

#include "config/config_text.h"

/*
 * The configuration of rinetd 0.62 to 0.73, much of that of rinetd-uv, and the four words of oi:
 *
 *	allow|deny PATTERN                              (before the first rule: for all of them)
 *	BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT [OPTION=VALUE,...]
 *	allow|deny PATTERN                              (for the rule before)
 *	logfile FILE, and the like
 *
 * docs/rinetd.md says what becomes of each, and what is refused.
 */

/* Does F have that form?  That is so unless it begins with a section, or with KEY = VALUE. */
bool config_rinetd_is(FILE *f);

/* As config_file_parse(), of such a file. */
int config_rinetd_parse(FILE *f, const char *path, struct config *c, struct config_text *text);

#endif
