// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration of rinetd and oi (user/config/rinetd.c, acl.c): any bytes.  Who may connect is
 * who may by rinetd's manual, with addresses as text; and what `culvert convert` writes is the same.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config_model.h"
#include "fuzz.h"

#define FORWARDS_MAX 16
#define RULES_MAX 64

struct rule {
	char pattern[48];
	bool allow;
};

/* Those at the top, and those behind each forward. */
static struct rules {
	struct rule rules[RULES_MAX];
	size_t n;
} global, own[FORWARDS_MAX];

static bool glob(const char *pattern, const char *text)
{
	if (*pattern == '*')
		return glob(pattern + 1, text) || (*text && glob(pattern, text + 1));
	if (!*pattern || !*text)
		return !*pattern && !*text;
	return (*pattern == '?' || tolower(*pattern) == *text) && glob(pattern + 1, text + 1);
}

static bool same_address(const char *a, const char *b)
{
	struct addr x, y;

	if (addr_parse_host(a, &x) || addr_parse_host(b, &y))
		return false;
	x = addr_unmapped(&x);
	y = addr_unmapped(&y);
	return addr_equal(&x, &y);
}

/* A pattern without * and ? is an address, however it is written. */
static bool matches(const struct rule *r, const char *client)
{
	bool mapped = !strncasecmp(r->pattern, "::ffff:", 7);

	if (!strpbrk(r->pattern, "*?"))
		return same_address(r->pattern, client);
	return mapped ? !strchr(client, ':') && glob(r->pattern + 7, client) :
			glob(r->pattern, client);
}

/* 1: allowed; 0: not; -1: denied. */
static int judge(const struct rules *l, const char *client)
{
	bool allows = false, allowed = false;

	for (size_t i = 0; i < l->n; i++) {
		bool is = matches(&l->rules[i], client);

		if (is && !l->rules[i].allow)
			return -1;
		allows |= l->rules[i].allow;
		allowed |= is;
	}
	return !allows || allowed;
}

/* Collect the lines of DATA that are `allow` or `deny`; false: too much for the model. */
static bool learn_rules(const uint8_t *data, size_t size, const struct config *c)
{
	char *copy = strndup((const char *)data, size), *rest = copy;
	bool fits = c->n_forwards <= FORWARDS_MAX;
	struct rules *l = &global;
	unsigned int line = 0;
	size_t n = 0;

	global.n = 0;
	for (size_t i = 0; i < FORWARDS_MAX; i++)
		own[i].n = 0;
	while (fits && rest) {
		char *at, *word = strtok_r(strsep(&rest, "\n"), " \t\r", &at), *pattern;

		line++;
		if (n < c->n_forwards && c->forwards[n].line == line) {
			l = &own[n++];
			continue;
		}
		if (word && line == 1 && !strncmp(word, "\xef\xbb\xbf", 3))
			word += 3;
		if (!word || (strcasecmp(word, "allow") && strcasecmp(word, "deny")))
			continue;
		pattern = strtok_r(NULL, " \t\r", &at);
		if (pattern)
			pattern[strcspn(pattern, "#")] = '\0';
		fits = pattern && l->n < RULES_MAX && !strchr(pattern, '/') &&
		       strlen(pattern) < sizeof(l->rules[0].pattern);
		if (fits) {
			l->rules[l->n].allow = !strcasecmp(word, "allow");
			strcpy(l->rules[l->n++].pattern, pattern);
		}
	}
	free(copy);
	return fits;
}

/* Compare what culvert and the model say of the client at ADDRESS, if FC can have it. */
static void check_client(const struct forward_conf *fc, const struct rules *l, const char *address)
{
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in in = { .sin_family = AF_INET };
	const char *listen = fc->listen.text;
	char text[INET6_ADDRSTRLEN];
	struct sockaddr *sa;

	if (inet_pton(AF_INET, address, &in.sin_addr) == 1 && listen[0] != '[') {
		inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
		sa = (struct sockaddr *)&in;
	} else if (inet_pton(AF_INET6, address, &in6.sin6_addr) == 1 &&
		   (listen[0] == ':' || listen[strspn(listen, "0123456789.")] != ':')) {
		inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
		if (strchr(text, '.'))
			return;
		sa = (struct sockaddr *)&in6;
	} else {
		return;
	}
	must(acl_allows(&fc->acl, sa) == (judge(&global, text) > 0 && judge(l, text) > 0),
	     "%s at %s", address, listen);
}

/* Clients that PATTERN may match: something stands for its wildcards. */
static void check_pattern(const struct forward_conf *fc, const struct rules *l,
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
		check_client(fc, l, client);
	}
}

static void check_clients(const struct config *c)
{
	static const char *const clients[] = { "10.0.0.1", "192.168.1.2", "0.0.0.0", "127.0.0.1",
					       "::1", "fe80::1", "2001:db8:1::", "::" };

	for (size_t i = 0; i < c->n_forwards; i++) {
		for (size_t k = 0; k < sizeof(clients) / sizeof(clients[0]); k++)
			check_client(&c->forwards[i], &own[i], clients[k]);
		for (size_t k = 0; k < global.n; k++)
			check_pattern(&c->forwards[i], &own[i], global.rules[k].pattern);
		for (size_t k = 0; k < own[i].n; k++)
			check_pattern(&c->forwards[i], &own[i], own[i].rules[k].pattern);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;
	int r = model_parse(data, size, &c);

	if (r) {
		model_must_be_mistake(r, data, size);
	} else if (c.is_rinetd) {
		model_must_be_sane(&c);
		if (learn_rules(data, size, &c))
			check_clients(&c);
		model_must_convert(&c);
	}
	config_close(&c);
	return 0;
}
