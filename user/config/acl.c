// SPDX-License-Identifier: BSD-2-Clause
#include "config/acl.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/size.h"

#define SEPARATORS ", \t"
#define PARTS_MAX 4     /* of an element: A&B&C&D */
#define MAPPED_LEN 12

static const uint8_t mapped[MAPPED_LEN] = { [10] = 0xff, [11] = 0xff };
static const uint8_t ones[16] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
				  0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

/* Bytes of an address; 0: R is not about addresses. */
static size_t family_len(const struct acl_rule *r)
{
	return r->family == AF_INET ? 4 : r->family == AF_INET6 ? 16 : 0;
}

/* Turn IPv4 in IPv6 form into IPv4: it is the same client. */
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

/* --- from text --- */

static void set_prefix(struct acl_rule *r, uint64_t bits)
{
	memset(r->mask, 0, sizeof(r->mask));
	memcpy(r->mask, ones, bits / 8);
	if (bits % 8)
		r->mask[bits / 8] = (uint8_t)(0xff00 >> bits % 8);
}

/* TEXT is what follows the slash. */
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

static int parse_prefix(char *text, struct acl_rule *r)
{
	char *slash = strchr(text, '/');

	if (slash)
		*slash++ = '\0';
	if (inet_pton(AF_INET, text, r->addr) == 1)
		r->family = AF_INET;
	else if (inet_pton(AF_INET6, text, r->addr) == 1)
		r->family = AF_INET6;
	else
		return -EINVAL;
	set_prefix(r, 8 * family_len(r));
	if (slash && parse_mask(slash, r))
		return -EINVAL;
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if (r->addr[i] & ~r->mask[i])
			return -EINVAL;
	unmap(r);
	return 0;
}

/* Addresses are compared in lower case, as inet_ntop(3) writes them. */
static int parse_pattern(const char *text, struct acl_rule *r)
{
	size_t len = strlen(text);

	if (len >= sizeof(r->pattern) || text[strspn(text, "0123456789abcdefABCDEF:.*?")])
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		r->pattern[i] = (char)tolower(text[i]);
	return 0;
}

static int parse_part(char *text, struct acl_rule *r)
{
	if (!strcmp(text, "all") || !strcmp(text, "*"))
		return 0;
	if (!strcmp(text, "unix:")) {
		r->family = AF_UNIX;
		return 0;
	}
	return strpbrk(text, "*?") ? parse_pattern(text, r) : parse_prefix(text, r);
}

/* Split the element TEXT into the parts R.  Returns how many, or -EINVAL. */
static int parse_element(char *text, bool allow, struct acl_rule r[PARTS_MAX])
{
	int n = 0;
	char *part;

	while ((part = strsep(&text, "&"))) {
		if (n == PARTS_MAX)
			return -EINVAL;
		r[n] = (struct acl_rule){ .family = AF_UNSPEC, .allow = allow };
		if (parse_part(part, &r[n]))
			return -EINVAL;
		if (n)
			r[n - 1].and_next = true;
		n++;
	}
	return n;
}

/* --- who matches --- */

static struct acl_rule rule_of(const struct sockaddr *client)
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

/* True if each client of the prefix WHOM is one of the prefix R. */
static bool prefix_covers(const struct acl_rule *r, const struct acl_rule *whom)
{
	uint64_t mask[2], addr[2], whom_mask[2], whom_addr[2];

	if (r->family != whom->family)
		return false;
	memcpy(mask, r->mask, sizeof(mask));
	memcpy(addr, r->addr, sizeof(addr));
	memcpy(whom_mask, whom->mask, sizeof(whom_mask));
	memcpy(whom_addr, whom->addr, sizeof(whom_addr));
	return !((mask[0] & ~whom_mask[0]) | (mask[1] & ~whom_mask[1]) |
		 ((addr[0] ^ whom_addr[0]) & mask[0]) | ((addr[1] ^ whom_addr[1]) & mask[1]));
}

/* TEXT is the address of CLIENT; "" for a unix socket, which no pattern matches. */
static bool matches(const struct acl_rule *r, const struct acl_rule *client, const char *text)
{
	if (r->pattern[0])
		return text[0] && !fnmatch(r->pattern, text, 0);
	return r->family == AF_UNSPEC || prefix_covers(r, client);
}

bool acl_allows(const struct acl *a, const struct sockaddr *client)
{
	const struct acl_rule whom = rule_of(client);
	bool all = true; /* parts of the element match so far */
	char text[INET6_ADDRSTRLEN] = "";

	if (a->patterns && family_len(&whom))
		inet_ntop(whom.family, whom.addr, text, sizeof(text));
	for (size_t i = 0; i < a->n; i++) {
		const struct acl_rule *r = &a->rules[i];

		all = all && matches(r, &whom, text);
		if (r->and_next)
			continue;
		if (all)
			return r->allow;
		all = true;
	}
	return !a->allows;
}

/* --- lists --- */

/* True if R matches every client that WHOM matches.  Of two patterns: if they are the same. */
static bool covers(const struct acl_rule *r, const struct acl_rule *whom)
{
	if (!r->pattern[0] && r->family == AF_UNSPEC)
		return true;
	return !strcmp(r->pattern, whom->pattern) && (r->pattern[0] || prefix_covers(r, whom));
}

/* The first rule of one part that covers R, a part of an element; or NULL. */
static const struct acl_rule *find_cover(const struct acl *a, const struct acl_rule *r)
{
	for (size_t i = 0; i < a->n; i++)
		if (!a->rules[i].and_next && (!i || !a->rules[i - 1].and_next) &&
		    covers(&a->rules[i], r))
			return &a->rules[i];
	return NULL;
}

static void append(struct acl *a, const struct acl_rule *r)
{
	a->rules = array_grow(a->rules, a->n, sizeof(*a->rules));
	a->rules[a->n++] = *r;
	a->allows |= r->allow;
	a->patterns |= r->pattern[0] != '\0';
}

static int add_element(struct acl *a, bool allow, char *text)
{
	struct acl_rule parts[PARTS_MAX];
	const struct acl_rule *cover = NULL;
	int n = parse_element(text, allow, parts);

	if (n < 0)
		return n;
	for (int i = 0; i < n && !cover; i++)
		cover = find_cover(a, &parts[i]);
	if (cover)
		return cover->allow == allow ? 0 : -EEXIST;
	if (a->n + (size_t)n > ACL_RULES_MAX)
		return -E2BIG;
	for (int i = 0; i < n; i++)
		append(a, &parts[i]);
	return 0;
}

int acl_add(struct acl *a, bool allow, const char *text)
{
	char *copy = allocated(strdup(text)), *at, *element = strtok_r(copy, SEPARATORS, &at);
	int r = element ? 0 : -EINVAL;

	for (; element && !r; element = strtok_r(NULL, SEPARATORS, &at))
		r = add_element(a, allow, element);
	free(copy);
	return r;
}

bool acl_same(const struct acl *a, const struct acl *b)
{
	_Static_assert(sizeof(struct acl_rule) == 32 + ACL_PATTERN_LEN + 4, "no padding");

	return a->n == b->n && (!a->n || !memcmp(a->rules, b->rules, a->n * sizeof(*a->rules)));
}

void acl_copy(struct acl *to, const struct acl *from)
{
	*to = (struct acl){ 0 };
	for (size_t i = 0; i < from->n; i++)
		append(to, &from->rules[i]);
}

void acl_close(struct acl *a)
{
	free(a->rules);
	*a = (struct acl){ 0 };
}
