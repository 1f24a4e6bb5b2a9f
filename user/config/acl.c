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

/* All addresses are kept as IPv6 addresses; those of IPv4 begin like this. */
static const uint8_t mapped[MAPPED_LEN] = { [10] = 0xff, [11] = 0xff };

/* IPv4 in IPv6 form is IPv4: it is the same client. */
static void set_family(struct acl_rule *r)
{
	r->family = AF_INET;
	for (size_t i = 0; i < MAPPED_LEN; i++)
		if (r->mask[i] != 0xff || r->addr[i] != mapped[i])
			r->family = AF_INET6;
}

/* --- from text --- */

/* TEXT is what follows the slash, for an address of FAMILY in R. */
static int parse_mask(const char *text, int family, struct acl_rule *r)
{
	size_t first = family == AF_INET ? MAPPED_LEN : 0;
	uint64_t bits;

	if (inet_pton(family, text, r->mask + first) == 1)
		return 0;
	if (count_parse(text, &bits) || bits > 8 * (sizeof(r->mask) - first))
		return -EINVAL;
	for (size_t i = 8 * first + bits; i < 8 * sizeof(r->mask); i++)
		r->mask[i / 8] &= (uint8_t)~(0x80 >> i % 8);
	return 0;
}

static int parse_prefix(char *text, struct acl_rule *r)
{
	char *slash = strchr(text, '/');
	int family = strchr(text, ':') ? AF_INET6 : AF_INET;

	if (slash)
		*slash++ = '\0';
	memset(r->mask, 0xff, sizeof(r->mask));
	memcpy(r->addr, mapped, MAPPED_LEN);
	if (inet_pton(family, text, r->addr + (family == AF_INET ? MAPPED_LEN : 0)) != 1 ||
	    (slash && parse_mask(slash, family, r)))
		return -EINVAL;
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if (r->addr[i] & ~r->mask[i])
			return -EINVAL;
	set_family(r);
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

	if (r.family != AF_INET && r.family != AF_INET6)
		return r;
	memset(r.mask, 0xff, sizeof(r.mask));
	memcpy(r.addr, mapped, MAPPED_LEN);
	if (r.family == AF_INET)
		memcpy(r.addr + MAPPED_LEN, &((const struct sockaddr_in *)client)->sin_addr, 4);
	else
		memcpy(r.addr, &((const struct sockaddr_in6 *)client)->sin6_addr, 16);
	set_family(&r);
	return r;
}

/* True if R matches the client WHOM, whose pattern is its text. */
static bool matches(const struct acl_rule *r, const struct acl_rule *whom)
{
	if (r->pattern[0])
		return !fnmatch(r->pattern, whom->pattern, 0);
	if (r->family != AF_UNSPEC && r->family != whom->family)
		return false;
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if ((r->addr[i] ^ whom->addr[i]) & r->mask[i])
			return false;
	return true;
}

bool acl_allows(const struct acl *a, const struct sockaddr *client)
{
	struct acl_rule whom = rule_of(client);
	bool all = true; /* parts of the element match so far */

	if (a->patterns && whom.family != AF_UNIX)
		inet_ntop(whom.family, whom.addr + (whom.family == AF_INET ? MAPPED_LEN : 0),
			  whom.pattern, sizeof(whom.pattern));
	for (size_t i = 0; i < a->n; i++) {
		const struct acl_rule *r = &a->rules[i];

		all = all && matches(r, &whom);
		if (r->and_next)
			continue;
		if (all)
			return r->allow;
		all = true;
	}
	return !a->allows;
}

/* --- lists --- */

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
	int n = parse_element(text, allow, parts);

	if (n < 0)
		return n;
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
