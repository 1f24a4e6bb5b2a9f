// SPDX-License-Identifier: BSD-2-Clause
#include "config/acl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/parse_size.h"

#define SEPARATORS ", \t"
#define MAPPED_LEN 12
#define UNIX_TEXT "unix" /* of every client of a unix socket; no pattern but "*" and "?" matches */

/* All addresses are kept as IPv6 addresses; those of IPv4 begin like this. */
static const uint8_t mapped[MAPPED_LEN] = { [10] = 0xff, [11] = 0xff };
static const uint8_t all_ones[16] = { [0 ... 15] = 0xff };

/* IPv4 in IPv6 form is IPv4: it is the same client. */
static void set_family(struct acl_rule *r)
{
	r->family = !memcmp(r->addr, mapped, MAPPED_LEN) &&
		    !memcmp(r->mask, all_ones, MAPPED_LEN) ? AF_INET : AF_INET6;
}

/* Where an address of FAMILY begins. */
static size_t first_byte(int family)
{
	return family == AF_INET ? MAPPED_LEN : 0;
}

/* --- from text --- */

/* TEXT is what follows the slash, for an address of FAMILY in R. */
static int parse_mask(const char *text, int family, struct acl_rule *r)
{
	size_t first = first_byte(family);
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
	int family = strchr(text, ':') ? AF_INET6 : AF_INET;
	const char *address = strsep(&text, "/");

	memcpy(r->mask, all_ones, sizeof(r->mask));
	memcpy(r->addr, mapped, MAPPED_LEN);
	if (inet_pton(family, address, r->addr + first_byte(family)) != 1 ||
	    (text && parse_mask(text, family, r)))
		return -EINVAL;
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if (r->addr[i] & ~r->mask[i])
			return -EINVAL;
	set_family(r);
	return 0;
}

/* Add the part TEXT of an element.  AND_NEXT: it has another one. */
static int add_part(struct acl *a, bool allow, bool and_next, char *text)
{
	struct acl_rule r = { .allow = allow, .and_next = and_next };

	if (!strcmp(text, "all"))
		strcpy(r.pattern, "*");
	else if (!strcmp(text, "unix:"))
		strcpy(r.pattern, UNIX_TEXT);
	else if (strlen(text) < sizeof(r.pattern) && strpbrk(text, "*?") &&
		 !text[strspn(text, "0123456789abcdefABCDEF:.*?")])
		strcpy(r.pattern, text);
	else if (parse_prefix(text, &r))
		return -EINVAL;
	a->rules = array_grow(a->rules, a->n, sizeof(*a->rules));
	a->rules[a->n++] = r;
	a->allows |= allow;
	return 0;
}

int acl_add(struct acl *a, bool allow, const char *text)
{
	char *copy = allocated(strdup(text)), *at, *part;
	char *element = strtok_r(copy, SEPARATORS, &at);
	int r = element ? 0 : -EINVAL;

	for (; element && !r; element = strtok_r(NULL, SEPARATORS, &at))
		while (!r && (part = strsep(&element, "&")))
			r = add_part(a, allow, element, part);
	free(copy);
	return r;
}

/* --- who matches --- */

/* The rule that matches CLIENT alone, with the text of its address as pattern. */
static struct acl_rule rule_of(const struct sockaddr *client)
{
	struct acl_rule r = { .pattern = UNIX_TEXT };

	memcpy(r.addr, mapped, MAPPED_LEN);
	if (client->sa_family == AF_INET)
		memcpy(r.addr + MAPPED_LEN, &((const struct sockaddr_in *)client)->sin_addr, 4);
	else if (client->sa_family == AF_INET6)
		memcpy(r.addr, &((const struct sockaddr_in6 *)client)->sin6_addr, 16);
	else
		return r;
	memcpy(r.mask, all_ones, sizeof(r.mask));
	set_family(&r);
	inet_ntop(r.family, r.addr + first_byte(r.family), r.pattern, sizeof(r.pattern));
	return r;
}

/* True if R matches the client WHOM. */
static bool matches(const struct acl_rule *r, const struct acl_rule *whom)
{
	if (r->pattern[0])
		return !fnmatch(r->pattern, whom->pattern, FNM_CASEFOLD);
	if (r->family != whom->family)
		return false;
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if ((r->addr[i] ^ whom->addr[i]) & r->mask[i])
			return false;
	return true;
}

bool acl_allows(const struct acl *a, const struct sockaddr *client)
{
	struct acl_rule whom;
	bool all = true; /* parts of the element match so far */

	if (!a->n)
		return true;
	whom = rule_of(client);
	for (size_t i = 0; i < a->n; i++) {
		const struct acl_rule *r = &a->rules[i];

		all = all && matches(r, &whom);
		if (all && !r->and_next)
			return r->allow;
		all = all || !r->and_next;
	}
	return !a->allows;
}

/* --- lists --- */

bool acl_same(const struct acl *a, const struct acl *b)
{
	_Static_assert(sizeof(struct acl_rule) == 32 + ACL_PATTERN_LEN + 4, "no padding");

	return a->n == b->n && (!a->n || !memcmp(a->rules, b->rules, a->n * sizeof(*a->rules)));
}

void acl_close(struct acl *a)
{
	if (!a->shared)
		free(a->rules);
	*a = (struct acl){ 0 };
}
