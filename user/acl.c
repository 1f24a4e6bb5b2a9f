// SPDX-License-Identifier: BSD-2-Clause
#include "acl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

#define SEPARATORS ", \t"
#define MAPPED_BITS 96
#define ELEMENT_ROOM 64 /* the longest is shorter: an IPv6 address, "/128" */

static const uint8_t mapped[MAPPED_BITS / 8] = { [10] = 0xff, [11] = 0xff };

/* IPv4 in IPv6 becomes IPv4: it is the same client. */
static void unmap(struct acl_rule *r)
{
	if (r->family != AF_INET6 || r->prefix < MAPPED_BITS ||
	    memcmp(r->addr, mapped, sizeof(mapped)))
		return;
	memmove(r->addr, r->addr + sizeof(mapped), 4);
	memset(r->addr + 4, 0, sizeof(r->addr) - 4);
	r->family = AF_INET;
	r->prefix -= MAPPED_BITS;
}

/* True if all bits from number PREFIX on are 0. */
static bool is_network(const uint8_t *addr, unsigned int prefix)
{
	for (unsigned int bit = prefix; bit < 128; bit++)
		if (addr[bit / 8] & (0x80 >> bit % 8))
			return false;
	return true;
}

/* ELEMENT is cut at its slash. */
static int parse_prefix(char *element, struct acl_rule *r)
{
	char *slash = strchr(element, '/');
	uint64_t bits;

	if (slash)
		*slash = '\0';
	if (inet_pton(AF_INET, element, r->addr) == 1)
		r->family = AF_INET;
	else if (inet_pton(AF_INET6, element, r->addr) == 1)
		r->family = AF_INET6;
	else
		return -EINVAL;
	bits = r->family == AF_INET ? 32 : 128;
	r->prefix = (uint8_t)bits;
	if (slash) {
		if (count_parse(slash + 1, &bits) || bits > r->prefix)
			return -EINVAL;
		r->prefix = (uint8_t)bits;
	}
	if (!is_network(r->addr, r->prefix))
		return -EINVAL;
	unmap(r);
	return 0;
}

static int parse_element(const char *text, size_t len, struct acl_rule *r)
{
	char element[ELEMENT_ROOM];

	if (len >= sizeof(element))
		return -EINVAL;
	memcpy(element, text, len);
	element[len] = '\0';
	if (!strcmp(element, "all"))
		r->family = AF_UNSPEC;
	else if (!strcmp(element, "unix:"))
		r->family = AF_UNIX;
	else
		return parse_prefix(element, r);
	return 0;
}

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned int n)
{
	return !memcmp(a, b, n / 8) && (n % 8 == 0 || !((a[n / 8] ^ b[n / 8]) >> (8 - n % 8)));
}

/* Does R match every client that WHOM matches? */
static bool covers(const struct acl_rule *r, const struct acl_rule *whom)
{
	if (r->family == AF_UNSPEC)
		return true;
	return r->family == whom->family && r->prefix <= whom->prefix &&
	       same_bits(r->addr, whom->addr, r->prefix);
}

/* The first rule that covers WHOM, or NULL. */
static const struct acl_rule *find(const struct acl *a, const struct acl_rule *whom)
{
	for (size_t i = 0; i < a->n; i++)
		if (covers(&a->rules[i], whom))
			return &a->rules[i];
	return NULL;
}

static int add_rule(struct acl *a, const struct acl_rule *r)
{
	const struct acl_rule *first = find(a, r);
	struct acl_rule *more;

	if (first)
		return first->allow == r->allow ? 0 : -EEXIST;
	if (a->n >= ACL_RULES_MAX)
		return -E2BIG;
	more = realloc(a->rules, (a->n + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	a->rules = more;
	more[a->n++] = *r;
	a->allows |= r->allow;
	return 0;
}

int acl_add(struct acl *a, bool allow, const char *text)
{
	bool empty = true;

	for (;;) {
		struct acl_rule r = { .allow = allow };
		size_t len;
		int e;

		text += strspn(text, SEPARATORS);
		len = strcspn(text, SEPARATORS);
		if (!len)
			return empty ? -EINVAL : 0;
		empty = false;
		e = parse_element(text, len, &r) ?: add_rule(a, &r);
		if (e)
			return e;
		text += len;
	}
}

bool acl_allows(const struct acl *a, const struct sockaddr *client)
{
	struct acl_rule whom = { .family = client->sa_family };
	const struct acl_rule *r;

	if (whom.family == AF_INET) {
		memcpy(whom.addr, &((const struct sockaddr_in *)client)->sin_addr, 4);
		whom.prefix = 32;
	} else if (whom.family == AF_INET6) {
		memcpy(whom.addr, &((const struct sockaddr_in6 *)client)->sin6_addr, 16);
		whom.prefix = 128;
		unmap(&whom);
	}
	r = find(a, &whom);
	return r ? r->allow : !a->allows;
}

int acl_copy(struct acl *to, const struct acl *from)
{
	*to = (struct acl){ 0 };
	if (!from->n)
		return 0;
	to->rules = malloc(from->n * sizeof(*to->rules));
	if (!to->rules)
		return -ENOMEM;
	memcpy(to->rules, from->rules, from->n * sizeof(*to->rules));
	to->n = from->n;
	to->allows = from->allows;
	return 0;
}

void acl_close(struct acl *a)
{
	free(a->rules);
	*a = (struct acl){ 0 };
}
