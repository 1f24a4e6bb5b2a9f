// SPDX-License-Identifier: BSD-2-Clause
#include "relay/acl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATORS ", \t"

static int parse_element(const char *text, size_t len, struct acl_rule *r)
{
	char element[ACL_RULE_STRLEN];

	if (len >= sizeof(element))
		return -EINVAL;
	memcpy(element, text, len);
	element[len] = '\0';
	return acl_rule_parse(element, r);
}

/* The first rule that covers WHOM, or NULL. */
static const struct acl_rule *find(const struct acl *a, const struct acl_rule *whom)
{
	for (size_t i = 0; i < a->n; i++)
		if (acl_rule_covers(&a->rules[i], whom))
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
	const struct acl_rule whom = acl_rule_of(client);
	const struct acl_rule *r = find(a, &whom);

	return r ? r->allow : !a->allows;
}

bool acl_same(const struct acl *a, const struct acl *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		const struct acl_rule *x = &a->rules[i], *y = &b->rules[i];

		if (x->family != y->family || x->allow != y->allow ||
		    memcmp(x->addr, y->addr, sizeof(x->addr)) != 0 ||
		    memcmp(x->mask, y->mask, sizeof(x->mask)) != 0)
			return false;
	}
	return true;
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
