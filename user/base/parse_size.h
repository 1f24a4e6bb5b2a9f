/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Numbers as users write them. */

/* Room for any formatted size: "1023.9 GiB" and its terminator. */
#define SIZE_STRLEN 16

/*
 * "64K", "1m", "1.5G", "123": bytes.  Suffixes K, M, G (powers of 1024, any case).  Returns 0,
 * -EINVAL (syntax), -ERANGE (more than 2^53).
 */
int size_parse(const char *text, uint64_t *ret);

/* A whole number in decimal, or after "0x" in hexadecimal.  0, -EINVAL, -ERANGE. */
int count_parse(const char *text, uint64_t *ret);

/*
 * "5", "5s", "0.5", ".5", "1.25": seconds, as milliseconds; "30m", "1h" and "1d" are minutes, hours
 * and days.  0, -EINVAL, -ERANGE.
 */
int seconds_parse(const char *text, uint64_t *ret);

/* "1.5 MiB" and the like into BUF (SIZE_STRLEN is always enough), in four digits; returns BUF. */
const char *size_format(uint64_t bytes, char *buf, size_t len);
