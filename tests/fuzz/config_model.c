// SPDX-License-Identifier: BSD-2-Clause
#include "config_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/check.h"
#include "fuzz.h"

int model_parse(const uint8_t *data, size_t size, struct config *c)
{
	char run[] = "run", option[] = "-c", path[] = MODEL_PATH;
	char *argv[] = { run, option, path, NULL };
	int fd = memfd_create("file", MFD_CLOEXEC), r;

	if (fd < 0)
		abort();
	must(pwrite(fd, data, size, 0) == (ssize_t)size, "%s", strerror(errno));
	said_clear();
	r = config_read_any(3, argv, fd, c);
	close(fd);
	return r;
}

void model_must_be_mistake(int r, const uint8_t *data, size_t size)
{
	static const char begin[] = "culvert: " MODEL_PATH ":";
	const char *text = said(), *at = text;
	unsigned long lines = 2, line;
	size_t len = strlen(text);

	for (size_t i = 0; i < size; i++)
		lines += data[i] == '\n';
	must(r == -EINVAL, "%d", r);
	must(len && text[len - 1] == '\n', "no line: %s", text);
	must(is_printable(text, true), "%s", text);
	/* of a line of the file, or of files that would be at one path, one of which has a default */
	for (; *at; at = strchr(at, '\n') + 1) {
		if (strncmp(at, begin, strlen(begin)) != 0) /* a value may hold that, too */
			continue;
		line = strtoul(at + strlen(begin), NULL, 10);
		must(line <= lines, "line %lu of %lu: %s", line, lines, text);
	}
}

static void check_number(const struct option_def *o, const void *field)
{
	uint64_t n;

	if (o->kind == KIND_SIZE)
		n = *(const uint64_t *)field;
	else if (o->kind == KIND_COUNT || o->kind == KIND_SECONDS)
		n = *(const unsigned int *)field;
	else
		return;
	if (n || o->scope != SCOPE_FORWARD) /* else the forward does not say it */
		must(n >= o->min && n <= o->max, "%s: %llu", o->name, (unsigned long long)n);
}

static void check_servers(const struct upstream *u, bool udp)
{
	for (size_t i = 0; i < u->n; i++) {
		const struct server_conf *s = &u->servers[i];

		must(s->at.named != (s->at.n_addrs > 0), "%s: a name looked up, or no address",
		     s->at.text);
		must(s->weight >= 1 && s->weight <= SERVER_WEIGHT_MAX, "%s: weight", s->at.text);
		must(s->at.udp == udp, "%s: protocols mix", u->text);
		must(endpoint_is_unix(&s->at) == upstreams_are_unix(u), "%s: kinds mix", u->text);
	}
	must(u->n && u->n <= SERVERS_MAX, "%s: no server", u->text);
}

void model_must_be_sane(const struct config *c)
{
	for (const struct option_def *o = option_table; o->name; o++) {
		if (!(o->scope & SCOPE_FORWARD))
			check_number(o, (const char *)c + o->offset);
		for (size_t i = 0; o->scope & SCOPE_FORWARD && i < c->n_forwards; i++)
			check_number(o, (const char *)&c->forwards[i] + o->offset);
	}
	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct endpoint *e = &c->forwards[i].listen;

		if (c->forwards[i].sni) /* it has no listener */
			continue;
		must(c->forwards[i].soft_limit <= c->forwards[i].hard_limit, "limits");
		must(e->named != (e->n_addrs > 0), "%s: a name looked up, or no address", e->text);
		check_servers(&c->forwards[i].upstream, e->udp);
		must(c->forwards[i].listen.udp == e->udp, "another protocol");
		must(!e->udp ||
			     ((!c->forwards[i].check_ms || conflicts_may_check(&c->forwards[i])) &&
			      !(c->forwards[i].proxy_protocol & PROXY_SEND_V1)),
		     "%s: of TCP alone", e->text);
		for (size_t k = 0; k < i; k++)
			must(e->named || strcmp(e->text, c->forwards[k].listen.text) ||
				     strstr(e->text, ":0"),
			     "%s twice", e->text);
	}
}

void model_must_convert(const struct config *c)
{
	char *written = NULL;
	struct config other;
	size_t len = 0;
	FILE *f = open_memstream(&written, &len);

	if (!f)
		abort();
	convert_write(f, MODEL_PATH, c);
	fclose(f);
	must(!model_parse((const uint8_t *)written, len, &other), "%s\n%s", said(), written);
	must(other.n_forwards == c->n_forwards && !options_fixed(c, &other), "%s", written);
	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct forward_conf *a = &c->forwards[i], *b = &other.forwards[i];

		must(!strcmp(a->name, b->name) && !strcmp(a->listen.text, b->listen.text) &&
			     options_same_own(a, b),
		     "%s is another forward\n%s", a->name, written);
	}
	free(written);
	config_close(&other);
}
