/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdarg.h>
#include <stdio.h>

#include "cases.h"

int net_fail(struct net_case *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->why, sizeof(c->why), fmt, ap);
	va_end(ap);
	return -1;
}

int net_add(struct net_case *c, const struct batch *b, bool resets)
{
	c->sum.sessions += b->sessions;
	c->sum.resets += b->resets;
	c->sum.wrong += b->wrong + b->extra;
	c->sum.truncated += b->truncated;
	c->sum.stuck += b->stuck;
	c->sum.failed += b->failed;
	if (b->wrong || b->extra || b->truncated || b->stuck || b->failed || (b->resets && !resets))
		return net_fail(c, "%s", b->why);
	return 0;
}
