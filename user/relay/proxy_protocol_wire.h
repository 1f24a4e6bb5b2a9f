/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROXY_PROTOCOL_WIRE_H
#define CULVERT_PROXY_PROTOCOL_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

#include "relay/proxy_protocol.h"

/* What the reader and the writer of PROXY headers share: the bytes on the wire. */

#define LINE_MAX_V1 107 /* with CRLF */
#define FIXED_V2 16     /* up to and including the length of the rest */
#define PATH_V2 108     /* a unix address, filled up with NULs */

enum {
	COMMAND_LOCAL,
	COMMAND_PROXY,
	COMMANDS,
};

enum {
	FAMILY_UNSPEC,
	FAMILY_INET,
	FAMILY_INET6,
	FAMILY_UNIX,
	FAMILIES,
};

enum {
	PROTOCOL_UNSPEC,
	PROTOCOL_STREAM,
	PROTOCOL_DGRAM,
	PROTOCOLS,
};

static const uint8_t proxy_signature[] = { '\r', '\n', '\r', '\n', 0,   '\r',
					   '\n', 'Q',  'U',  'I',  'T', '\n' };

/* Of two addresses and, but for unix, their ports. */
static const size_t addresses_size[FAMILIES] = {
	[FAMILY_INET] = 2 * 4 + 2 * 2,
	[FAMILY_INET6] = 2 * 16 + 2 * 2,
	[FAMILY_UNIX] = 2 * PATH_V2,
};

_Static_assert(PROXY_PROTOCOL_WRITE_MAX == FIXED_V2 + 2 * PATH_V2, "the longest header written");
_Static_assert(PATH_V2 == sizeof(((struct sockaddr_un *)0)->sun_path), "paths are copied whole");

static inline uint16_t be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

#endif
