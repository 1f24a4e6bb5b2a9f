// SPDX-License-Identifier: BSD-2-Clause
#include "config/upstream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/parse_size.h"

#define SEPARATORS " \t,"

/* Take WORD, which stands behind a server: true if it says something of that server S. */
static bool take_word(const char *word, struct server_conf *s, const char **ret_wrong)
{
	uint64_t weight = 0;

	if (!strcmp(word, "backup")) {
		s->backup = true;
		return true;
	}
	if (strncmp(word, "weight=", 7) != 0)
		return false;
	if (count_parse(word + 7, &weight) || !weight || weight > SERVER_WEIGHT_MAX)
		*ret_wrong = "expected a weight from 1 to 100";
	s->weight = (unsigned int)weight;
	return true;
}

/* Do A and B lead to one server, as far as that is seen without a look-up? */
static bool is_same(const struct endpoint *a, const struct endpoint *b)
{
	if (!a->named && !b->named)
		return addr_equal(&a->addrs[0], &b->addrs[0]);
	return a->named_port == b->named_port &&
	       !strncasecmp(a->text, b->text, strcspn(a->text, ":") + 1);
}

static const char *add_server(const char *word, struct upstream *u)
{
	struct server_conf s = { .weight = 1 };
	const char *wrong;

	if (u->n == SERVERS_MAX)
		return "more than 64 servers";
	wrong = endpoint_parse_offline(word, false, &s.at);
	if (wrong)
		return wrong;
	u->servers = array_grow(u->servers, u->n, sizeof(*u->servers));
	u->servers[u->n++] = s;
	if (endpoint_is_unix(&s.at) != upstreams_are_unix(u))
		return "unix sockets and other addresses do not mix";
	for (size_t i = 0; i + 1 < u->n; i++)
		if (is_same(&u->servers[i].at, &s.at))
			return "given twice";
	if (s.at.n_ports != u->servers[0].at.n_ports)
		return "all servers need as many ports";
	return NULL;
}

int upstreams_parse(const char *text, struct upstream *ret, char *err, size_t errlen)
{
	char *copy = allocated(strdup(text)), *rest = copy, *word = NULL;
	const char *wrong = NULL;

	*ret = (struct upstream){ .text = text };
	while (!wrong && (word = strsep(&rest, SEPARATORS))) {
		if (!*word || (ret->n && take_word(word, &ret->servers[ret->n - 1], &wrong)))
			continue;
		wrong = wrong ?: add_server(word, ret);
	}
	if (wrong && strcmp(word, text) != 0)
		snprintf(err, errlen, "%.64s: %s", word, wrong);
	else if (wrong || !ret->n)
		snprintf(err, errlen, "%s", wrong ?: "no server");
	free(copy);
	if (!wrong && ret->n)
		return 0;
	upstreams_close(ret);
	return -EINVAL;
}

void upstreams_close(struct upstream *u)
{
	for (size_t i = 0; i < u->n; i++)
		endpoint_close(&u->servers[i].at);
	free(u->servers);
	*u = (struct upstream){ 0 };
}

bool upstreams_are_unix(const struct upstream *u)
{
	return u->n && endpoint_is_unix(&u->servers[0].at);
}
