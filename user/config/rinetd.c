// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each line becomes what a file with sections would say.  A forwarding rule
 * begins a forward.  The allow and deny lines behind it are kept until the next one, or the end of
 * the file, and become that forward's `deny` and `allow` together with those at the top.
 *
 * rinetd refuses a client that any deny matches.  Where there is an allow at the top, one of these
 * must match; where there is an allow behind the forward, one of these must match as well.  The
 * order of lines means nothing.  Here the first rule that matches decides, so deny comes first, and
 * allow of both lists is joined: A&B.
 *
 * rinetd compares patterns with the text of an address, as culvert does (acl.h).  The exception is
 * a listener at "::": there rinetd sees IPv4 clients as "::ffff:192.0.2.1", and culvert has two
 * listeners and sees 192.0.2.1.  For these, a pattern becomes what is left of it behind "::ffff:".
 */
#include "config/rinetd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "config/file.h"

#define BLANKS " \t"
#define NAME_LEN 40 /* of a forward, so that a section can have it */
#define NAME_ROOM (NAME_LEN + 16)
#define VALUE_LEN 120 /* of `allow` and `deny` with several elements: a line must have room */
#define ELEMENT_ROOM 200
#define MAPPED "::ffff:"
#define RULE "BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT"

/* Whose addresses a listener sees: a set. */
enum {
	CLIENTS_INET = 1,
	CLIENTS_MAPPED = 2, /* IPv4 at a listener for both families, where rinetd sees IPv6 */
	CLIENTS_INET6 = 4,
};

/* An allow or deny. */
struct access {
	const char *pattern; /* kept by the configuration */
	unsigned int line;
	bool allow;
};

struct accesses {
	struct access *list; /* owned */
	size_t n;
};

struct reader {
	struct config_reader in;
	unsigned int first;          /* line that has something */
	struct accesses global, own; /* OWN: of the last forward */
	unsigned int clients;        /* of the last forward: CLIENTS_... */
	bool has_rules;              /* an earlier forward has */
	bool is_oi;                  /* a line is of oi alone, and that was noted */
	/* while the rules of a forward are made */
	struct acl acl;              /* so far */
	bool allow;                  /* of VALUE */
	char value[VALUE_LEN + ELEMENT_ROOM];
};

/* Cut blanks off both ends of TEXT. */
static char *trim(char *text)
{
	size_t len;

	text += strspn(text, BLANKS);
	len = strlen(text);
	while (len && strchr(BLANKS, text[len - 1]))
		text[--len] = '\0';
	return text;
}

static void take(struct reader *p, struct forward_text *t, unsigned int line, const char *key,
		 const char *as, const char *value)
{
	const struct config_line said = { .option = option_find_key(as, t), .key = key,
					  .line = line };

	config_take(&p->in, t, &said, value);
}

/* --- allow and deny --- */

static void flush_value(struct reader *p)
{
	struct forward_text *t = config_last_forward(&p->in);
	const char *key = p->allow ? "allow" : "deny";

	if (p->value[0])
		take(p, t, t->line, key, key, p->value);
	p->value[0] = '\0';
}

/* Add ELEMENT to the rules of the last forward, unless earlier ones decide all its clients. */
static void add_element(struct reader *p, bool allow, const char *element)
{
	size_t n = p->acl.n, len = strlen(p->value);
	int r = acl_add(&p->acl, allow, element);

	if (r == -E2BIG)
		config_mistake_at(&p->in, config_last_forward(&p->in)->line, "the rules for its "
				  "clients are more than %d", ACL_RULES_MAX);
	else if (r == -ENOMEM)
		config_no_memory(&p->in);
	if (r || p->acl.n == n)
		return;
	if (len && (p->allow != allow || len + strlen(element) > VALUE_LEN)) {
		flush_value(p);
		len = 0;
	}
	p->allow = allow;
	snprintf(p->value + len, sizeof(p->value) - len, "%s%s", len ? ", " : "", element);
}

/* Takes what a rule becomes. */
typedef void element_fn(struct reader *p, const char *element, void *arg);

/* Call FN for what matches IPv4 clients whose text PATTERN matches, and no others. */
static void take_rest(struct reader *p, const char *pattern, element_fn *fn, void *arg)
{
	bool wild = strpbrk(pattern, "*?"), any = !strcmp(pattern, "*");
	char element[ELEMENT_ROOM];
	struct in_addr in;

	if (strchr(pattern, ':') || (!wild && inet_pton(AF_INET, pattern, &in) != 1))
		return;
	snprintf(element, sizeof(element), "%s%s", any ? "" : pattern,
		 any ? "0.0.0.0/0" : wild && p->clients & CLIENTS_INET6 ? "&0.0.0.0/0" : "");
	fn(p, element, arg);
}

/* Call FN for each pattern that is left of PATTERN when its beginning has matched TEXT. */
static void for_each_rest(struct reader *p, const char *pattern, const char *text, element_fn *fn,
			  void *arg)
{
	if (!*text) {
		take_rest(p, pattern, fn, arg);
	} else if (*pattern == '*') {
		for_each_rest(p, pattern + 1, text, fn, arg);
		if (pattern[1] != '*') /* else that call does the same */
			for_each_rest(p, pattern, text + 1, fn, arg);
	} else if (*pattern && (*pattern == '?' || *pattern == *text)) {
		for_each_rest(p, pattern + 1, text + 1, fn, arg);
	}
}

/* Call FN for the elements that match whom A matches. */
static void for_each_element(struct reader *p, const struct access *a, element_fn *fn, void *arg)
{
	bool wild = strpbrk(a->pattern, "*?"), mapped = p->clients & CLIENTS_MAPPED;
	char element[ELEMENT_ROOM];

	/*
	 * At "::" a pattern of IPv4 clients lets nobody in, since rinetd's text of them is longer;
	 * but it keeps them out, which its author has meant.
	 */
	if (!mapped || !a->allow || strpbrk(a->pattern, ":/") || !strcmp(a->pattern, "*")) {
		fn(p, a->pattern, arg);
	} else if (p->clients & CLIENTS_INET6 && wild) {
		snprintf(element, sizeof(element), "%s&::/0", a->pattern);
		fn(p, element, arg);
	}
	if (mapped && wild)
		for_each_rest(p, a->pattern, MAPPED, fn, arg);
}

static void add_deny(struct reader *p, const char *element, void *arg)
{
	(void)arg;
	add_element(p, false, element);
}

/* True if each client that B matches is one of A. */
static bool covers(const char *a, const char *b)
{
	struct acl acl = { 0 };
	bool is = !acl_add(&acl, true, a) && acl_add(&acl, false, b) == -EEXIST;

	acl_close(&acl);
	return is;
}

/* Allow whom both ELEMENT and FIRST match; NULL: ELEMENT. */
static void add_allow(struct reader *p, const char *element, void *first)
{
	char both[ELEMENT_ROOM];

	if (!first || covers(first, element)) {
		add_element(p, true, element);
	} else if (covers(element, first)) {
		add_element(p, true, first);
	} else {
		snprintf(both, sizeof(both), "%s&%s", (const char *)first, element);
		add_element(p, true, both);
	}
}

static bool has_allow(const struct accesses *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->list[i].allow)
			return true;
	return false;
}

/* Of the rules in L that allow, and FIRST. */
static void add_allows(struct reader *p, const char *element, void *l)
{
	const struct accesses *own = l;
	char first[ELEMENT_ROOM];

	snprintf(first, sizeof(first), "%s", element ? element : "");
	for (size_t i = 0; i < own->n && !p->in.error; i++)
		if (own->list[i].allow)
			for_each_element(p, &own->list[i], add_allow, element ? first : NULL);
}

static void add_denies(struct reader *p, const struct accesses *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (!l->list[i].allow)
			for_each_element(p, &l->list[i], add_deny, NULL);
}

static void make_rules(struct reader *p)
{
	struct accesses *global = &p->global, *own = &p->own;

	p->value[0] = '\0';
	add_denies(p, global);
	add_denies(p, own);
	if (has_allow(global) && has_allow(own)) {
		for (size_t i = 0; i < global->n; i++)
			if (global->list[i].allow)
				for_each_element(p, &global->list[i], add_allows, own);
	} else {
		add_allows(p, NULL, has_allow(global) ? global : own);
	}
	if ((has_allow(global) || has_allow(own)) && !p->acl.allows)
		add_element(p, false, "all");
	flush_value(p);
	acl_close(&p->acl);
	/* even if no rule is left: those of the command line are not for it */
	config_last_forward(&p->in)->no_rules = true;
}

/* True if a deny begins with a number, and rinetd's text of an IPv4 client at "::" does not. */
static bool denies_ipv4(const struct accesses *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (!l->list[i].allow && !strchr(l->list[i].pattern, ':') &&
		    strchr("0123456789", *l->list[i].pattern))
			return true;
	return false;
}

/* A listener at "::", or at an IPv4 address in IPv6 form. */
static void note_mapped(struct reader *p)
{
	unsigned int line = config_last_forward(&p->in)->listen_line;

	if (p->clients & CLIENTS_INET6)
		config_note(&p->in, line, "\"::\" is every address, IPv4 too; so it is with rinetd, "
			    "unless net.ipv6.bindv6only is 1: [::]:PORT, in a [forward], is IPv6 "
			    "alone");
	if (denies_ipv4(&p->global) || denies_ipv4(&p->own))
		config_note(&p->in, line, "here rinetd has IPv4 clients as ::ffff:ADDRESS, which no "
			    "deny of ADDRESS matches; culvert refuses them");
}

static void end_forward(struct reader *p)
{
	if (!p->in.text->n || p->in.error)
		return;
	if (p->clients & CLIENTS_MAPPED)
		note_mapped(p);
	if (!p->global.n && !p->has_rules && p->own.n > 1)
		config_note(&p->in, p->own.list[0].line, "rinetd 0.70 to 0.73 does not look at this "
			    "first one of several rules; culvert does");
	if (p->global.n || p->own.n)
		make_rules(p);
	p->has_rules |= p->own.n > 0;
	p->own.n = 0;
}

/* rinetd knows neither ALLOW nor prefixes: they are oi's. */
static void look_for_oi(struct reader *p, const char *word, const char *pattern)
{
	bool lower = !strncmp(word, "allow", 5) || !strncmp(word, "deny", 4);

	if (p->is_oi || (lower && !strchr(pattern, '/')))
		return;
	p->is_oi = true;
	config_note(&p->in, p->in.line, "oi reads allow and deny and enforces none; culvert "
		    "enforces all, behind a forward as its own");
}

static bool is_pattern(const char *pattern)
{
	struct acl acl = { 0 };
	bool is = !pattern[strspn(pattern, "0123456789abcdefABCDEF:.*?/")] &&
		  !acl_add(&acl, true, pattern);

	acl_close(&acl);
	return is;
}

static void take_access(struct reader *p, bool allow, const char *pattern)
{
	struct accesses *l = p->in.text->n ? &p->own : &p->global;
	const char *kept = config_keep(p->in.c, pattern);
	struct access *more = array_grow(l->list, l->n, sizeof(*more));

	if (more)
		l->list = more;
	if (l->n == ACL_RULES_MAX)
		config_mistake(&p->in, "more than %d rules", ACL_RULES_MAX);
	else if (!kept || !more)
		config_no_memory(&p->in);
	else if (!is_pattern(pattern))
		config_mistake(&p->in, "\"%.64s\" is not valid, expected an address, in which ? is "
			       "any character and * any number of them, or a prefix without host "
			       "bits", pattern);
	else
		more[l->n++] = (struct access){ kept, p->in.line, allow };
}

/* --- a forwarding rule --- */

struct end {
	char *host, *port;
};

/* "port/tcp" */
static void cut_protocol(struct reader *p, char *port)
{
	char *slash = strchr(port, '/');

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

/* Which clients come to HOST.  A name may be an address of either family. */
static unsigned int clients_of(const char *host)
{
	if (is_mapped(host))
		return CLIENTS_MAPPED;
	if (strchr(host, ':'))
		return CLIENTS_INET6 | (is_any(host) ? CLIENTS_MAPPED : 0);
	return host[strspn(host, "0123456789.")] ? CLIENTS_INET | CLIENTS_INET6 : CLIENTS_INET;
}

/* E in the words of culvert, kept.  NULL: no memory. */
static const char *address_of(struct reader *p, const struct end *e, bool listen)
{
	char *address = NULL;
	const char *kept;
	int len;

	if (listen && is_any(e->host)) /* rinetd's socket takes IPv4 as well */
		len = asprintf(&address, ":%s", e->port);
	else if (strchr(e->host, ':'))
		len = asprintf(&address, "[%s]:%s", e->host, e->port);
	else
		len = asprintf(&address, "%s:%s", strcmp(e->host, "0") ? e->host : "0.0.0.0",
			       e->port);
	if (len < 0)
		return NULL;
	kept = config_keep(p->in.c, address);
	free(address);
	return kept;
}

/* Name a forward as it listens, as far as the name of a section can say that. */
static void choose_name(const struct reader *p, const char *listen, char name[NAME_ROOM])
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

static void begin_forward(struct reader *p, const struct end *bind, const struct end *connect)
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
	p->clients = clients_of(bind->host);
}

/* Take E from the words W, which end in NULL; returns what is left. */
static char **take_end(struct reader *p, char **w, struct end *e, const char *what)
{
	/* the line that made the file a rinetd.conf: perhaps it was not meant to be */
	const char *why = p->in.line == p->first ? " (the file is read as a rinetd.conf, because "
						   "it does not begin with a [SECTION])" : "";
	size_t len;

	if (!w[0] || !w[1]) {
		config_mistake(&p->in, "%s%s is missing; a rule is " RULE "%s", what,
			       w[0] ? "PORT" : "ADDRESS", why);
		return w;
	}
	*e = (struct end){ w[0], w[1] };
	len = strlen(e->host);
	if (*e->host == '[' && e->host[len - 1] == ']' && strchr(e->host, ':')) {
		e->host[len - 1] = '\0';
		e->host++;
	}
	cut_protocol(p, e->port);
	return w + 2;
}

static void take_timeout(struct reader *p, const char *value)
{
	const char *digits = value + (*value == '-');

	if (!*digits || digits[strspn(digits, "0123456789")])
		config_mistake(&p->in, "timeout: \"%.64s\" is not a whole number", value);
	else if (strcmp(value, "0") != 0)
		config_note(&p->in, p->in.line, "timeout=%.20s ends idle TCP sessions; rinetd has "
			    "it for UDP only", value);
	if (!p->in.error)
		take(p, config_last_forward(&p->in), p->in.line, "timeout", "idle-timeout", value);
}

static void take_source(struct reader *p, const char *value)
{
	bool any = !strcmp(value, "0") || !strcmp(value, "0.0.0.0") || is_any(value);

	take(p, config_last_forward(&p->in), p->in.line, "src", "source", any ? "any" : value);
}

/* TEXT is what is between the brackets. */
static void take_options(struct reader *p, char *text)
{
	while (text && !p->in.error) {
		char *name = strsep(&text, ","), *value = strchr(name, '=');

		if (value)
			*value++ = '\0';
		name = trim(name);
		if (strcmp(name, "timeout") != 0 && strcmp(name, "src") != 0)
			config_mistake(&p->in, "[%.64s]: unknown option, expected timeout or src",
				       name);
		else if (!value)
			config_mistake(&p->in, "[%s]: needs a value", name);
		else if (*name == 't')
			take_timeout(p, trim(value));
		else
			take_source(p, trim(value));
	}
}

/* Where LINE has "[option=", which is no IPv6 address; NULL: nowhere. */
static char *find_options(char *line)
{
	for (char *at = strchr(line, '['); at; at = strchr(at + 1, '[')) {
		const char *name = at + 1 + strspn(at + 1, BLANKS);
		size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz-");

		if (name[len + strspn(name + len, BLANKS)] == '=')
			return at;
	}
	return NULL;
}

static void take_rule(struct reader *p, char *line)
{
	char *options_at = find_options(line), *words[8] = { NULL }, **w = words, *end;
	struct end bind = { 0 }, connect = { 0 };

	if (options_at) {
		end = strrchr(options_at, ']');
		*options_at++ = '\0';
		if (!end || end[1 + strspn(end + 1, BLANKS)])
			config_mistake(&p->in, "%s", end ?
				       "nothing but a comment may follow \"]\"" :
				       "\"[\" without \"]\"");
		else
			*end = '\0';
	}
	for (size_t n = 0; n < 7 && *(line += strspn(line, BLANKS)); n++) {
		words[n] = line;
		line += strcspn(line, BLANKS);
		if (*line)
			*line++ = '\0';
	}
	w = take_end(p, w, &bind, "BIND");
	if (!p->in.error)
		w = take_end(p, w, &connect, "CONNECT");
	if (!p->in.error && *w)
		config_mistake(&p->in, "\"%.64s\": nothing but [OPTION=VALUE,...] and a "
			       "comment may follow a rule", *w);
	if (p->in.error)
		return;
	end_forward(p);
	if (!p->in.error)
		begin_forward(p, &bind, &connect);
	if (!p->in.error && options_at)
		take_options(p, options_at);
}

/* --- lines --- */

/* A file that rinetd writes; KEY is culvert's word for WORD. */
static void take_file(struct reader *p, const char *word, const char *key, char *value)
{
	size_t len = strlen(value);

	if (*value == '"' && len > 2 && value[len - 1] == '"') {
		value[len - 1] = '\0';
		value++;
	}
	if (!*value)
		config_mistake(&p->in, "%s: needs a value", word);
	else if (value[strcspn(value, BLANKS)])
		config_mistake(&p->in, "%s: \"%.64s\" is more than one word", word, value);
	else
		take(p, NULL, p->in.line, word, key, value);
}

static bool is_word(const char *line, size_t len, const char *word)
{
	return strlen(word) == len && !strncasecmp(line, word, len);
}

static void take_line(struct reader *p, char *line)
{
	size_t len;
	char *rest;

	/* a comment begins with the line, behind a blank or behind options: not within a word */
	for (char *at = strchr(line, '#'); at; at = strchr(at + 1, '#'))
		if (at == line || strchr(BLANKS "]", at[-1]))
			*at = '\0';
	line = trim(line);
	if (!*line)
		return;
	p->first = p->first ?: p->in.line;
	len = strcspn(line, BLANKS);
	rest = line + len + strspn(line + len, BLANKS);
	if (is_word(line, len, "allow") || is_word(line, len, "deny")) {
		take_access(p, len == strlen("allow"), rest);
		look_for_oi(p, line, rest);
	} else if (!strncmp(line, "[culvert", 8) || !strncmp(line, "[forward", 8)) {
		config_mistake(&p->in, "a section, but line %u made this a rinetd.conf: a file "
			       "has one form", p->first);
	} else if (is_word(line, len, "logfile")) {
		take_file(p, "logfile", "session-log", rest);
		config_note(&p->in, p->in.line, "logfile: culvert writes a line of JSON for each "
			    "session");
	} else if (is_word(line, len, "pidlogfile")) {
		take_file(p, "pidlogfile", "pid-file", rest);
	} else if (is_word(line, len, "logcommon")) {
		config_mistake(&p->in, "logcommon: culvert has a log format of its own");
	} else {
		take_rule(p, line);
	}
}

int rinetd_parse(FILE *f, struct config *c, struct config_text *text)
{
	struct reader p = { .in = { .c = c, .text = text, .f = f } };
	char line[CONFIG_LINE_ROOM];

	text->is_rinetd = true;
	while (config_next_line(&p.in, line, sizeof(line)))
		take_line(&p, line);
	end_forward(&p);
	if (p.global.n && !text->n)
		config_note(&p.in, p.global.list[0].line, "allow and deny are for the rules of this "
			    "file, and it has none");
	free(p.global.list);
	free(p.own.list);
	acl_close(&p.acl);
	return p.in.error;
}

/* --- which form? --- */

/* TEXT begins with the first word of the file. */
static bool begins_rinetd(const char *text)
{
	size_t len = strcspn(text, BLANKS "=\r\n");

	if (*text == '[') /* an IPv6 address in brackets is no section */
		return text[1 + strspn(text + 1, "0123456789abcdefABCDEF:.%")] == ']' &&
		       memchr(text, ':', len);
	return *text && text[len + strspn(text + len, BLANKS)] != '=';
}

bool rinetd_is(FILE *f)
{
	char text[256];
	size_t n = 0, looked = 0;
	bool comment = false;
	int ch;

	while (looked++ < CONFIG_FILE_MAX && n + 1 < sizeof(text) && (ch = getc(f)) != EOF) {
		if (ch == '\n') {
			if (n)
				break;
			comment = false;
			continue;
		}
		if (!n && !comment && ch && strchr(BLANKS "\r\v\f" "\xef\xbb\xbf", ch))
			continue;
		comment |= !n && (ch == '#' || ch == ';');
		if (!comment)
			text[n++] = (char)ch;
	}
	text[n] = '\0';
	rewind(f);
	return begins_rinetd(text);
}
