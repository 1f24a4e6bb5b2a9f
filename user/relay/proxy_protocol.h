/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"

/*
 * The PROXY protocol, versions 1 and 2 (haproxy's proxy-protocol.txt): the header in front of a
 * stream by which a proxy says who its client is.  Bytes in, addresses out, and back; no system
 * call, no allocation.
 *
 * The header may share a segment with the payload after it.  So a receiver peeks at what has come,
 * asks for the header's size, and reads just these bytes.  All bytes that stay in the socket are
 * payload, for any carrier.
 */

/*
 * The largest header that is accepted.  The format allows 65551 bytes; the specification wants a
 * header to fit into the smallest segment (536 bytes), and what is sent (addresses, names of hosts
 * and ciphers, an identifier) stays far below this.
 */
#define PROXY_PROTOCOL_MAX 4096
/* A line of version 1 with CRLF and NUL. */
#define PROXY_PROTOCOL_WRITE_MAX 108

struct proxy_header {
	size_t size;          /* in bytes, set by the parser; payload follows */
	unsigned int version; /* 1 or 2 */
	/*
	 * False: the connection is the proxy's own, such as a health check (LOCAL, version 2 only);
	 * or the client's addresses are unknown, or neither IPv4 nor IPv6 (UNKNOWN).
	 */
	bool has_addresses;
	bool udp;                      /* version 2: of datagrams */
	union client_addr source;      /* of the client; set only with has_addresses */
	union client_addr destination; /* to which the client has connected; likewise */
};

/*
 * Parse the first LEN bytes of a stream, at BUF.  Returns
 *
 *   0        they begin with a whole header of RET->size bytes, which RET describes.  With LOCAL
 *            and UNKNOWN the connection counts as one without a header: its own addresses hold.
 *   -EAGAIN  they may begin one.  If the stream ends here, or too much time goes by, the connection
 *            is to be aborted.
 *   -EPROTO  there is no header, or a malformed one, and RET_REASON (constant) says what is wrong.
 *            The connection is to be aborted: nobody may guess whether a header is there.
 *
 * More bytes can change only the answer -EAGAIN.
 *
 * IPv4-mapped addresses become the IPv4 addresses that they stand for, so that no client evades a
 * rule for addresses.  So source and destination may have two families.  The addresses of unix
 * sockets are skipped, and so are all bytes after the addresses (TLVs).
 */
int proxy_protocol_parse(const void *buf, size_t len, struct proxy_header *ret,
			 const char **ret_reason);

/* True if the LEN bytes of BUF are the begin of a header of either version; 6 bytes tell. */
bool proxy_protocol_begins(const void *buf, size_t len);

/*
 * Write a header of HEADER->version and addresses to BUF; returns its size.  Two IPv4 addresses are
 * sent as IPv4, other pairs as IPv6 (IPv4-mapped where needed; there is no room for scopes).
 * Without addresses LOCAL is sent, which every receiver of version 2 accepts, and UNKNOWN in
 * version 1.
 */
size_t proxy_protocol_write(const struct proxy_header *header,
			    uint8_t buf[PROXY_PROTOCOL_WRITE_MAX]);
