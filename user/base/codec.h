/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Packs a struct into a record, or unpacks it: one function for each struct names the fields in
 * their order, with their sizes, and serves both ways.  Numbers are in network byte order.
 */
struct codec {
	uint8_t *at, *end;
	uint64_t now_ns; /* CLOCK_MONOTONIC; times are sent as ages */
	bool packs;
	bool is_short; /* a field did not fit, or has not come: it is 0 */
};

/* Pack the low N bytes of V, or unpack so many.  Returns the number. */
uint64_t codec_number(struct codec *c, uint64_t v, int n);

#define CODEC_FIELD(c, x, n) ((x) = (__typeof__(x))codec_number(c, x, n))

/* A time, as its age in milliseconds. */
uint64_t codec_moment(struct codec *c, uint64_t ns);
/* Bytes that are in network byte order already. */
void codec_bytes(struct codec *c, void *p, int n);
/* A text of SIZE bytes at most, with its NUL.  A text that is longer is cut. */
void codec_text(struct codec *c, char *text, size_t size);
