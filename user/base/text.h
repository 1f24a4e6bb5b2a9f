/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

/* True if TEXT is UTF-8 (RFC 3629), as JSON needs.  ASCII is UTF-8. */
bool text_is_utf8(const char *text);

/*
 * Write TEXT to TO, which has as much room, with escapes as in C: \n, \r, \t, \\, \", \xHH and up
 * to three octal digits.  Returns the number of bytes, which may be NULs; -EINVAL: a bad escape.
 */
int text_unescape(const char *text, char *to);
