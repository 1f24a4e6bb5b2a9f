// SPDX-License-Identifier: BSD-2-Clause
#include "config/rule_set.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"

int rule_set_add(struct rule_set *s, const struct acl_rule *r)
{
	struct acl_rule *more;

	for (size_t i = 0; i < s->n; i++)
		if (acl_rule_covers(&s->rules[i], r))
			return 0;
	if (s->n >= RULE_SET_MAX)
		return -E2BIG;
	more = array_grow(s->rules, s->n, sizeof(*more));
	if (!more)
		return -ENOMEM;
	s->rules = more;
	more[s->n++] = *r;
	return 0;
}

void rule_set_close(struct rule_set *s)
{
	free(s->rules);
	*s = (struct rule_set){ 0 };
}
