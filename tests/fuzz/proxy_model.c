// SPDX-License-Identifier: BSD-2-Clause
#include "proxy_model.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define LINE 107
#define GROUPS 8

/* --- addresses --- */

static void put_inet(struct addr *a, const uint8_t address[4], unsigned int port)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&a->ss;

	memset(a, 0, sizeof(*a));
	in->sin_family = AF_INET;
	in->sin_port = htons((uint16_t)port);
	memcpy(&in->sin_addr, address, 4);
	a->len = sizeof(*in);
}

static void put_inet6(struct addr *a, const uint8_t address[16], unsigned int port)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&a->ss;

	memset(a, 0, sizeof(*a));
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons((uint16_t)port);
	memcpy(&in6->sin6_addr, address, 16);
	a->len = sizeof(*in6);
	proxy_model_unmap(a);
}

void proxy_model_unmap(struct addr *a)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct sockaddr_in6 in6;

	memcpy(&in6, &a->ss, sizeof(in6));
	if (memcmp(&in6.sin6_addr, mapped, 12) == 0)
		put_inet(a, in6.sin6_addr.s6_addr + 12, ntohs(in6.sin6_port));
}

void proxy_model_unix(const char *path, struct addr *ret)
{
	struct sockaddr_un *un = (struct sockaddr_un *)&ret->ss;
	size_t n = 0;

	memset(ret, 0, sizeof(*ret));
	un->sun_family = AF_UNIX;
	for (size_t i = 0; i < sizeof(un->sun_path); i++) {
		if (path[0] && !path[i]) {
			n = i + 1; /* with its end */
			break;
		}
		if (path[i])
			n = i + 1;
	}
	memcpy(un->sun_path, path, n);
	ret->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

/* --- version 1 --- */

static bool scan_number(const char *text, unsigned int most, unsigned int *ret)
{
	char canonical[16];

	if (strlen(text) > 5 || sscanf(text, "%u", ret) != 1 || *ret > most)
		return false;
	snprintf(canonical, sizeof(canonical), "%u", *ret);
	return !strcmp(canonical, text);
}

static bool scan_inet(const char *text, uint8_t ret[4])
{
	unsigned int n[4];
	char canonical[64];

	if (strlen(text) > 15 || sscanf(text, "%u.%u.%u.%u", &n[0], &n[1], &n[2], &n[3]) != 4)
		return false;
	snprintf(canonical, sizeof(canonical), "%u.%u.%u.%u", n[0], n[1], n[2], n[3]);
	for (int i = 0; i < 4; i++) {
		if (n[i] > 255)
			return false;
		ret[i] = (uint8_t)n[i];
	}
	return !strcmp(canonical, text);
}

/* The groups of TEXT, without "::": their number, or -1. */
static int scan_groups(const char *text, unsigned int groups[GROUPS])
{
	int n = 0;

	if (!text[0])
		return 0;
	for (;; n++) {
		size_t digits = strspn(text, "0123456789abcdefABCDEF");

		if (digits < 1 || digits > 4 || n == GROUPS)
			return -1;
		groups[n] = (unsigned int)strtoul(text, NULL, 16);
		text += digits;
		if (!text[0])
			return n + 1;
		if (*text++ != ':')
			return -1;
	}
}

static bool scan_inet6(const char *text, uint8_t ret[16])
{
	unsigned int before[GROUPS], behind[GROUPS];
	char hex[64], *gap, *last;
	uint8_t dotted[4];
	int n, m = 0;

	if (strlen(text) > 39)
		return false;
	strcpy(hex, text);
	last = strrchr(hex, ':');
	if (last && strchr(last, '.')) {
		if (!scan_inet(last + 1, dotted))
			return false;
		sprintf(last + 1, "%x:%x", dotted[0] * 256 + dotted[1],
			dotted[2] * 256 + dotted[3]);
	}
	gap = strstr(hex, "::");
	if (gap) {
		*gap = '\0';
		m = scan_groups(gap + 2, behind);
	}
	n = scan_groups(hex, before);
	if (n < 0 || m < 0 || (gap ? n + m > GROUPS - 1 : n != GROUPS))
		return false;
	memset(ret, 0, 16);
	for (int i = 0; i < n + m; i++) {
		unsigned int group = i < n ? before[i] : behind[i - n];
		int place = i < n ? i : GROUPS - (n + m) + i;

		ret[2 * place] = (uint8_t)(group >> 8);
		ret[2 * place + 1] = (uint8_t)group;
	}
	return true;
}

/* LINE is without CRLF.  Four words behind the first two, one space between each. */
static bool model_addresses(const char *line, struct proxy_header *ret)
{
	char family, word[4][LINE + 1], again[5 * LINE];
	unsigned int port[2];
	uint8_t address[16];

	if (sscanf(line, "PROXY TCP%c %107s %107s %107s %107s", &family, word[0], word[1], word[2],
		   word[3]) != 5 ||
	    (family != '4' && family != '6'))
		return false;
	snprintf(again, sizeof(again), "PROXY TCP%c %s %s %s %s", family, word[0], word[1], word[2],
		 word[3]);
	if (strcmp(again, line) != 0)
		return false;
	for (int i = 0; i < 2; i++) {
		struct addr *a = i == 0 ? &ret->source : &ret->destination;

		if (!scan_number(word[2 + i], 65535, &port[i]) ||
		    !(family == '4' ? scan_inet : scan_inet6)(word[i], address))
			return false;
		(family == '4' ? put_inet : put_inet6)(a, address, port[i]);
	}
	ret->kind = PROXY_ADDRESSES;
	return true;
}

static bool model_v1(const uint8_t *bytes, size_t n, struct proxy_header *ret)
{
	char line[LINE + 1] = "";
	size_t end = 0;

	while (end + 2 <= n && end + 2 <= LINE && memcmp(bytes + end, "\r\n", 2) != 0)
		end++;
	if (end + 2 > n || end + 2 > LINE)
		return false;
	memcpy(line, bytes, end);
	ret->version = 1;
	ret->size = end + 2;
	ret->kind = PROXY_UNKNOWN;
	if (!strcmp(line, "PROXY UNKNOWN") && strlen(line) == end)
		return true;
	if (!strncmp(line, "PROXY UNKNOWN ", 14))
		return true;
	return strlen(line) == end && model_addresses(line, ret);
}

/* --- version 2 --- */

uint32_t proxy_model_crc(const uint8_t *bytes, size_t n)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < 8 * n; i++) {
		crc ^= (uint32_t)(bytes[i / 8] >> i % 8) & 1;
		crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
	}
	return ~crc;
}

enum chain {
	CHAIN_BAD,
	CHAIN_WRONG, /* a checksum that does not hold */
	CHAIN_GOOD,
};

/* Checksum: where its value is, or 0. */
static enum chain model_chain(const uint8_t *header, size_t size, size_t at, size_t checksum)
{
	uint8_t copy[PROXY_PROTOCOL_MAX];
	size_t length;
	uint32_t crc;

	while (at < size) {
		if (at + 3 > size)
			return CHAIN_BAD;
		length = header[at + 1] * 256U + header[at + 2];
		if (at + 3 + length > size)
			return CHAIN_BAD;
		if (header[at] == 3) {
			if (length != 4 || checksum)
				return CHAIN_BAD;
			checksum = at + 3;
		}
		at += 3 + length;
	}
	if (!checksum)
		return CHAIN_GOOD;
	memcpy(copy, header, size);
	memset(copy + checksum, 0, 4);
	crc = proxy_model_crc(copy, size);
	for (size_t i = 0; i < 4; i++) {
		if (header[checksum + i] != (uint8_t)(crc >> (24 - 8 * i)))
			return CHAIN_WRONG;
	}
	return CHAIN_GOOD;
}

static unsigned int port_at(const uint8_t *p)
{
	return p[0] * 256U + p[1];
}

static bool model_v2(const uint8_t *bytes, size_t n, struct proxy_header *ret)
{
	static const size_t lengths[16] = { 0, 12, 36, 216 };
	const uint8_t *body = bytes + 16;
	size_t length, addresses;
	uint8_t family, protocol;
	enum chain chain;
	bool strict;

	if (n < 16 || memcmp(bytes, "\r\n\r\n\0\r\nQUIT\n", 12) != 0 || (bytes[12] | 1) != 0x21)
		return false;
	family = bytes[13] / 16;
	protocol = bytes[13] % 16;
	length = bytes[14] * 256U + bytes[15];
	addresses = lengths[family];
	ret->version = 2;
	ret->size = 16 + length;
	ret->kind = bytes[12] == 0x20 ? PROXY_LOCAL : PROXY_UNKNOWN;
	strict = bytes[12] == 0x21 && family && protocol;
	if (bytes[12] == 0x21 && (family > 3 || protocol > 2))
		return false;
	if (ret->size > PROXY_PROTOCOL_MAX || ret->size > n || (strict && length < addresses))
		return false;
	chain = model_chain(bytes, ret->size, 16 + addresses, 0);
	if (chain == CHAIN_WRONG || (strict && chain == CHAIN_BAD))
		return false;
	if (!strict || protocol != 1)
		return true;
	ret->kind = PROXY_ADDRESSES;
	if (family == 1) {
		put_inet(&ret->source, body, port_at(body + 8));
		put_inet(&ret->destination, body + 4, port_at(body + 10));
	} else if (family == 2) {
		put_inet6(&ret->source, body, port_at(body + 32));
		put_inet6(&ret->destination, body + 16, port_at(body + 34));
	} else {
		proxy_model_unix((const char *)body, &ret->source);
		proxy_model_unix((const char *)body + 108, &ret->destination);
	}
	return true;
}

bool proxy_model(const uint8_t *bytes, size_t n, struct proxy_header *ret)
{
	memset(ret, 0, sizeof(*ret));
	return model_v2(bytes, n, ret) || (memset(ret, 0, sizeof(*ret)), model_v1(bytes, n, ret));
}
