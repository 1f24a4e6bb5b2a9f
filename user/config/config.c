// SPDX-License-Identifier: BSD-2-Clause
#include "config/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"

const char *const engine_names[ENGINES + 1] = {
	[ENGINE_AUTO] = "auto", [ENGINE_SOCKMAP] = "sockmap", [ENGINE_SPLICE] = "splice",
	[ENGINE_COPY] = "copy", [ENGINE_GRAFT] = "graft",
};
const char *const balance_names[] = {
	[BALANCE_ROUND_ROBIN] = "round-robin",
	[BALANCE_LEAST_SESSIONS] = "least-sessions",
	[BALANCE_SOURCE] = "source",
	NULL,
};
const char *const proxy_use_names[] = {
	[0] = "off",
	[PROXY_RECEIVE] = "receive",
	[PROXY_SEND_V1] = "send-v1",
	[PROXY_RECEIVE | PROXY_SEND_V1] = "receive, send-v1",
	[PROXY_SEND_V2] = "send-v2",
	[PROXY_RECEIVE | PROXY_SEND_V2] = "receive, send-v2",
	NULL,
};

void config_lines_add(struct config_lines *l, struct config_line line)
{
	l->lines = array_grow(l->lines, l->n, sizeof(*l->lines));
	l->lines[l->n++] = line;
}

bool config_range(const char *text, unsigned int ret[2])
{
	int end = 0, n = sscanf(text, "%u%n-%u%n", &ret[0], &end, &ret[1], &end);

	if (n == 1)
		ret[1] = ret[0];
	return n > 0 && !text[end] && ret[0] <= ret[1];
}

bool config_port_range(const char *text, unsigned int ret[2])
{
	return strchr(text, '-') && config_range(text, ret) && ret[0] && ret[1] <= UINT16_MAX;
}

const char *config_keep(struct config *c, const char *fmt, ...)
{
	va_list ap;
	int r;

	c->kept = array_grow(c->kept, c->n_kept, sizeof(*c->kept));
	va_start(ap, fmt);
	r = vasprintf(&c->kept[c->n_kept], fmt, ap);
	va_end(ap);
	return allocated(r < 0 ? NULL : c->kept[c->n_kept++]);
}

struct forward_conf *config_add_forward(struct config *c)
{
	c->forwards = array_grow(c->forwards, c->n_forwards, sizeof(*c->forwards));
	c->forwards[c->n_forwards] = (struct forward_conf){ .place = "" };
	return &c->forwards[c->n_forwards++];
}

const struct forward_conf *config_forward_with(const struct config *c, enum engine engine)
{
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].engine == engine)
			return &c->forwards[i];
	return NULL;
}

void config_close(struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		endpoint_close(&c->forwards[i].listen);
		upstreams_close(&c->forwards[i].upstream);
		acl_close(&c->forwards[i].acl);
		acl_close(&c->forwards[i].acl_behind);
		free(c->forwards[i].said.lines);
	}
	for (size_t i = 0; i < c->n_kept; i++)
		free(c->kept[i]);
	acl_close(&c->defaults.acl);
	acl_close(&c->defaults.acl_behind);
	endpoint_close(&c->metrics);
	free(c->forwards);
	free(c->text);
	free(c->said.lines);
	free(c->words.lines);
	free(c->addresses.lines);
	free(c->kept);
	*c = (struct config){ 0 };
}
