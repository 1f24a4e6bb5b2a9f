// SPDX-License-Identifier: BSD-2-Clause
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "rinetd_reader.h"

#define NAME_LEN 40     /* so that a section can have it */
#define VALUE_LEN 90   /* of `allow` and `deny`, but for the last element: a line must have room */
#define RULE "BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT"
#define KEEPALIVE "60" /* rinetd-uv's "on" */

/* One end of a rule; PORT is NULL for a unix socket. */
struct end {
	char *host, *port;
};

static struct forward_text *last_forward(struct rinetd_reader *p)
{
	return &p->text->forwards[p->text->n - 1];
}

/* --- the forward before ends --- */

/* The rules from *AT on that say the same and fit onto a line. */
static void say_rules(struct rinetd_reader *p, const struct rule_set *set, size_t *at)
{
	bool allow = set->rules[*at].allow;
	const struct option_def *o = option_find_key(allow ? "allow" : "deny", true);
	char value[VALUE_LEN + ACL_RULE_STRLEN + 2], wrong[OPTION_WRONG_LEN];
	char rule[ACL_RULE_STRLEN];
	size_t len = 0;
	int r;

	while (*at < set->n && set->rules[*at].allow == allow && len < VALUE_LEN)
		len += (size_t)snprintf(value + len, sizeof(value) - len, "%s%s", len ? ", " : "",
					acl_rule_format(&set->rules[(*at)++], rule));
	r = config_text_take(p->c, p->text, last_forward(p), o, value, last_forward(p)->line,
			     wrong);
	if (r == -ENOMEM)
		rinetd_no_memory(p);
	else if (r)
		rinetd_mistake(p, last_forward(p)->line, "%s: %s", o->name, wrong);
}

static void end_rules(struct rinetd_reader *p)
{
	struct forward_text *t = last_forward(p);
	const struct rinetd_rule *rule;
	struct rule_set set;
	int r = rinetd_rules_compile(&p->global, &p->own, p->clients, &set, &rule);

	if (r == -ENOMEM)
		rinetd_no_memory(p);
	else if (r == -ERANGE)
		rinetd_mistake(p, rule->line, "\"%.64s\": which IPv6 clients that matches depends "
			       "on how an address is abbreviated; write a prefix, as fe80::/10",
			       rule->text);
	else if (r)
		rinetd_mistake(p, t->line, "the rules for its clients are more than %d addresses "
			       "and prefixes", RULE_SET_MAX);
	/* it has rules, even if none can match: those of the command line are not for it */
	t->lines[option_number(option_find_key("deny", true))] = t->line;
	for (size_t at = 0; !p->error && at < set.n;)
		say_rules(p, &set, &at);
	rule_set_close(&set);
}

void rinetd_end_forward(struct rinetd_reader *p)
{
	if (p->text->n && !p->error && !p->clients) {
		if (p->own.n)
			rinetd_mistake(p, p->own.rules[0].line,
				       "clients of a unix socket have no address");
	} else if (p->text->n && !p->error && (p->global.n || p->own.n)) {
		if (!p->global.n && !p->has_rules && p->own.n > 1)
			rinetd_note(p, p->own.rules[0].line, "rinetd 0.70 to 0.73 does not look at "
				    "this first one of several rules; culvert does");
		end_rules(p);
	}
	p->has_rules |= p->own.n > 0;
	rinetd_rules_close(&p->own);
}

/* --- a forwarding rule --- */

/* "port/tcp" */
static void cut_protocol(struct rinetd_reader *p, char *port)
{
	char *slash = port ? strchr(port, '/') : NULL;

	if (!slash)
		return;
	if (!strcasecmp(slash, "/udp"))
		rinetd_mistake(p, p->line, "%.64s: culvert does not forward UDP", port);
	else if (strcasecmp(slash, "/tcp"))
		rinetd_mistake(p, p->line, "%.64s: unknown protocol, expected /tcp", port);
	*slash = '\0';
}

static bool is_any(const char *host)
{
	struct in6_addr in6;

	return inet_pton(AF_INET6, host, &in6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&in6);
}

/* Which clients come to HOST; a name may be that of either family. */
static unsigned int clients_of(const struct end *e)
{
	if (!e->port)
		return 0;
	if (strchr(e->host, ':'))
		return CLIENTS_INET6 | (is_any(e->host) ? CLIENTS_MAPPED : 0);
	return e->host[strspn(e->host, "0123456789.")] ? CLIENTS_INET | CLIENTS_INET6 :
							 CLIENTS_INET;
}

/* As culvert writes E; kept.  NULL: no memory. */
static const char *address_of(struct rinetd_reader *p, const struct end *e, bool listen)
{
	char *address = NULL;
	const char *kept;
	int len;

	if (!e->port)
		len = asprintf(&address, "%s", e->host);
	else if (listen && is_any(e->host)) /* rinetd's socket takes IPv4 as well */
		len = asprintf(&address, ":%s", e->port);
	else if (strchr(e->host, ':'))
		len = asprintf(&address, "[%s]:%s", e->host, e->port);
	else
		len = asprintf(&address, "%s:%s", strcmp(e->host, "0") ? e->host : "0.0.0.0",
			       e->port);
	kept = len < 0 ? NULL : config_keep(p->c, address);
	if (len >= 0)
		free(address);
	return kept;
}

static bool is_taken(const struct config_text *text, const char *name)
{
	for (size_t i = 0; i < text->n; i++)
		if (text->forwards[i].name && !strcmp(text->forwards[i].name, name))
			return true;
	return false;
}

/* A forward is called as it listens, as far as the name of a section can say that. */
static const char *choose_name(struct rinetd_reader *p, const char *listen)
{
	char base[NAME_LEN + 1], name[NAME_LEN + 16];
	size_t len = 0;

	if (strlen(listen) >= NAME_LEN)
		listen += strlen(listen) - NAME_LEN + 1;
	if (*listen == ':')
		base[len++] = '*';
	for (; *listen; listen++)
		if (!strchr("[]", *listen))
			base[len++] = *listen;
	base[len] = '\0';
	if (strchr(";#", *base))
		*base = '_';
	strcpy(name, base);
	for (unsigned int i = 2; is_taken(p->text, name); i++)
		snprintf(name, sizeof(name), "%.*s-%u", NAME_LEN - 8, base, i);
	return config_keep(p->c, name);
}

static void begin_forward(struct rinetd_reader *p, const struct end *bind,
			  const struct end *connect)
{
	const char *listen = address_of(p, bind, true);
	const char *upstream = address_of(p, connect, false);
	const char *name = listen ? choose_name(p, listen) : NULL;
	struct forward_text *t = name && upstream ? config_text_add(p->text) : NULL;

	if (!t) {
		rinetd_no_memory(p);
		return;
	}
	t->name = name;
	t->listen = listen;
	t->upstream = upstream;
	t->file = p->path;
	t->line = t->listen_line = t->upstream_line = p->line;
	p->clients = clients_of(bind);
}

/* Take E from the words W, which end in NULL; returns what is left. */
static char **take_end(struct rinetd_reader *p, char **w, struct end *e, const char *what)
{
	size_t len;

	*e = (struct end){ .host = *w };
	if (!*w) {
		rinetd_mistake(p, p->line, "%sADDRESS is missing; a rule is " RULE, what);
		return w;
	}
	if (!strncmp(*w, "unix:", 5))
		return w + 1;
	e->port = *++w;
	if (!*w) {
		rinetd_mistake(p, p->line, "%sPORT is missing; a rule is " RULE, what);
		return w;
	}
	len = strlen(e->host);
	if (*e->host == '[' && e->host[len - 1] == ']' && strchr(e->host, ':')) {
		e->host[len - 1] = '\0';
		e->host++;
	}
	cut_protocol(p, e->port);
	return w + 1;
}

/* --- [option=value, ...] --- */

static const struct rinetd_word options[] = {
	{ "timeout", "idle-timeout", NULL },
	{ "src", "source", NULL },
	{ "keepalive", "keepalive", NULL },
	{ "connect-timeout", "connect-timeout", NULL },
	{ "dns-refresh", "resolve-interval", NULL },
	{ "mode", NULL, "who may connect is up to the directory of the socket" },
	{ NULL, NULL, NULL }
};

static const char *source_of(char *value)
{
	size_t len = strlen(value);

	if (*value == '[' && value[len - 1] == ']') {
		value[len - 1] = '\0';
		value++;
	}
	return !strcmp(value, "0") || !strcmp(value, "0.0.0.0") || is_any(value) ? "any" : value;
}

static void take_value(struct rinetd_reader *p, const struct rinetd_word *w, char *value)
{
	const char *text = value;

	if (!strcmp(w->name, "keepalive")) {
		text = strcmp(value, "on") ? "0" : KEEPALIVE;
		if (strcmp(value, "on") && strcmp(value, "off"))
			rinetd_mistake(p, p->line, "keepalive: \"%.64s\", expected on or off",
				       value);
	} else if (!strcmp(w->name, "src")) {
		text = source_of(value);
	} else if (w->key && (!*value || value[strspn(value, "0123456789")])) {
		rinetd_mistake(p, p->line, "%s: \"%.64s\" is not a whole number", w->name, value);
	}
	if (!strcmp(w->name, "timeout") && strcmp(value, "0") != 0)
		rinetd_note(p, p->line, "timeout=%.20s ends idle TCP sessions; rinetd has it for "
			    "UDP only", value);
	if (!p->error)
		rinetd_take_word(p, w, last_forward(p), text);
}

/* TEXT is what is between the brackets. */
static void take_options(struct rinetd_reader *p, char *text)
{
	while (text && !p->error) {
		char *name = strsep(&text, ","), *value = strchr(name, '=');
		const struct rinetd_word *w;

		if (value)
			*value++ = '\0';
		name = rinetd_trim(name);
		w = rinetd_find_word(options, name);
		if (!w)
			rinetd_mistake(p, p->line, "[%.64s]: unknown option, expected timeout, src "
				       "or keepalive", name);
		else if (!value)
			rinetd_mistake(p, p->line, "[%s]: needs a value", name);
		else
			take_value(p, w, rinetd_trim(value));
	}
}

/* Where LINE has "[option=", which is no IPv6 address; NULL: nowhere. */
static char *find_options(char *line)
{
	for (char *at = strchr(line, '['); at; at = strchr(at + 1, '[')) {
		const char *name = at + 1 + strspn(at + 1, RINETD_BLANKS);
		size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz-");

		if (name[len + strspn(name + len, RINETD_BLANKS)] == '=')
			return at;
	}
	return NULL;
}

void rinetd_take_rule(struct rinetd_reader *p, char *line)
{
	char *options_at = find_options(line), *end = NULL, *words[8] = { NULL }, **w = words;
	struct end bind, connect;

	if (options_at) {
		end = strrchr(options_at, ']');
		*options_at++ = '\0';
		if (!end || end[1 + strspn(end + 1, RINETD_BLANKS)])
			rinetd_mistake(p, p->line, "%s", end ?
				       "nothing but a comment may follow \"]\"" :
				       "\"[\" without \"]\"");
		else
			*end = '\0';
	}
	for (size_t n = 0; n < 7 && *(line += strspn(line, RINETD_BLANKS)); n++) {
		words[n] = line;
		line += strcspn(line, RINETD_BLANKS);
		if (*line)
			*line++ = '\0';
	}
	w = take_end(p, w, &bind, "BIND");
	if (!p->error)
		w = take_end(p, w, &connect, "CONNECT");
	if (!p->error && *w)
		rinetd_mistake(p, p->line, "\"%.64s\": nothing but [OPTION=VALUE,...] and a "
			       "comment may follow a rule", *w);
	if (!p->error) {
		rinetd_end_forward(p);
		if (!p->error)
			begin_forward(p, &bind, &connect);
	}
	if (!p->error && options_at)
		take_options(p, options_at);
}
