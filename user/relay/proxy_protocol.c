// SPDX-License-Identifier: BSD-2-Clause
#include "relay/proxy_protocol.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

/* --- the bytes on the wire --- */

#define LINE_MAX_V1 (PROXY_PROTOCOL_WRITE_MAX - 1)
#define FIXED_V2 16 /* bytes before the addresses */
#define LOCAL_V2 0x20
#define PROXY_V2 0x21
#define IPV4_V2 0x10 /* IPv4 and IPv6: with TCP_V2 or UDP_V2 */
#define IPV6_V2 0x20
#define TCP_V2 1
#define UDP_V2 2

static const uint8_t signature[] = {
	'\r', '\n', '\r', '\n', 0, '\r', '\n', 'Q', 'U', 'I', 'T', '\n'
};
static const uint8_t mapped[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

static int malformed(const char **ret_reason, const char *reason)
{
	*ret_reason = reason;
	return -EPROTO;
}

/* ADDRESS is of 16 bytes if SIX, else of 4. */
static void set_addr(union client_addr *ret, bool six, const uint8_t *address, in_port_t port)
{
	if (six && memcmp(address, mapped, sizeof(mapped)) != 0) {
		ret->in6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = port };
		memcpy(&ret->in6.sin6_addr, address, 16);
		return;
	}
	ret->in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port };
	memcpy(&ret->in.sin_addr, six ? address + sizeof(mapped) : address, 4);
}

bool proxy_protocol_begins(const void *buf, size_t len)
{
	return len >= 6 && (!memcmp(buf, "PROXY ", 6) ||
			    !memcmp(buf, signature, smaller(len, sizeof(signature))));
}

/* --- version 1 --- */

#define BLANK "%*1[ ]"

/*
 * LINE is "PROXY TCP4 1.2.3.4 5.6.7.8 1 2", or the same with TCP6.  inet_pton(3) takes what the
 * specification asks for, and "::ffff:1.2.3.4", as senders that use inet_ntop(3) write it (haproxy
 * does).  A port is 0 to 65535, without zeros in front.
 */
static bool parse_line(const char *line, size_t len, struct proxy_header *h)
{
	union client_addr *both[2] = { &h->source, &h->destination };
	char family[2], text[2][INET6_ADDRSTRLEN], ports[2][6];
	uint8_t address[16];
	int end = 0;

	if (sscanf(line,
		   "PROXY" BLANK "TCP%1[46]" BLANK "%45[^ ]" BLANK "%45[^ ]" BLANK "%5[0-9]" BLANK
		   "%5[0-9]%n",
		   family, text[0], text[1], ports[0], ports[1], &end) != 5 ||
	    (size_t)end != len)
		return false;
	for (int i = 0; i < 2; i++) {
		int port = atoi(ports[i]);
		bool six = family[0] == '6';

		if (inet_pton(six ? AF_INET6 : AF_INET, text[i], address) != 1 ||
		    (ports[i][0] == '0' && ports[i][1]) || port > UINT16_MAX)
			return false;
		set_addr(both[i], six, address, htons((uint16_t)port));
	}
	return true;
}

static int parse_v1(const char *bytes, size_t len, struct proxy_header *h, const char **ret_reason)
{
	const char *end = memmem(bytes, smaller(len, LINE_MAX_V1), "\r\n", 2);
	size_t n = end ? (size_t)(end - bytes) : 0;
	char line[LINE_MAX_V1];

	if (memcmp(bytes, "PROXY ", smaller(len, 6)) != 0)
		return malformed(ret_reason, "no PROXY header");
	if (!end)
		return len < LINE_MAX_V1 ? -EAGAIN : malformed(ret_reason, "line too long");
	memcpy(line, bytes, n);
	line[n] = '\0';
	h->size = n + 2;
	/* all bytes between UNKNOWN and CRLF are ignored */
	if (!strncmp(line, "PROXY UNKNOWN", 13) && (n == 13 || line[13] == ' '))
		return 0;
	h->has_addresses = parse_line(line, n, h);
	return h->has_addresses ? 0 : malformed(ret_reason, "bad addresses or ports");
}

/* --- version 2 --- */

static in_port_t port_at(const uint8_t *p)
{
	in_port_t port;

	memcpy(&port, p, sizeof(port));
	return port;
}

static int parse_v2(const uint8_t *header, size_t len, struct proxy_header *h,
		    const char **ret_reason)
{
	bool six = header[13] >> 4 == IPV6_V2 >> 4, told;
	const uint8_t *p = header + FIXED_V2;
	size_t n = six ? 16 : 4;

	h->udp = (header[13] & 15) == UDP_V2;
	told = header[12] == PROXY_V2 && (six || header[13] >> 4 == IPV4_V2 >> 4) &&
	       (h->udp || (header[13] & 15) == TCP_V2);
	h->size = FIXED_V2 + ntohs(port_at(header + 14));
	if (header[12] != LOCAL_V2 && header[12] != PROXY_V2)
		return malformed(ret_reason, "unknown version or command");
	if (header[12] == PROXY_V2 && (header[13] >> 4 > 3 || (header[13] & 15) > 2))
		return malformed(ret_reason, "unknown address family or transport protocol");
	if (h->size > PROXY_PROTOCOL_MAX)
		return malformed(ret_reason, "header too long");
	if (told && h->size < FIXED_V2 + 2 * n + 4)
		return malformed(ret_reason, "header too short for its addresses");
	if (len < h->size)
		return -EAGAIN;
	h->has_addresses = told;
	if (told) {
		set_addr(&h->source, six, p, port_at(p + 2 * n));
		set_addr(&h->destination, six, p + n, port_at(p + 2 * n + 2));
	}
	return 0;
}

int proxy_protocol_parse(const void *buf, size_t len, struct proxy_header *ret,
			 const char **ret_reason)
{
	memset(ret, 0, sizeof(*ret));
	*ret_reason = NULL;
	if (!len)
		return -EAGAIN;
	ret->version = *(const uint8_t *)buf == signature[0] ? 2 : 1;
	if (ret->version == 1)
		return parse_v1(buf, len, ret, ret_reason);
	if (memcmp(buf, signature, smaller(len, sizeof(signature))) != 0)
		return malformed(ret_reason, "no PROXY header");
	return len < FIXED_V2 ? -EAGAIN : parse_v2(buf, len, ret, ret_reason);
}

/* --- writing --- */

/* The bytes of A: 16 if SIX (IPv4-mapped if A is IPv4), else 4. */
static void get_bytes(const union client_addr *a, bool six, uint8_t *ret)
{
	if (a->sa.sa_family == AF_INET6) {
		memcpy(ret, &a->in6.sin6_addr, 16);
		return;
	}
	if (six)
		memcpy(ret, mapped, sizeof(mapped));
	memcpy(ret + (six ? sizeof(mapped) : 0), &a->in.sin_addr, 4);
}

size_t proxy_protocol_write(const struct proxy_header *h, uint8_t buf[PROXY_PROTOCOL_WRITE_MAX])
{
	bool six = h->source.sa.sa_family == AF_INET6 || h->destination.sa.sa_family == AF_INET6;
	size_t n = six ? 16 : 4;
	/* sin_port and sin6_port are at the same place */
	in_port_t port[2] = { h->source.in.sin_port, h->destination.in.sin_port };
	uint8_t *p = buf + FIXED_V2;
	char text[2][INET6_ADDRSTRLEN];

	get_bytes(&h->source, six, p);
	get_bytes(&h->destination, six, p + n);
	if (h->version == 1 && !h->has_addresses)
		return (size_t)sprintf((char *)buf, "PROXY UNKNOWN\r\n");
	if (h->version == 1) {
		for (int i = 0; i < 2; i++)
			inet_ntop(six ? AF_INET6 : AF_INET, p + i * n, text[i], sizeof(text[i]));
		return (size_t)snprintf((char *)buf, PROXY_PROTOCOL_WRITE_MAX,
					"PROXY TCP%d %s %s %u %u\r\n", six ? 6 : 4, text[0],
					text[1], ntohs(port[0]), ntohs(port[1]));
	}
	memset(buf, 0, FIXED_V2);
	memcpy(buf, signature, sizeof(signature));
	buf[12] = h->has_addresses ? PROXY_V2 : LOCAL_V2;
	if (!h->has_addresses)
		return FIXED_V2;
	buf[13] = (six ? IPV6_V2 : IPV4_V2) | (h->udp ? UDP_V2 : TCP_V2);
	buf[15] = (uint8_t)(2 * n + sizeof(port));
	memcpy(p + 2 * n, port, sizeof(port));
	return FIXED_V2 + 2 * n + sizeof(port);
}
