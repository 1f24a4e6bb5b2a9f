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
 * rinetd compares patterns with the text of an address, as culvert does (acl.h).  But at a listener
 * at "::" rinetd sees IPv4 clients as "::ffff:192.0.2.1", and culvert sees 192.0.2.1: a pattern
 * loses its "::ffff:".
 *
 * There may be thousands of rules at the top.  They become those of [culvert], which forwards
 * without rules of their own share.
 */
#include "config/rinetd.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/file.h"

#define BLANKS " \t"
#define RULES_MAX 4096 /* of a forward: two lists may become their product */
#define MAPPED "::ffff:"

struct reader {
	struct config_reader *in;
	struct config_lines top, own; /* allow and deny; OWN: of the last forward */
};

/* --- allow and deny --- */

/* Add ELEMENT, which is kept, to the rules of the last forward. */
static void add_rule(struct reader *p, const struct option_def *o, const char *element)
{
	struct forward_conf *fc = config_last_forward(p->in);

	if (fc->said.n > RULES_MAX)
		config_mistake_at(p->in, fc->place, "more than %d rules", RULES_MAX);
	else
		config_lines_add(&fc->said, (struct config_line){
			o, o->name, element, config_here(p->in) });
}

static void add_all(struct reader *p, const struct config_lines *l, enum option_kind kind)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->lines[i].option->kind == kind)
			add_rule(p, l->lines[i].option, l->lines[i].value);
}

/* Allow whom an allow of both lists matches. */
static void add_both(struct reader *p)
{
	for (size_t i = 0; i < p->top.n * p->own.n && !p->in->error; i++) {
		const struct config_line *a = &p->top.lines[i / p->own.n];
		const struct config_line *b = &p->own.lines[i % p->own.n];

		if (a->option->kind != KIND_ALLOW || b->option->kind != KIND_ALLOW)
			continue;
		add_rule(p, a->option, config_keep(p->in->c, "%s&%s", a->value, b->value));
	}
}

/* Make the rules of the last forward, if there is one. */
static void end_forward(struct reader *p)
{
	bool top_allows = option_line(&p->top, "allow");
	bool own_allows = option_line(&p->own, "allow");

	if (!p->in->c->n_forwards || p->in->error)
		return;
	if (!p->own.n)
		return; /* it has the rules at the top: rinetd_read() */
	add_all(p, &p->top, KIND_DENY);
	add_all(p, &p->own, KIND_DENY);
	if (top_allows && own_allows)
		add_both(p);
	else
		add_all(p, top_allows ? &p->top : &p->own, KIND_ALLOW);
	p->own.n = 0;
}

static void take_access(struct reader *p, const struct option_def *o, const char *pattern)
{
	bool mapped = !strncasecmp(pattern, MAPPED, strlen(MAPPED));
	const char *value = config_keep(p->in->c, "%s%s", pattern + (mapped ? strlen(MAPPED) : 0),
					mapped ? "&0.0.0.0/0" : "");
	struct acl scratch = { 0 };

	if (pattern[strspn(pattern, "0123456789abcdefABCDEF:.*?/")] ||
	    acl_add(&scratch, true, value))
		config_mistake(p->in, "\"%.64s\": expected an address, in which ? is any character "
			       "and * any number of them, or a prefix without host bits", pattern);
	acl_close(&scratch);
	config_lines_add(p->in->c->n_forwards ? &p->own : &p->top, (struct config_line){
		o, o->name, value, config_here(p->in) });
}

/* --- lines --- */

/* Cut the next word off *TEXT; "": there is none. */
static char *next_word(char **text)
{
	char *word = *text + strspn(*text, BLANKS);

	*text = word + strcspn(word, BLANKS);
	if (**text)
		*(*text)++ = '\0';
	return word;
}

/* Refuse anything but a comment in REST, the end of a line. */
static void end_line(struct reader *p, char *rest)
{
	const char *word = next_word(&rest);

	if (*word && *word != '#')
		config_mistake(p->in, "\"%.64s\": nothing but a comment may follow", word);
}

/* TEXT is what stands between the brackets behind a rule.  rinetd has `timeout` for UDP only. */
static void take_options(struct reader *p, char *text)
{
	while (text && !p->in->error) {
		const char *item = strsep(&text, ",");
		char name[16] = "", value[64] = "";
		int n = 0;

		sscanf(item, " %15[^= \t] = %63s %n", name, value, &n);
		if (!strcmp(value, "0"))
			strcpy(value, "0.0.0.0");
		if (n && !item[n] && !strcmp(name, "src"))
			config_take(p->in, config_last_forward(p->in), option_find("source", SCOPE_FORWARD),
				    "src", value);
		else if (!n || item[n] || strcmp(name, "timeout") != 0)
			config_mistake(p->in, "[%.64s]: expected timeout=SECONDS or src=ADDRESS",
				       item);
	}
}

/* HOST, and PORT with or without "/tcp", in the words of culvert. */
static const char *address_of(struct reader *p, const char *host, char *port)
{
	char *slash = strchr(port, '/');

	if (slash && strcasecmp(slash, "/tcp") != 0)
		config_mistake(p->in, "%.64s: culvert does not forward UDP", port);
	if (slash)
		*slash = '\0';
	return config_keep(p->in->c, strchr(host, ':') ? "[%s]:%s" : "%s:%s",
			   strcmp(host, "0") != 0 ? host : "0.0.0.0", port);
}

static void begin_forward(struct reader *p, char *words[4])
{
	struct in6_addr in6 = in6addr_loopback;
	bool any = inet_pton(AF_INET6, words[0], &in6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&in6);
	const char *listen = address_of(p, any ? "" : words[0], words[1]); /* IPv4, too */
	const char *upstream = address_of(p, words[2], words[3]);
	struct forward_conf *fc;

	/* A section's name has no brackets. */
	fc = config_begin_forward(p->in, any ? config_keep(p->in->c, "*%s", listen) :
			       *listen == '[' ? config_keep(p->in->c, "%s:%s", words[0], words[1]) :
						listen);
	if (!fc)
		return;
	config_take(p->in, fc, option_find("listen", SCOPE_FORWARD), "listen", listen);
	config_take(p->in, fc, option_find("upstream", SCOPE_FORWARD), "upstream", upstream);
}

/* FIRST is the first word of the line, and REST what follows. */
static void take_rule(struct reader *p, char *first, char *rest)
{
	char *words[4] = { first }, *options = strchr(rest, '['), *end = NULL;

	if (options) {
		*options++ = '\0';
		end = strchr(options, ']');
		if (end)
			*end++ = '\0';
		else
			config_mistake(p->in, "\"[\" without \"]\"");
	}
	for (int i = 1; i < 4; i++) {
		words[i] = next_word(&rest);
		if (!*words[i])
			config_mistake(p->in, "expected BINDADDRESS BINDPORT CONNECTADDRESS "
				       "CONNECTPORT; a file of culvert begins with a [SECTION]");
	}
	end_line(p, rest);
	end_forward(p);
	if (!p->in->error)
		begin_forward(p, words);
	if (!p->in->error && end) {
		take_options(p, options);
		end_line(p, end);
	}
}

/* Take REST, the name of a file that rinetd writes.  KEY is culvert's word for WORD. */
static void take_file(struct reader *p, const char *word, const char *key, char *rest)
{
	char *value = next_word(&rest);

	if (strpbrk(value, ";#\"")) /* a comment, where `culvert convert` would write it */
		config_mistake(p->in, "%s: culvert takes no file name with ; # or quotes", word);
	config_take(p->in, NULL, option_find(key, SCOPE_CULVERT), word, value);
	end_line(p, rest);
}

static void take_line(struct reader *p, char *line)
{
	char *word;

	line += strspn(line, BLANKS);
	if (strncmp(line, "logfile", 7) != 0 && strncmp(line, "pidlogfile", 10) != 0)
		line[strcspn(line, "#")] = '\0'; /* the name of a file may have it */
	word = next_word(&line);
	if (!strcasecmp(word, "allow") || !strcasecmp(word, "deny")) { /* oi has capitals */
		take_access(p, option_find(strlen(word) == 4 ? "deny" : "allow", SCOPE_FORWARD), next_word(&line));
		end_line(p, line);
	} else if (!strcmp(word, "logfile")) {
		take_file(p, "logfile", "session-log", line);
	} else if (!strcmp(word, "pidlogfile")) {
		take_file(p, "pidlogfile", "pid-file", line);
	} else if (!strcmp(word, "logcommon")) {
		config_mistake(p->in, "logcommon: culvert has a log format of its own");
	} else if (*word) {
		take_rule(p, word, line);
	}
}

void rinetd_read(struct config_reader *r)
{
	struct reader p = { .in = r };
	char *line;

	while ((line = config_next_line(r)))
		take_line(&p, line);
	end_forward(&p);
	for (int deny = 1; deny >= 0; deny--) /* first all that deny */
		for (size_t i = 0; i < p.top.n; i++)
			if ((p.top.lines[i].option->kind == KIND_DENY) == deny)
				config_lines_add(&r->c->said, p.top.lines[i]);
	free(p.top.lines);
	free(p.own.lines);
}

bool rinetd_is(const char *text)
{
	size_t len;

	text += strspn(text, BLANKS "\r\n");
	while (*text == '#' || *text == ';') {
		text += strcspn(text, "\n");
		text += strspn(text, BLANKS "\r\n");
	}
	len = strcspn(text, BLANKS "=\r\n");
	return *text && *text != '[' && text[len + strspn(text + len, BLANKS)] != '=';
}
