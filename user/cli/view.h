/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Print the daemon's ANSWER, an object, as text for people.  The answer is not trusted: control
 * characters are escaped.
 */
void view_print(struct json_object *answer, FILE *out);

/* Write N as the name of its KEY asks: as an age, a size, or a number. */
void view_number(const char *key, uint64_t n, char *buf, size_t len);

/* "5.3s", "2m10s", "3h05m", "2d03h". */
void view_age(uint64_t ms, char *buf, size_t len);
