/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report.h"
#include "wire.h"

/*
 * The protocol of both ends with --protocol udp.  Each datagram begins with a struct datagram, in
 * the byte order of the machine.  The rest is a piece of the pattern (wire.h) that depends on that
 * struct and on the size, so a damaged or cut datagram is found.
 */
enum datagram_kind {
	DATAGRAM_QUESTION = 0x63766200,
	DATAGRAM_ANSWER, /* of the same size */
	DATAGRAM_LOAD,   /* has no answer */
};

struct datagram {
	uint32_t kind;
	uint32_t number; /* the same in a question and its answer */
	uint64_t flow;
	uint64_t loads; /* answer: how many of that flow have come */
};

_Static_assert(sizeof(struct datagram) == DATAGRAM_MIN, "a size that has no room for it");

/* Make N bytes, at least a struct datagram, at TO. */
void datagram_write(uint8_t *to, size_t n, const struct datagram *d);

/* False if the content of these N bytes is wrong. */
bool datagram_read(const uint8_t *from, size_t n, struct datagram *ret);

/* --- the sink --- */

/* Answer what waits at FD, which has UDP_GRO. */
void datagram_serve(int fd, struct sink_tally *t);
