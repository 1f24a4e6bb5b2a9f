// SPDX-License-Identifier: BSD-2-Clause
#include "config/acl_rule.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

#define MAPPED_LEN 12
static const uint8_t mapped[MAPPED_LEN] = { [10] = 0xff, [11] = 0xff };
static const uint8_t ones[16] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
				  0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

static size_t family_len(const struct acl_rule *r)
{
	return r->family == AF_INET ? 4 : r->family == AF_INET6 ? 16 : 0;
}

/* IPv4 in IPv6 becomes IPv4: it is the same client. */
static void unmap(struct acl_rule *r)
{
	if (r->family != AF_INET6 || memcmp(r->mask, ones, MAPPED_LEN) ||
	    memcmp(r->addr, mapped, MAPPED_LEN))
		return;
	r->family = AF_INET;
	memmove(r->addr, r->addr + MAPPED_LEN, 4);
	memmove(r->mask, r->mask + MAPPED_LEN, 4);
	memset(r->addr + 4, 0, sizeof(r->addr) - 4);
	memset(r->mask + 4, 0, sizeof(r->mask) - 4);
}

static bool has_other_bits(const struct acl_rule *r)
{
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if (r->addr[i] & ~r->mask[i])
			return true;
	return false;
}

static void set_prefix(struct acl_rule *r, uint64_t bits)
{
	memset(r->mask, 0, sizeof(r->mask));
	memcpy(r->mask, ones, bits / 8);
	if (bits % 8)
		r->mask[bits / 8] = (uint8_t)(0xff00 >> bits % 8);
}

/* What is behind the slash. */
static int parse_mask(const char *text, struct acl_rule *r)
{
	uint64_t bits;

	if (inet_pton(r->family, text, r->mask) == 1)
		return 0;
	if (count_parse(text, &bits) || bits > 8 * family_len(r))
		return -EINVAL;
	set_prefix(r, bits);
	return 0;
}

static int parse_inet(const char *text, struct acl_rule *r)
{
	char buf[ACL_RULE_STRLEN];
	size_t len = strlen(text);
	char *slash;

	if (len >= sizeof(buf))
		return -EINVAL;
	memcpy(buf, text, len + 1);
	slash = strchr(buf, '/');
	if (slash)
		*slash++ = '\0';
	if (inet_pton(AF_INET, buf, r->addr) == 1)
		r->family = AF_INET;
	else if (inet_pton(AF_INET6, buf, r->addr) == 1)
		r->family = AF_INET6;
	else
		return -EINVAL;
	set_prefix(r, 8 * family_len(r));
	if (slash && parse_mask(slash, r))
		return -EINVAL;
	if (has_other_bits(r))
		return -EINVAL;
	unmap(r);
	return 0;
}

int acl_rule_parse(const char *text, struct acl_rule *ret)
{
	struct acl_rule r = { .allow = ret->allow };
	int e = 0;

	if (!strcmp(text, "all"))
		r.family = AF_UNSPEC;
	else if (!strcmp(text, "unix:"))
		r.family = AF_UNIX;
	else
		e = parse_inet(text, &r);
	if (!e)
		*ret = r;
	return e;
}

/* How many bits the mask has from the left; -1: it has holes. */
static int prefix_of(const struct acl_rule *r)
{
	struct acl_rule prefix;
	unsigned int bits = 0;

	for (size_t i = 0; i < family_len(r); i++)
		bits += (unsigned int)__builtin_popcount(r->mask[i]);
	set_prefix(&prefix, bits);
	return memcmp(prefix.mask, r->mask, sizeof(r->mask)) ? -1 : (int)bits;
}

const char *acl_rule_format(const struct acl_rule *r, char *buf)
{
	char mask[INET6_ADDRSTRLEN];
	size_t len = family_len(r);
	int bits = prefix_of(r);

	if (!len) {
		strcpy(buf, r->family == AF_UNIX ? "unix:" : "all");
		return buf;
	}
	inet_ntop(r->family, r->addr, buf, INET6_ADDRSTRLEN);
	if (bits < 0)
		sprintf(buf + strlen(buf), "/%s",
			inet_ntop(r->family, r->mask, mask, sizeof(mask)));
	else if ((size_t)bits < 8 * len)
		sprintf(buf + strlen(buf), "/%d", bits);
	return buf;
}

struct acl_rule acl_rule_of(const struct sockaddr *client)
{
	struct acl_rule r = { .family = client->sa_family };

	if (r.family == AF_INET)
		memcpy(r.addr, &((const struct sockaddr_in *)client)->sin_addr, 4);
	else if (r.family == AF_INET6)
		memcpy(r.addr, &((const struct sockaddr_in6 *)client)->sin6_addr, 16);
	memcpy(r.mask, ones, family_len(&r));
	unmap(&r);
	return r;
}

bool acl_rule_covers(const struct acl_rule *r, const struct acl_rule *whom)
{
	uint64_t mask[2], addr[2], whom_mask[2], whom_addr[2];

	if (r->family == AF_UNSPEC)
		return true;
	if (r->family != whom->family)
		return false;
	memcpy(mask, r->mask, sizeof(mask));
	memcpy(addr, r->addr, sizeof(addr));
	memcpy(whom_mask, whom->mask, sizeof(whom_mask));
	memcpy(whom_addr, whom->addr, sizeof(whom_addr));
	return !((mask[0] & ~whom_mask[0]) | (mask[1] & ~whom_mask[1]) |
		 ((addr[0] ^ whom_addr[0]) & mask[0]) | ((addr[1] ^ whom_addr[1]) & mask[1]));
}

bool acl_rule_meet(const struct acl_rule *a, const struct acl_rule *b, struct acl_rule *ret)
{
	struct acl_rule r = *a;

	if (a->family == AF_UNSPEC || b->family == AF_UNSPEC) {
		*ret = a->family == AF_UNSPEC ? *b : *a;
		return true;
	}
	if (a->family != b->family)
		return false;
	for (size_t i = 0; i < sizeof(r.mask); i++) {
		if ((a->addr[i] ^ b->addr[i]) & a->mask[i] & b->mask[i])
			return false;
		r.addr[i] |= b->addr[i];
		r.mask[i] |= b->mask[i];
	}
	*ret = r;
	return true;
}
