// SPDX-License-Identifier: BSD-2-Clause
#include "source_range.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static size_t address_len(int family)
{
	return family == AF_INET ? 4 : 16;
}

/* TEXT of N characters, perhaps in brackets; returns the family or AF_UNSPEC. */
static int parse_one(const char *text, size_t n, uint8_t ret[16])
{
	char copy[INET6_ADDRSTRLEN];

	if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	if (n >= sizeof(copy))
		return AF_UNSPEC;
	memcpy(copy, text, n);
	copy[n] = '\0';
	if (inet_pton(AF_INET, copy, ret) == 1)
		return AF_INET;
	return inet_pton(AF_INET6, copy, ret) == 1 ? AF_INET6 : AF_UNSPEC;
}

/* LAST - FIRST + 1, or 0 if that is not within 1 .. SOURCE_RANGE_MAX. */
static uint32_t count_addresses(const uint8_t *first, const uint8_t *last, size_t len)
{
	int64_t distance = 0;

	for (size_t i = 0; i < len; i++) {
		distance = distance * 256 + last[i] - first[i];
		if (distance >= SOURCE_RANGE_MAX || distance <= -SOURCE_RANGE_MAX)
			return 0; /* what follows cannot bring it back by more than one */
	}
	return distance < 0 ? 0 : (uint32_t)distance + 1;
}

int source_range_parse(const char *text, struct source_range *ret, char *err, size_t errlen)
{
	const char *dash = strchr(text, '-');
	uint8_t last[16] = { 0 };
	int family;

	memset(ret, 0, sizeof(*ret));
	family = parse_one(text, dash ? (size_t)(dash - text) : strlen(text), ret->first);
	if (family == AF_UNSPEC) {
		snprintf(err, errlen, "expected an IPv4 or IPv6 address, or FIRST-LAST");
		return -EINVAL;
	}
	if (!dash) {
		memcpy(last, ret->first, sizeof(last));
	} else if (parse_one(dash + 1, strlen(dash + 1), last) != family) {
		snprintf(err, errlen, "LAST is no address of the same family as FIRST");
		return -EINVAL;
	}
	ret->count = count_addresses(ret->first, last, address_len(family));
	if (!ret->count) {
		snprintf(err, errlen, "LAST must come after FIRST, by less than %d addresses",
			 SOURCE_RANGE_MAX);
		return -EINVAL;
	}
	ret->family = family;
	return 0;
}

void source_range_at(const struct source_range *r, uint64_t n, struct addr *ret)
{
	uint64_t carry = n % r->count;
	uint8_t address[16];

	memcpy(address, r->first, sizeof(address));
	for (size_t i = address_len(r->family); i-- > 0; carry >>= 8) {
		carry += address[i];
		address[i] = (uint8_t)carry;
	}
	memset(ret, 0, sizeof(*ret));
	ret->ss.ss_family = (sa_family_t)r->family;
	if (r->family == AF_INET) {
		memcpy(&((struct sockaddr_in *)&ret->ss)->sin_addr, address, 4);
		ret->len = sizeof(struct sockaddr_in);
	} else {
		memcpy(&((struct sockaddr_in6 *)&ret->ss)->sin6_addr, address, 16);
		ret->len = sizeof(struct sockaddr_in6);
	}
}
