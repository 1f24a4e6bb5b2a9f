// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration of rinetd and oi (user/config/config_rinetd.c, rinetd_*.c, config_convert.c): any
 * bytes.  A mistake is said in one line that names the file and a line of it.  What is taken is
 * whole; written out with sections it is taken again, as the same; and who may connect is who may
 * by rinetd's manual, with addresses as text.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../unit/rinetd_model.h"
#include "daemon/check.h"
#include "config/file.h"
#include "config/config_rinetd.h"
#include "fuzz.h"

#define PATH "fuzz.conf"
#define FORWARDS_MAX 16

static struct model_rules model_global, model_own[FORWARDS_MAX];

static void check_mistake(int r, const uint8_t *data, size_t size)
{
	const char *text = said(), *at = strstr(text, PATH ":");
	size_t len = strlen(text);
	unsigned long lines = 1, line;

	for (size_t i = 0; i < size; i++)
		lines += data[i] == '\n';
	must(r == -EINVAL, "%d", r);
	must(len && strcspn(text, "\n") == len - 1, "not one line: %s", text);
	must(is_printable(text, true), "%s", text);
	must(at, "no file: %s", text);
	/* cppcheck-suppress nullPointerArithmeticRedundantCheck ; must() does not return */
	line = strtoul(at + strlen(PATH ":"), NULL, 10);
	must(line >= 1 && line <= lines, "line %lu of %lu: %s", line, lines, text);
}

/* --- there and back --- */

static void check_same_rule(const struct acl_rule *a, const struct acl_rule *b)
{
	must(a->allow == b->allow && a->family == b->family &&
	     !memcmp(a->addr, b->addr, sizeof(a->addr)) &&
	     !memcmp(a->mask, b->mask, sizeof(a->mask)), "rules");
}

static void check_same(const struct forward_text *a, const struct forward_text *b)
{
	must(!strcmp(a->name, b->name), "%s and %s", a->name, b->name);
	must(!strcmp(a->listen, b->listen), "%s and %s", a->listen, b->listen);
	must(!strcmp(a->upstream, b->upstream), "%s and %s", a->upstream, b->upstream);
	must(a->own.keepalive_s == b->own.keepalive_s, "keepalive");
	must(a->own.connect_timeout_ms == b->own.connect_timeout_ms, "connect-timeout");
	must(a->own.acl.n == b->own.acl.n, "%zu and %zu rules", a->own.acl.n, b->own.acl.n);
	for (size_t i = 0; i < a->own.acl.n; i++)
		check_same_rule(&a->own.acl.rules[i], &b->own.acl.rules[i]);
}

/* What no line of a file with sections can say is refused when it is read again. */
static void check_convert(const struct config_text *text)
{
	struct config_text again = { 0 };
	struct config c = { 0 };
	char *written = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&written, &len);

	if (!f)
		abort();
	config_convert_write(f, PATH, text);
	fclose(f);
	f = fmemopen(written, len, "r");
	if (!f)
		abort();
	said_clear();
	if (!config_file_parse(f, PATH, &c, &again)) {
		must(again.n == text->n, "%zu forwards and %zu", text->n, again.n);
		for (size_t i = 0; i < text->n; i++)
			check_same(&text->forwards[i], &again.forwards[i]);
	}
	fclose(f);
	free(written);
	config_text_close(&again);
	config_close(&c);
}

/* --- who may connect --- */

/* The lines of DATA that are `allow` or `deny`, in lists; false: too much for the model. */
static bool learn_rules(const uint8_t *data, size_t size, const struct config_text *text)
{
	char *copy = strndup((const char *)data, size), *rest = copy;
	struct model_rules *l = &model_global;
	bool fits = text->n <= FORWARDS_MAX;
	unsigned int line = 0;
	size_t n = 0;

	model_global.n = 0;
	for (size_t i = 0; i < FORWARDS_MAX; i++)
		model_own[i].n = 0;
	while (fits && rest) {
		char *at, *word = strtok_r(strsep(&rest, "\n"), " \t\r", &at), *pattern;

		line++;
		if (n < text->n && text->forwards[n].line == line) {
			l = &model_own[n++];
			continue;
		}
		if (word && line == 1 && !strncmp(word, "\xef\xbb\xbf", 3))
			word += 3;
		if (!word || (strcasecmp(word, "allow") && strcasecmp(word, "deny")))
			continue;
		pattern = strtok_r(NULL, " \t\r", &at);
		fits = pattern && l->n < 64 && strlen(pattern) < sizeof(l->rules[0].pattern) &&
		       !strchr(pattern, '/');
		if (fits) {
			l->rules[l->n].allow = !strcasecmp(word, "allow");
			strcpy(l->rules[l->n++].pattern, pattern);
		}
	}
	free(copy);
	return fits;
}

static bool is_inet_listener(const char *listen)
{
	return listen[strspn(listen, "0123456789.")] == ':' && listen[0] != ':';
}

static void check_inet(const struct forward_text *t, const struct model_rules *own,
		       const char *client)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	bool is_mapped = t->listen[0] == ':';
	char plain[INET_ADDRSTRLEN], text[INET6_ADDRSTRLEN];

	if (inet_pton(AF_INET, client, &in.sin_addr) != 1 || t->listen[0] == '[')
		return;
	inet_ntop(AF_INET, &in.sin_addr, plain, sizeof(plain));
	snprintf(text, sizeof(text), "%s%s", is_mapped ? "::ffff:" : "", plain);
	must(acl_allows(&t->own.acl, (struct sockaddr *)&in) ==
	     model_verdict(&model_global, own, text, is_mapped ? plain : NULL), "%s at %s", plain,
	     t->listen);
}

static void check_inet6(const struct forward_text *t, const struct model_rules *own,
			const char *client)
{
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	char text[INET6_ADDRSTRLEN];

	if (inet_pton(AF_INET6, client, &in6.sin6_addr) != 1 || is_inet_listener(t->listen))
		return;
	inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
	if (!strchr(text, '.'))
		must(acl_allows(&t->own.acl, (struct sockaddr *)&in6) ==
		     model_verdict(&model_global, own, text, NULL), "%s at %s", text, t->listen);
}

/* PATTERN with something in place of its wildcards. */
static void check_pattern(const struct forward_text *t, const struct model_rules *own,
			  const char *pattern)
{
	static const char *const stars[] = { "", "1", "2.3", "0.0.0", "1:2", "::", "0:5:0:0:7" };
	char client[128];

	for (size_t i = 0; i < sizeof(stars) / sizeof(stars[0]) * 2; i++) {
		size_t len = 0;

		for (const char *p = pattern; *p && len < sizeof(client) - 16; p++) {
			if (*p == '*')
				len += (size_t)snprintf(client + len, sizeof(client) - len, "%s",
							stars[i / 2]);
			else
				client[len++] = *p;
			if (*p == '?')
				client[len - 1] = i % 2 ? '1' : '9';
		}
		client[len] = '\0';
		check_inet(t, own, client);
		check_inet6(t, own, client);
	}
}

static void check_clients(const struct config_text *text)
{
	static const char *const clients[] = { "10.0.0.1", "192.168.1.2", "0.0.0.0", "127.0.0.1",
					       "::1", "fe80::1", "2001:db8:1::", "::" };

	for (size_t i = 0; i < text->n; i++) {
		const struct forward_text *t = &text->forwards[i];
		const struct model_rules *own = &model_own[i];

		if (!strncmp(t->listen, "unix:", 5))
			continue;
		for (size_t k = 0; k < sizeof(clients) / sizeof(clients[0]); k++) {
			check_inet(t, own, clients[k]);
			check_inet6(t, own, clients[k]);
		}
		for (size_t k = 0; k < model_global.n; k++)
			check_pattern(t, own, model_global.rules[k].pattern);
		for (size_t k = 0; k < own->n; k++)
			check_pattern(t, own, own->rules[k].pattern);
	}
}

static void check_forwards(const struct config_text *text)
{
	for (size_t i = 0; i < text->n; i++) {
		const struct forward_text *t = &text->forwards[i];

		must(t->name && t->name[0] && t->listen && t->listen[0] && t->upstream &&
		     t->upstream[0], "a forward with holes");
		must(t->line && t->line == t->listen_line && t->line == t->upstream_line, "lines");
		for (size_t k = 0; k < i; k++)
			must(strcmp(text->forwards[k].name, t->name), "%s twice", t->name);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config_text text = { 0 };
	struct config c = { 0 };
	FILE *f;
	int r;

	if (!size)
		return 0;
	f = fmemopen((void *)data, size, "r");
	if (!f)
		abort();
	said_clear();
	(void)config_rinetd_is(f);
	must(ftell(f) == 0, "not at the beginning");
	r = config_rinetd_parse(f, PATH, &c, &text);
	fclose(f);
	if (r) {
		check_mistake(r, data, size);
	} else {
		must(!said()[0], "taken, but: %s", said());
		check_forwards(&text);
		if (learn_rules(data, size, &text))
			check_clients(&text);
		check_convert(&text);
	}
	config_text_close(&text);
	config_close(&c);
	return 0;
}
