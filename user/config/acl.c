// SPDX-License-Identifier: BSD-2-Clause
#include "config/acl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/parse_size.h"

#define SEPARATORS ", \t"
#define UNIX_TEXT "unix" /* the text of all unix clients; only patterns of "*" and "?" match it */

/* --- from text --- */

static int parse_prefix(char *text, struct acl_rule *r)
{
	const char *address = strsep(&text, "/"); /* TEXT is the mask now, or NULL */
	uint64_t bits = 8 * sizeof(r->mask);

	r->family = strchr(address, ':') ? AF_INET6 : AF_INET;
	memset(r->mask, 0xff, sizeof(r->mask));
	if (inet_pton(r->family, address, r->addr) != 1)
		return -EINVAL;
	if (text && inet_pton(r->family, text, r->mask) != 1 &&
	    (count_parse(text, &bits) || bits > (r->family == AF_INET ? 32 : 128)))
		return -EINVAL;
	for (size_t i = bits; i < 8 * sizeof(r->mask); i++)
		r->mask[i / 8] &= (uint8_t) ~(0x80 >> i % 8);
	for (size_t i = 0; i < sizeof(r->addr); i++)
		if (r->addr[i] & ~r->mask[i])
			return -EINVAL;
	/* IPv4-mapped rules match nobody: rule_of() makes clients IPv4 */
	return r->family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(r->addr) ? -EINVAL : 0;
}

/* Add the part TEXT of an element.  AND_NEXT: another part follows. */
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

/* --- matching --- */

/* The rule that matches CLIENT alone, with the text of its address as pattern. */
static struct acl_rule rule_of(const struct sockaddr *client)
{
	struct acl_rule r = { .pattern = UNIX_TEXT, .family = client->sa_family };
	const struct in6_addr *in6 = &((const struct sockaddr_in6 *)client)->sin6_addr;
	const void *in = &((const struct sockaddr_in *)client)->sin_addr;

	if (r.family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(in6)) {
		r.family = AF_INET;
		in = &in6->s6_addr[12];
	}
	if (r.family == AF_INET)
		memcpy(r.addr, in, sizeof(struct in_addr));
	else if (r.family == AF_INET6)
		memcpy(r.addr, in6, sizeof(*in6));
	else
		return r;
	inet_ntop(r.family, r.addr, r.pattern, sizeof(r.pattern));
	return r;
}

/* True if R matches a client.  WHOM is the client's rule_of(). */
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
	for (const struct acl_rule *r = a->rules; r < a->rules + a->n; r++) {
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
