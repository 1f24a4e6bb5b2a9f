// SPDX-License-Identifier: BSD-2-Clause
#include "relay/proxy_protocol.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "relay/proxy_protocol_wire.h"

#define PATH_OFFSET offsetof(struct sockaddr_un, sun_path)
/* Longer ones come from inet_ntop() for no address: its dotted forms are short. */
#define TEXT_ROOM sizeof("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")

/* Two addresses of one family: IPv4 ones are mapped. */
struct pair {
	struct in6_addr address[2];
	in_port_t port[2];
	bool v4; /* both are mapped */
};

static bool get_inet(const struct addr *a, struct in6_addr *ret_address, in_port_t *ret_port)
{
	struct sockaddr_in6 in6;
	struct sockaddr_in in;

	if (a->ss.ss_family == AF_INET6) {
		memcpy(&in6, &a->ss, sizeof(in6));
		*ret_address = in6.sin6_addr;
		*ret_port = in6.sin6_port;
		return true;
	}
	if (a->ss.ss_family != AF_INET)
		return false;
	memcpy(&in, &a->ss, sizeof(in));
	memset(ret_address, 0, 10);
	memset(ret_address->s6_addr + 10, 0xff, 2);
	memcpy(ret_address->s6_addr + 12, &in.sin_addr, 4);
	*ret_port = in.sin_port;
	return true;
}

/* False if there are no two addresses of IPv4 or IPv6. */
static bool get_pair(const struct proxy_header *h, struct pair *ret)
{
	if (h->kind != PROXY_ADDRESSES || !get_inet(&h->source, &ret->address[0], &ret->port[0]) ||
	    !get_inet(&h->destination, &ret->address[1], &ret->port[1]))
		return false;
	ret->v4 = IN6_IS_ADDR_V4MAPPED(&ret->address[0]) && IN6_IS_ADDR_V4MAPPED(&ret->address[1]);
	return true;
}

/* Without the dotted form that inet_ntop() has for some, and the specification has not. */
static void format_inet6(const struct in6_addr *address, char text[TEXT_ROOM])
{
	const uint8_t *p = address->s6_addr;

	inet_ntop(AF_INET6, address, text, TEXT_ROOM);
	if (strchr(text, '.'))
		snprintf(text, TEXT_ROOM, "%x:%x:%x:%x:%x:%x:%x:%x", be16(p), be16(p + 2),
			 be16(p + 4), be16(p + 6), be16(p + 8), be16(p + 10), be16(p + 12),
			 be16(p + 14));
}

static size_t write_v1(const struct proxy_header *h, uint8_t *buf)
{
	char text[2][TEXT_ROOM];
	char line[LINE_MAX_V1 + 1] = "PROXY UNKNOWN\r\n";
	struct pair pair;
	size_t n;

	if (get_pair(h, &pair)) {
		for (int i = 0; i < 2; i++) {
			if (pair.v4)
				inet_ntop(AF_INET, pair.address[i].s6_addr + 12, text[i],
					  TEXT_ROOM);
			else
				format_inet6(&pair.address[i], text[i]);
		}
		snprintf(line, sizeof(line), "PROXY TCP%d %s %s %u %u\r\n", pair.v4 ? 4 : 6,
			 text[0], text[1], ntohs(pair.port[0]), ntohs(pair.port[1]));
	}
	n = strlen(line);
	memcpy(buf, line, n);
	return n;
}

/* The room is full of zeros. */
static void put_unix(uint8_t *room, const struct addr *a)
{
	struct sockaddr_un un;
	size_t n = a->len > PATH_OFFSET ? smaller(a->len - PATH_OFFSET, PATH_V2) : 0;

	memcpy(&un, &a->ss, sizeof(un));
	if (n > 0 && un.sun_path[0])
		n = strnlen(un.sun_path, n);
	memcpy(room, un.sun_path, n);
}

static size_t write_v2(const struct proxy_header *h, uint8_t *buf)
{
	uint8_t *p = buf + FIXED_V2;
	unsigned int family = FAMILY_UNSPEC;
	struct pair pair;

	memset(buf, 0, PROXY_PROTOCOL_WRITE_MAX);
	if (get_pair(h, &pair)) {
		size_t n = pair.v4 ? 4 : 16;

		family = pair.v4 ? FAMILY_INET : FAMILY_INET6;
		memcpy(p, pair.address[0].s6_addr + 16 - n, n);
		memcpy(p + n, pair.address[1].s6_addr + 16 - n, n);
		memcpy(p + 2 * n, pair.port, sizeof(pair.port));
	} else if (h->kind == PROXY_ADDRESSES && h->source.ss.ss_family == AF_UNIX &&
		   h->destination.ss.ss_family == AF_UNIX) {
		family = FAMILY_UNIX;
		put_unix(p, &h->source);
		put_unix(p + PATH_V2, &h->destination);
	}
	memcpy(buf, proxy_signature, sizeof(proxy_signature));
	buf[12] = 2 << 4 | (h->kind == PROXY_LOCAL ? COMMAND_LOCAL : COMMAND_PROXY);
	buf[13] = (uint8_t)(family << 4 | (family ? PROTOCOL_STREAM : PROTOCOL_UNSPEC));
	buf[15] = (uint8_t)addresses_size[family];
	return FIXED_V2 + addresses_size[family];
}

size_t proxy_protocol_write(const struct proxy_header *header,
			    uint8_t buf[PROXY_PROTOCOL_WRITE_MAX])
{
	assert(header->version == 1 || header->version == 2);
	return header->version == 1 ? write_v1(header, buf) : write_v2(header, buf);
}
