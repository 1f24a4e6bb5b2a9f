/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

/* Texts that a person has written. */

/* True of UTF-8 as RFC 3629 has it, and so of ASCII: what JSON may hold. */
bool text_is_utf8(const char *text);

/* Letters that must be put in, left out or changed to make B of A; UINT_MAX: one has more than 64. */
unsigned int text_distance(const char *a, const char *b);
