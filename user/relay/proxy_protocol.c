// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Both versions are told from the first byte.  Each parser goes through what is there in the order
 * of the wire, and rejects what no further byte can mend; then it asks for more until the header is
 * whole, and only then looks at addresses.  So an answer other than "more" rests on bytes that are
 * part of the header, or on its first wrong one, and what follows cannot change it.
 *
 * How much more?  Version 2 has a length.  A line of version 1 has none: its least size is that of
 * the shortest line of its form, or else the bytes that are there and the rest of CRLF.
 */
#include "relay/proxy_protocol.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

/* --- the bytes on the wire --- */

#define LINE_MAX_V1 107 /* with CRLF */
#define FIXED_V2 16     /* up to and including the length of the rest */
#define PATH_V2 108     /* a unix address, filled up with NULs */
#define TLV_HEAD 3
#define TLV_CRC32C 3
#define CRC32C_SIZE 4

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

static uint16_t be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* In SIZE, the least that there must be. */
static int more(struct proxy_header *h, size_t least)
{
	h->size = least;
	return -EAGAIN;
}

static int malformed(const char **ret_reason, const char *reason)
{
	*ret_reason = reason;
	return -EPROTO;
}

static void set_inet(struct addr *a, const void *address, in_port_t port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = port };

	memcpy(&in.sin_addr, address, sizeof(in.sin_addr));
	memcpy(&a->ss, &in, sizeof(in));
	a->len = sizeof(in);
}

static void set_inet6(struct addr *a, const void *address, in_port_t port)
{
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = port };

	memcpy(&in6.sin6_addr, address, sizeof(in6.sin6_addr));
	if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
		set_inet(a, &in6.sin6_addr.s6_addr[12], port);
		return;
	}
	memcpy(&a->ss, &in6, sizeof(in6));
	a->len = sizeof(in6);
}

/* The length is the one that the kernel would give, so that equal addresses compare as equal. */
static void set_unix(struct addr *a, const uint8_t path[PATH_V2])
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	size_t n = PATH_V2;

	if (path[0])
		n = strnlen((const char *)path, PATH_V2);
	while (n > 0 && !path[n - 1]) /* abstract, or unnamed */
		n--;
	memcpy(un.sun_path, path, n);
	memcpy(&a->ss, &un, sizeof(un));
	if (path[0] && n < PATH_V2)
		n++; /* its end */
	a->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

/* --- version 1 --- */

static const struct form {
	const char *start;
	int family;
	size_t shortest; /* of whole lines */
	size_t longest;
} forms[] = {
	{ "PROXY TCP4 ", AF_INET, sizeof("PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n") - 1, 56 },
	{ "PROXY TCP6 ", AF_INET6, sizeof("PROXY TCP6 :: :: 0 0\r\n") - 1, 104 },
	{ "PROXY UNKNOWN", AF_UNSPEC, sizeof("PROXY UNKNOWN\r\n") - 1, LINE_MAX_V1 },
};

/* The form that the line begins with; NULL if there is none, or none yet (then LEAST is not 0). */
static const struct form *find_form(const char *line, size_t len, size_t *ret_least)
{
	*ret_least = 0;
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		const struct form *f = &forms[i];
		size_t n = strlen(f->start);

		if (memcmp(line, f->start, smaller(n, len)) != 0)
			continue;
		if (len >= n)
			return f;
		if (*ret_least == 0 || f->shortest < *ret_least)
			*ret_least = f->shortest;
	}
	return NULL;
}

/* A space and anything, or nothing: "UNKNOWNS" is another word. */
static bool unknown_ends(const char *line, size_t len)
{
	size_t n = strlen("PROXY UNKNOWN");

	if (len <= n || line[n] == ' ')
		return true;
	return line[n] == '\r' && (len <= n + 1 || line[n + 1] == '\n');
}

/*
 * The text up to the next space, or of the LAST field up to the end of the line.  A NUL would end
 * the text before the line does.
 */
static bool take_field(const char **at, const char *end, bool last, char *field, size_t room)
{
	const char *stop = last ? end : memchr(*at, ' ', (size_t)(end - *at));
	size_t n;

	if (!stop)
		return false;
	n = (size_t)(stop - *at);
	if (n >= room || memchr(*at, '\0', n))
		return false;
	memcpy(field, *at, n);
	field[n] = '\0';
	*at = last ? stop : stop + 1;
	return true;
}

/* 0 to 65535, without zeros in front. */
static bool parse_port(const char *text, in_port_t *ret)
{
	unsigned int n = 0;

	if (!text[0] || (text[0] == '0' && text[1]))
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		n = 10 * n + (unsigned int)(*text - '0');
		if (n > 65535)
			return false;
	}
	*ret = htons((uint16_t)n);
	return true;
}

/*
 * What is between the form's name and CRLF.  inet_pton(3) takes what the specification asks for:
 * four numbers without zeros in front; eight groups of up to four digits, or fewer and one "::".
 * And "::ffff:1.2.3.4", as senders that use inet_ntop(3) write it (haproxy does).
 */
static const char *parse_addresses(const struct form *f, const char *at, const char *end,
				   struct proxy_header *h)
{
	/* A longer text than 39 digits and colons has more digits than needed. */
	char text[sizeof("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")], port[sizeof("65535")];
	void (*set)(struct addr *, const void *, in_port_t) =
		f->family == AF_INET ? set_inet : set_inet6;
	struct in6_addr address[2];
	in_port_t number[2];

	for (int i = 0; i < 2; i++) {
		if (!take_field(&at, end, false, text, sizeof(text)) ||
		    inet_pton(f->family, text, &address[i]) != 1)
			return i == 0 ? "bad source address" : "bad destination address";
	}
	for (int i = 0; i < 2; i++) {
		if (!take_field(&at, end, i == 1, port, sizeof(port)) ||
		    !parse_port(port, &number[i]))
			return i == 0 ? "bad source port" : "bad destination port";
	}
	set(&h->source, &address[0], number[0]);
	set(&h->destination, &address[1], number[1]);
	return NULL;
}

/* Where there is no CRLF yet. */
static int wait_for_end(const struct form *f, const char *line, size_t len, struct proxy_header *h,
			const char **ret_reason)
{
	size_t least = len + (line[len - 1] == '\r' ? 1 : 2);

	if (least > f->longest)
		return malformed(ret_reason, "line too long");
	return more(h, least > f->shortest ? least : f->shortest);
}

static int parse_v1(const char *line, size_t len, struct proxy_header *h, const char **ret_reason)
{
	const char *end, *reason;
	const struct form *f;
	size_t least, stop;

	f = find_form(line, len, &least);
	if (!f && least)
		return more(h, least);
	if (!f && memcmp(line, forms[0].start, smaller(len, strlen("PROXY "))) != 0)
		return malformed(ret_reason, "no PROXY header");
	if (!f || (f->family == AF_UNSPEC && !unknown_ends(line, len)))
		return malformed(ret_reason, "neither TCP4, TCP6 nor UNKNOWN");

	len = smaller(len, f->longest);
	end = memmem(line, len, "\r\n", 2);
	if (f->family != AF_UNSPEC) {
		/* CR as the last byte may be half of CRLF; the last one possible is too late. */
		stop = end ? (size_t)(end - line) : len - (line[len - 1] == '\r');
		stop = smaller(stop, f->longest - 1);
		if (memchr(line, '\r', stop) || memchr(line, '\n', stop))
			return malformed(ret_reason, "CR or LF alone");
	}
	if (!end)
		return wait_for_end(f, line, len, h, ret_reason);

	h->kind = f->family == AF_UNSPEC ? PROXY_UNKNOWN : PROXY_ADDRESSES;
	if (f->family != AF_UNSPEC) {
		reason = parse_addresses(f, line + strlen(f->start), end, h);
		if (reason)
			return malformed(ret_reason, reason);
	}
	h->size = (size_t)(end - line) + 2;
	return 0;
}

/* --- version 2 --- */

/* Castagnoli's polynomial, bits reflected, four at a time. */
static uint32_t crc32c_add(uint32_t crc, uint8_t byte)
{
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};

	crc ^= byte;
	crc = crc >> 4 ^ table[crc & 15];
	return crc >> 4 ^ table[crc & 15];
}

/* Whether the checksum, at AT, is that of the header with zeros in its place. */
static bool checksum_is_right(const uint8_t *header, size_t size, size_t at)
{
	uint32_t crc = UINT32_MAX, told;

	for (size_t i = 0; i < size; i++)
		crc = crc32c_add(crc, i >= at && i < at + CRC32C_SIZE ? 0 : header[i]);
	memcpy(&told, header + at, sizeof(told));
	return ~crc == ntohl(told);
}

/* Go through the TLVs from AT on.  What is wrong; or NULL, and where the checksum is, or 0. */
static const char *find_checksum(const uint8_t *header, size_t size, size_t at, size_t *ret)
{
	size_t value;

	*ret = 0;
	for (; at < size; at = value) {
		if (size - at < TLV_HEAD)
			return "fewer bytes than a TLV behind the addresses or the last TLV";
		value = at + TLV_HEAD + be16(header + at + 1);
		if (value > size)
			return "a TLV is longer than the header";
		if (header[at] != TLV_CRC32C)
			continue;
		if (value - at != TLV_HEAD + CRC32C_SIZE)
			return "a checksum is not of four bytes";
		if (*ret)
			return "two checksums";
		*ret = at + TLV_HEAD;
	}
	return NULL;
}

/* What is wrong with a whole header, or NULL. */
static const char *check_tlvs(const uint8_t *header, size_t size, bool has_addresses)
{
	unsigned int family = header[13] >> 4;
	size_t at = FIXED_V2 + (family < FAMILIES ? addresses_size[family] : 0), checksum;
	const char *reason = find_checksum(header, size, at, &checksum);

	/* With LOCAL and UNSPEC what is behind the fixed part need not be addresses and TLVs. */
	if (reason)
		return has_addresses ? reason : NULL;
	if (checksum && !checksum_is_right(header, size, checksum))
		return "wrong checksum";
	return NULL;
}

static void take_addresses(const uint8_t *header, struct proxy_header *h)
{
	const uint8_t *p = header + FIXED_V2;
	in_port_t ports[2];

	switch (header[13] >> 4) {
	case FAMILY_INET:
		memcpy(ports, p + 8, sizeof(ports));
		set_inet(&h->source, p, ports[0]);
		set_inet(&h->destination, p + 4, ports[1]);
		break;
	case FAMILY_INET6:
		memcpy(ports, p + 32, sizeof(ports));
		set_inet6(&h->source, p, ports[0]);
		set_inet6(&h->destination, p + 16, ports[1]);
		break;
	default:
		set_unix(&h->source, p);
		set_unix(&h->destination, p + PATH_V2);
	}
}

/* What is wrong with the fixed part, as far as it is there, or NULL. */
static const char *check_fixed(const uint8_t *header, size_t len)
{
	if (memcmp(header, proxy_signature, smaller(len, sizeof(proxy_signature))) != 0)
		return "no PROXY header";
	if (len > 12 && header[12] >> 4 != 2)
		return "unknown version";
	if (len > 12 && (header[12] & 15) >= COMMANDS)
		return "unknown command";
	if (len > 13 && (header[12] & 15) == COMMAND_PROXY) {
		if (header[13] >> 4 >= FAMILIES)
			return "unknown address family";
		if ((header[13] & 15) >= PROTOCOLS)
			return "unknown transport protocol";
	}
	return NULL;
}

static int parse_v2(const uint8_t *header, size_t len, struct proxy_header *h,
		    const char **ret_reason)
{
	const char *reason = check_fixed(header, len);
	unsigned int family, protocol;
	bool has_addresses;
	size_t size;

	if (reason)
		return malformed(ret_reason, reason);
	if (len < FIXED_V2)
		return more(h, FIXED_V2);

	family = header[13] >> 4;
	protocol = header[13] & 15;
	has_addresses = (header[12] & 15) == COMMAND_PROXY && family != FAMILY_UNSPEC &&
			protocol != PROTOCOL_UNSPEC;
	size = FIXED_V2 + be16(header + 14);
	if (size > PROXY_PROTOCOL_MAX)
		return malformed(ret_reason, "header too long");
	if (has_addresses && size < FIXED_V2 + addresses_size[family])
		return malformed(ret_reason, "header too short for its addresses");
	if (len < size)
		return more(h, size);

	reason = check_tlvs(header, size, has_addresses);
	if (reason)
		return malformed(ret_reason, reason);
	h->kind = (header[12] & 15) == COMMAND_LOCAL ? PROXY_LOCAL : PROXY_UNKNOWN;
	if (has_addresses && protocol == PROTOCOL_STREAM) {
		h->kind = PROXY_ADDRESSES;
		take_addresses(header, h);
	}
	h->size = size;
	return 0;
}

int proxy_protocol_parse(const void *buf, size_t len, struct proxy_header *ret,
			 const char **ret_reason)
{
	const uint8_t *bytes = buf;

	memset(ret, 0, sizeof(*ret));
	*ret_reason = NULL;
	if (len == 0)
		return more(ret, forms[2].shortest);
	ret->version = bytes[0] == proxy_signature[0] ? 2 : 1;
	return ret->version == 2 ? parse_v2(buf, len, ret, ret_reason)
				 : parse_v1(buf, len, ret, ret_reason);
}

/* --- writing --- */

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
