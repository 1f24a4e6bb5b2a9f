// SPDX-License-Identifier: BSD-2-Clause
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/rinetd_reader.h"

#define NAME_LEN 40    /* so that a section can have it */
#define NAME_ROOM (NAME_LEN + 16)
#define VALUE_LEN 90   /* of `allow` and `deny`, but for the last element: a line must have room */
#define RULE "BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT"
#define KEEPALIVE "60" /* rinetd-uv's "on" */

/* One end of a rule; PORT is NULL for a unix socket. */
struct end {
	char *host, *port;
};

/* --- the forward before ends --- */

/* The rules from *AT on that say the same and fit onto a line. */
static void say_rules(struct rinetd_reader *p, const struct rule_set *set, size_t *at)
{
	struct forward_text *t = config_last_forward(&p->in);
	bool allow = set->rules[*at].allow;
	const struct option_def *o = option_find_key(allow ? "allow" : "deny", true);
	char value[VALUE_LEN + ACL_RULE_STRLEN + 2];
	char rule[ACL_RULE_STRLEN];
	size_t len = 0;

	while (*at < set->n && set->rules[*at].allow == allow && len < VALUE_LEN)
		len += (size_t)snprintf(value + len, sizeof(value) - len, "%s%s", len ? ", " : "",
					acl_rule_format(&set->rules[(*at)++], rule));
	config_take(&p->in, t->line, t, o, o->name, value);
}

static void end_rules(struct rinetd_reader *p)
{
	struct forward_text *t = config_last_forward(&p->in);
	const struct rinetd_rule *rule;
	struct rule_set set;
	int r = rinetd_rules_compile(&p->global, &p->own, p->clients, &set, &rule);

	if (r == -ENOMEM)
		config_no_memory(&p->in);
	else if (r == -ERANGE)
		config_mistake_at(&p->in, rule->line, "\"%.64s\": which IPv6 clients that matches "
				  "depends on how an address is abbreviated; write a prefix, as "
				  "fe80::/10", rule->text);
	else if (r)
		config_mistake_at(&p->in, t->line, "the rules for its clients are more than %d "
				  "addresses and prefixes", RULE_SET_MAX);
	/* it has rules, even if none can match: those of the command line are not for it */
	t->lines[option_number(option_find_key("deny", true))] = t->line;
	for (size_t at = 0; !p->in.error && at < set.n;)
		say_rules(p, &set, &at);
	rule_set_close(&set);
}

/* Does a `deny` begin with a number that rinetd's text of such a client does not begin with? */
static bool denies_ipv4(const struct rinetd_rules *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (!l->rules[i].allow && !strchr(l->rules[i].text, ':') &&
		    strchr("0123456789", *l->rules[i].text))
			return true;
	return false;
}

/* A listener at "::", or at an IPv4 address in IPv6 form, as rinetd has it. */
static void note_mapped(struct rinetd_reader *p)
{
	unsigned int line = config_last_forward(&p->in)->listen_line;

	if (p->clients & CLIENTS_INET6)
		rinetd_note(p, line, "\"::\" is every address, IPv4 too; so it is with rinetd, unless "
			    "net.ipv6.bindv6only is 1: [::]:PORT, in a [forward], is IPv6 alone");
	if (denies_ipv4(&p->global) || denies_ipv4(&p->own))
		rinetd_note(p, line, "here rinetd has IPv4 clients as ::ffff:ADDRESS, which no deny "
			    "of ADDRESS matches; culvert refuses them");
}

void rinetd_end_forward(struct rinetd_reader *p)
{
	if (p->in.text->n && !p->in.error && p->clients & CLIENTS_MAPPED)
		note_mapped(p);
	if (p->in.text->n && !p->in.error && !p->clients) {
		if (p->own.n)
			config_mistake_at(&p->in, p->own.rules[0].line,
					  "clients of a unix socket have no address");
	} else if (p->in.text->n && !p->in.error && (p->global.n || p->own.n)) {
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
		config_mistake(&p->in, "%.64s: culvert does not forward UDP", port);
	else if (strcasecmp(slash, "/tcp"))
		config_mistake(&p->in, "%.64s: unknown protocol, expected /tcp", port);
	*slash = '\0';
}

static bool is_any(const char *host)
{
	struct in6_addr in6;

	return inet_pton(AF_INET6, host, &in6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&in6);
}

static bool is_mapped(const char *host)
{
	struct in6_addr in6;

	return inet_pton(AF_INET6, host, &in6) == 1 && IN6_IS_ADDR_V4MAPPED(&in6);
}

/* Which clients come to HOST; a name may be that of either family. */
static unsigned int clients_of(const struct end *e)
{
	if (!e->port)
		return 0;
	if (is_mapped(e->host))
		return CLIENTS_MAPPED;
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
	kept = len < 0 ? NULL : config_keep(p->in.c, address);
	if (len >= 0)
		free(address);
	return kept;
}

/* A forward is called as it listens, as far as the name of a section can say that. */
static void choose_name(const struct rinetd_reader *p, const char *listen, char name[NAME_ROOM])
{
	char base[NAME_LEN + 1];
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
	for (unsigned int i = 2; config_find_forward(p->in.text, name); i++)
		snprintf(name, NAME_ROOM, "%.*s-%u", NAME_LEN - 8, base, i);
}

static void begin_forward(struct rinetd_reader *p, const struct end *bind,
			  const struct end *connect)
{
	const char *listen = address_of(p, bind, true);
	const char *upstream = address_of(p, connect, false);
	struct forward_text *t = NULL;
	char name[NAME_ROOM];

	if (!listen || !upstream) {
		config_no_memory(&p->in);
		return;
	}
	choose_name(p, listen, name);
	t = config_add_forward(&p->in, name);
	if (!t)
		return;
	t->listen = listen;
	t->upstream = upstream;
	t->listen_line = t->upstream_line = p->in.line;
	p->clients = clients_of(bind);
}

/* Of the line that made it one: perhaps it was not meant to be. */
static const char *why_rule(const struct rinetd_reader *p)
{
	return p->in.line == p->first ? " (the file is read as a rinetd.conf, because it does not "
					"begin with a [SECTION])" : "";
}

/* Take E from the words W, which end in NULL; returns what is left. */
static char **take_end(struct rinetd_reader *p, char **w, struct end *e, const char *what)
{
	size_t len;

	*e = (struct end){ .host = *w };
	if (!*w) {
		config_mistake(&p->in, "%sADDRESS is missing; a rule is " RULE "%s", what,
			       why_rule(p));
		return w;
	}
	if (!strncmp(*w, "unix:", 5))
		return w + 1;
	e->port = *++w;
	if (!*w) {
		config_mistake(&p->in, "%sPORT is missing; a rule is " RULE "%s", what,
			       why_rule(p));
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
	const char *text = value, *digits = value + (*value == '-');

	if (!strcmp(w->name, "keepalive")) {
		text = strcmp(value, "on") ? "0" : KEEPALIVE;
		if (strcmp(value, "on") && strcmp(value, "off"))
			config_mistake(&p->in, "keepalive: \"%.64s\", expected on or off",
				       value);
	} else if (!strcmp(w->name, "src")) {
		text = source_of(value);
	} else if (w->key && (!*digits || digits[strspn(digits, "0123456789")])) {
		config_mistake(&p->in, "%s: \"%.64s\" is not a whole number", w->name, value);
	}
	if (!strcmp(w->name, "timeout") && strcmp(value, "0") != 0)
		rinetd_note(p, p->in.line, "timeout=%.20s ends idle TCP sessions; rinetd has it "
			    "for UDP only", value);
	if (!p->in.error)
		rinetd_take_word(p, w, config_last_forward(&p->in), text);
}

/* TEXT is what is between the brackets. */
static void take_options(struct rinetd_reader *p, char *text)
{
	while (text && !p->in.error) {
		char *name = strsep(&text, ","), *value = strchr(name, '=');
		const struct rinetd_word *w;

		if (value)
			*value++ = '\0';
		name = rinetd_trim(name);
		w = rinetd_find_word(options, name);
		if (!w)
			config_mistake(&p->in, "[%.64s]: unknown option, expected timeout, src, "
				       "keepalive, connect-timeout or dns-refresh", name);
		else if (!value)
			config_mistake(&p->in, "[%s]: needs a value", name);
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
			config_mistake(&p->in, "%s", end ?
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
	if (!p->in.error)
		w = take_end(p, w, &connect, "CONNECT");
	if (!p->in.error && *w)
		config_mistake(&p->in, "\"%.64s\": nothing but [OPTION=VALUE,...] and a "
			       "comment may follow a rule", *w);
	if (!p->in.error) {
		rinetd_end_forward(p);
		if (!p->in.error)
			begin_forward(p, &bind, &connect);
	}
	if (!p->in.error && options_at)
		take_options(p, options_at);
}
