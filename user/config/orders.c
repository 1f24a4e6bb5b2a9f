// SPDX-License-Identifier: BSD-2-Clause
#include "config/orders.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config/conflicts.h"

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

void orders_give(struct upstream_orders *os, const char *forward, const char *server,
		 const char *words)
{
	struct upstream_order o = { .forward = allocated(strdup(forward)),
				    .server = allocated(strdup(server)),
				    .words = words ? allocated(strdup(words)) : NULL };

	orders_take_back(os, forward, server);
	os->list = array_grow(os->list, os->n, sizeof(*os->list));
	os->list[os->n++] = o;
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

/* The servers of FC as text, without SERVER and the words behind it. */
static const char *order_without(struct config *c, const struct forward_conf *fc,
				 const char *server)
{
	char *copy = allocated(strdup(fc->upstream.text)), *rest = copy, *word;
	const char *text = "";
	bool skips = false;
	size_t next = 0;

	while ((word = strsep(&rest, UPSTREAM_SEPARATORS))) {
		bool begins = next < fc->upstream.n &&
			      !strcmp(word, fc->upstream.servers[next].at.text);

		next += begins;
		if (begins)
			skips = !strcmp(word, server);
		if (*word && !skips)
			text = config_keep(c, "%s%s%s", text, *text ? " " : "", word);
	}
	free(copy);
	return text;
}

/* Change the servers of FC by O.  -EINVAL after a complaint: FC is as before. */
static int order_apply(const struct upstream_order *o, struct config *c, struct forward_conf *fc)
{
	const char *text = order_without(c, fc, o->server), *orders = fc->orders;
	struct upstream before = fc->upstream;
	char why[256];
	int r;

	if (o->words)
		text = config_keep(c, "%s%s%s%s%s", text, *text ? " " : "", o->server,
				   *o->words ? " " : "", o->words);
	r = upstreams_parse(text, fc->listen.udp, &fc->upstream, why, sizeof(why));
	if (!r && o->words &&
	    strcmp(fc->upstream.servers[fc->upstream.n - 1].at.text, o->server) != 0) {
		snprintf(why, sizeof(why), "expected one server, and its words");
		upstreams_close(&fc->upstream);
		r = -EINVAL;
	}
	if (r)
		config_complain("", "forward %s: order to %s server %s: %s", forward_name(fc),
				o->words ? "add" : "remove", o->server, why);
	fc->orders = config_keep(c, "%s%s%s %s%s%s", orders ?: "", orders ? ", " : "",
				 o->words ? "add" : "remove", o->server,
				 o->words && *o->words ? " " : "", o->words ?: "");
	r = r ?: conflicts_of_forward(c, fc) ?: conflicts_of_address(c, fc);
	upstreams_close(r ? &fc->upstream : &before);
	if (r) {
		fc->upstream = before;
		fc->orders = orders;
	}
	return r;
}

int orders_apply(const struct upstream_orders *os, struct config *c)
{
	int r = 0;

	for (const struct upstream_order *o = os->list; o < os->list + os->n; o++)
		for (size_t i = 0; i < c->n_forwards; i++)
			if (!strcmp(forward_name(&c->forwards[i]), o->forward))
				r = order_apply(o, c, &c->forwards[i]) ?: r;
	return r;
}
