// SPDX-License-Identifier: BSD-2-Clause
#include "config/orders.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config/conflicts.h"
#include "config/read.h"

/* --- the list --- */

static size_t orders_find(const struct upstream_orders *os, const char *forward, const char *server)
{
	size_t i = 0;

	while (i < os->n && (strcmp(os->list[i].forward, forward) != 0 ||
			     strcmp(os->list[i].server, server) != 0))
		i++;
	return i;
}

bool orders_have(const struct upstream_orders *os, const char *forward, const char *server)
{
	return orders_find(os, forward, server) < os->n;
}

void orders_take_back(struct upstream_orders *os, const char *forward, const char *server)
{
	size_t at = orders_find(os, forward, server);

	if (at == os->n)
		return;
	free(os->list[at].forward);
	free(os->list[at].server);
	free(os->list[at].words);
	os->n--;
	memmove(&os->list[at], &os->list[at + 1], (os->n - at) * sizeof(*os->list));
}

/* TEXT with one blank between two words, to be freed. */
static char *order_words(const char *text)
{
	char *copy = allocated(strdup(text)), *rest = copy, *word, *to = allocated(strdup(text));
	size_t len = 0;

	while ((word = strsep(&rest, UPSTREAM_SEPARATORS)))
		if (*word)
			len += (size_t)sprintf(to + len, "%s%s", len ? " " : "", word);
	to[len] = '\0';
	free(copy);
	return to;
}

void orders_give(struct upstream_orders *os, const char *forward, const char *server,
		 const char *words)
{
	size_t at = orders_find(os, forward, server);
	char *own = words ? order_words(words) : NULL;

	if (at == os->n) {
		os->list = array_grow(os->list, os->n++, sizeof(*os->list));
		os->list[at] = (struct upstream_order){ .forward = allocated(strdup(forward)),
							.server = allocated(strdup(server)) };
	}
	free(os->list[at].words);
	os->list[at].words = own;
}

void orders_copy(struct upstream_orders *os, const struct upstream_orders *from)
{
	*os = (struct upstream_orders){ 0 };
	for (const struct upstream_order *o = from->list; o < from->list + from->n; o++)
		orders_give(os, o->forward, o->server, o->words);
}

void orders_close(struct upstream_orders *os)
{
	while (os->n)
		orders_take_back(os, os->list[0].forward, os->list[0].server);
	free(os->list);
	os->list = NULL;
}

/* --- a configuration --- */

/* Is WORD of an upstream a server, and not an attribute of the server before? */
static bool order_begins(const char *word)
{
	return strcmp(word, "backup") != 0 && (!strchr(word, '=') || !strncmp(word, "unix:", 5));
}

const char *orders_fault(const char *server, const char *words)
{
	char *copy = order_words(words), *rest = copy, *word;
	bool more = false;

	while ((word = strsep(&rest, " ")))
		more = more || (*word && order_begins(word));
	free(copy);
	return more || strpbrk(server, UPSTREAM_SEPARATORS) || !order_begins(server) ?
		       "expected one server, and words such as weight=2" :
		       NULL;
}

/* The servers of TEXT, without SERVER and the words behind it. */
static const char *order_without(struct config *c, const char *text, const char *server)
{
	char *copy = allocated(strdup(text)), *rest = copy, *word;
	bool skips = false;

	text = "";
	while ((word = strsep(&rest, UPSTREAM_SEPARATORS))) {
		if (*word && order_begins(word))
			skips = !strcmp(word, server);
		if (*word && !skips)
			text = config_keep(c, "%s%s%s", text, *text ? " " : "", word);
	}
	free(copy);
	return text;
}

/* Give FC, which has some orders of OS, its servers.  -EINVAL after a complaint: FC is as before. */
static int orders_apply_to(const struct upstream_orders *os, struct config *c,
			   struct forward_conf *fc)
{
	const char *text = fc->upstream.text ?: "";
	struct forward_conf before = *fc;
	char why[256];
	int r;

	for (const struct upstream_order *o = os->list; o < os->list + os->n; o++) {
		const char *words = o->words ?: "";

		if (strcmp(o->forward, forward_name(fc)) != 0)
			continue;
		text = order_without(c, text, o->server);
		if (o->words)
			text = config_keep(c, "%s%s%s%s%s", text, *text ? " " : "", o->server,
					   *words ? " " : "", words);
	}
	r = upstreams_parse(text, fc->listen.udp, &fc->upstream, why, sizeof(why));
	if (r)
		config_complain("", "forward %s: servers by order, \"%s\": %s", forward_name(fc),
				text, why);
	if (!r) {
		config_settle(c, fc);
		r = conflicts_of_forward(c, fc) ?: conflicts_of_address(c, fc);
	}
	if (r)
		upstreams_close(&fc->upstream);
	else
		upstreams_close(&before.upstream);
	if (r)
		*fc = before;
	return r;
}

int orders_apply(struct upstream_orders *os, struct config *c)
{
	int r = 0;

	for (struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++) {
		size_t i = 0;
		bool fails;

		while (i < os->n && strcmp(os->list[i].forward, forward_name(fc)) != 0)
			i++;
		fails = i < os->n && orders_apply_to(os, c, fc);
		r = fails ? -EINVAL : r;
		for (i = os->n; fails && i-- > 0;)
			if (!strcmp(os->list[i].forward, forward_name(fc)))
				orders_take_back(os, os->list[i].forward, os->list[i].server);
	}
	return r;
}
