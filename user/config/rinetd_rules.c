// SPDX-License-Identifier: BSD-2-Clause
#include "config/rinetd_rules.h"

#include <errno.h>
#include <stdlib.h>

int rinetd_rules_add(struct rinetd_rules *l, bool allow, const char *text, unsigned int line)
{
	struct rinetd_rule *more = realloc(l->rules, (l->n + 1) * sizeof(*more)), *rule;
	int r;

	if (!more)
		return -ENOMEM;
	l->rules = more;
	rule = &more[l->n];
	*rule = (struct rinetd_rule){ .text = text, .line = line, .allow = allow };
	r = rinetd_pattern_parse(text, &rule->pattern);
	l->patterns += rule->pattern.inet.n + rule->pattern.mapped.n + rule->pattern.inet6.n;
	if (!r && l->patterns > RULE_SET_MAX)
		r = -E2BIG;
	if (r)
		rinetd_pattern_close(&rule->pattern);
	else
		l->n++;
	return r;
}

void rinetd_rules_close(struct rinetd_rules *l)
{
	for (size_t i = 0; i < l->n; i++)
		rinetd_pattern_close(&l->rules[i].pattern);
	free(l->rules);
	*l = (struct rinetd_rules){ 0 };
}

static int add_set(struct rule_set *to, const struct rule_set *from)
{
	int r = 0;

	for (size_t i = 0; i < from->n && !r; i++)
		r = rule_set_add(to, &from->rules[i]);
	return r;
}

/* Add whom the rules of L that are as ALLOW match.  *RET_ANY: there is one. */
static int collect(const struct rinetd_rules *l, bool allow, unsigned int clients,
		   struct rule_set *to, bool *ret_any, const struct rinetd_rule **ret_rule)
{
	bool plain = clients & CLIENTS_INET || (!allow && clients & CLIENTS_MAPPED);
	int r = 0;

	*ret_any = false;
	for (size_t i = 0; i < l->n && !r; i++) {
		const struct rinetd_pattern *p = &l->rules[i].pattern;

		if (l->rules[i].allow != allow)
			continue;
		*ret_any = true;
		*ret_rule = &l->rules[i];
		if (clients & CLIENTS_INET6 && p->inet6_unclear)
			return -ERANGE;
		r = plain ? add_set(to, &p->inet) : 0;
		if (!r && clients & CLIENTS_MAPPED)
			r = add_set(to, &p->mapped);
		if (!r && clients & CLIENTS_INET6)
			r = add_set(to, &p->inet6);
	}
	return r;
}

/* Who is in both. */
static int meet(const struct rule_set *a, const struct rule_set *b, struct rule_set *to)
{
	struct acl_rule both;
	int r = 0;

	for (size_t i = 0; i < a->n * b->n && !r; i++)
		if (acl_rule_meet(&a->rules[i / b->n], &b->rules[i % b->n], &both))
			r = rule_set_add(to, &both);
	return r;
}

/* Those of ALLOWED that are not DENIED for sure, behind the rules in TO; nobody else. */
static int add_allowed(const struct rule_set *allowed, size_t denied, struct rule_set *to)
{
	struct acl_rule rule = { .family = AF_UNSPEC };
	int r = 0;

	for (size_t i = 0; i < allowed->n && !r; i++) {
		rule = allowed->rules[i];
		rule.allow = true;
		r = rule_set_add(to, &rule); /* not if a `deny` covers it: that one wins */
	}
	if (!r && to->n == denied) {
		rule = (struct acl_rule){ .family = AF_UNSPEC };
		r = rule_set_add(to, &rule);
	}
	return r;
}

int rinetd_rules_compile(const struct rinetd_rules *global, const struct rinetd_rules *own,
			 unsigned int clients, struct rule_set *ret,
			 const struct rinetd_rule **ret_rule)
{
	struct rule_set all = { 0 }, mine = { 0 }, both = { 0 };
	bool denies, by_all, by_mine;
	size_t denied;
	int r;

	*ret = (struct rule_set){ 0 };
	*ret_rule = NULL;
	r = collect(global, false, clients, ret, &denies, ret_rule) ?:
	    collect(own, false, clients, ret, &denies, ret_rule);
	denied = ret->n;
	r = r ?: collect(global, true, clients, &all, &by_all, ret_rule);
	r = r ?: collect(own, true, clients, &mine, &by_mine, ret_rule);
	if (!r && by_all && by_mine)
		r = meet(&all, &mine, &both) ?: add_allowed(&both, denied, ret);
	else if (!r && (by_all || by_mine))
		r = add_allowed(by_all ? &all : &mine, denied, ret);
	rule_set_close(&all);
	rule_set_close(&mine);
	rule_set_close(&both);
	if (r)
		rule_set_close(ret);
	return r;
}
