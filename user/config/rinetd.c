// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each line becomes the lines that a file with sections would have.  A
 * forwarding rule begins a forward.  The allow and deny lines after the rule are kept until the
 * next rule, or the end of the file.  Together with those at the top of the file, they become the
 * `deny` and `allow` of the forward.
 *
 * rinetd refuses a client that any deny matches.  If there are allow lines at the top, one of them
 * must match.  If there are allow lines after the forward, one of them must match, too.  The order
 * of lines means nothing.  Here the first rule that matches decides.  So deny comes first, and the
 * allow rules of both lists become pairs: A&B.
 *
 * rinetd compares patterns with the text of an address, as culvert does (acl.h).  But at a listener
 * at "::" rinetd sees IPv4 clients as "::ffff:192.0.2.1", and culvert sees 192.0.2.1: a pattern
 * loses its "::ffff:".
 *
 * There may be thousands of rules before the first forward.  Such rules become the rules of
 * [culvert], which forwards without rules of their own share.
 */
#include "config/rinetd.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/file.h"

#define BLANKS " \t"
#define RULES_MAX 4096 /* of a forward: two lists may become their product */
#define MAPPED "::ffff:"
#define UDP_TIMEOUT "72" /* seconds: rinetd's */

enum { DENY, ALLOW };

struct reader {
	struct config_reader *in;
	struct config_lines top[2], own[2]; /* OWN: of the last forward */
};

/* --- allow and deny --- */

static void append(struct config_lines *to, const struct config_lines *from)
{
	for (size_t i = 0; i < from->n; i++)
		config_lines_add(to, from->lines[i]);
}

/* Allow clients that match a rule of each of the two lists, which are not empty. */
static void append_both(struct reader *p, struct forward_conf *fc)
{
	size_t n_own = p->own[ALLOW].n, n = p->top[ALLOW].n * n_own;

	if (n > RULES_MAX)
		config_mistake_at(p->in, fc->place, "more than %d rules", RULES_MAX);
	for (size_t i = 0; i < n && n <= RULES_MAX; i++) {
		const struct config_line *a = &p->top[ALLOW].lines[i / n_own];
		const struct config_line *b = &p->own[ALLOW].lines[i % n_own];
		const char *both = config_keep(p->in->c, "%s&%s", a->value, b->value);

		config_lines_add(&fc->said,
				 (struct config_line){ a->option, a->key, both, b->place });
	}
}

/*
 * FC ("*:PORT") listens on "::".  There rinetd sees IPv4 clients as ::ffff:192.0.2.7.  No pattern
 * that begins with a digit matches such text.  So make IPv4 patterns match nobody.
 */
static void match_nobody(struct reader *p, struct forward_conf *fc)
{
	for (struct config_line *l = fc->said.lines; l < fc->said.lines + fc->said.n; l++)
		if (l->option->list && isdigit((unsigned char)*l->value) &&
		    !strpbrk(l->value, ":/")) /* the line "listen" has a colon */
			l->value = config_keep(p->in->c, "%s&::/0", l->value);
}

/* Make the rules of the last forward, if there is one. */
static void end_forward(struct reader *p)
{
	struct forward_conf *fc = p->in->forward;

	if (!fc)
		return;
	p->in->forward = NULL;
	if (!p->own[DENY].n && !p->own[ALLOW].n && *fc->name != '*')
		return; /* it inherits the rules at the top, see rinetd_read() */
	append(&fc->said, &p->top[DENY]);
	append(&fc->said, &p->own[DENY]);
	if (p->top[ALLOW].n && p->own[ALLOW].n) {
		append_both(p, fc);
	} else {
		append(&fc->said, &p->top[ALLOW]);
		append(&fc->said, &p->own[ALLOW]);
	}
	if (*fc->name == '*')
		match_nobody(p, fc);
	p->own[DENY].n = 0;
	p->own[ALLOW].n = 0;
}

/* NAME: allow or deny. */
static void take_access(struct reader *p, const char *name, const char *pattern)
{
	bool mapped = !strncasecmp(pattern, MAPPED, strlen(MAPPED));
	const char *value = config_keep(p->in->c, "%s%s", pattern + (mapped ? strlen(MAPPED) : 0),
					mapped ? "&0.0.0.0/0" : "");
	struct config_lines *rules = p->in->forward ? p->own : p->top;
	struct acl scratch = { 0 };

	if (pattern[strspn(pattern, "0123456789abcdefABCDEF:.*?/")] ||
	    acl_add(&scratch, true, value))
		config_mistake(p->in,
			       "\"%.64s\": expected an address, in which ? is any character "
			       "and * any number of them, or a prefix without host bits",
			       pattern);
	acl_close(&scratch);
	if (p->in->mistaken)
		return;
	config_lines_add(&rules[*name == 'd' ? DENY : ALLOW],
			 (struct config_line){ option_find(name, SCOPE_FORWARD), name, value,
					       config_here(p->in) });
}

/* --- lines --- */

/* Cut the next word off *TEXT; "": there is none. */
static char *next_word(char **text)
{
	return strtok_r(*text, BLANKS, text) ?: *text;
}

/* Refuse anything but a comment in REST, the end of a line. */
static void end_line(struct reader *p, char *rest)
{
	const char *word = next_word(&rest);

	if (*word && *word != '#')
		config_mistake(p->in, "\"%.64s\": nothing but a comment may follow", word);
}

/* TEXT, if not NULL, is the text between the brackets after a rule.  UDP: the rule is of UDP. */
static void take_options(struct reader *p, char *text, bool udp)
{
	struct forward_conf *fc = p->in->forward;
	const struct option_def *timeout = option_find("idle-timeout", SCOPE_FORWARD);

	while (text && !p->in->mistaken) {
		const char *item = strsep(&text, ",");
		char name[16] = "", value[64] = "";
		int n = 0;

		sscanf(item, " %15[^= \t] = %63s %n", name, value, &n);
		if (!strcmp(value, "0"))
			strcpy(value, "0.0.0.0");
		if (n && !item[n] && !strcmp(name, "src"))
			config_take(p->in, fc, option_find("source", SCOPE_FORWARD), "src", value);
		else if (!n || item[n] || strcmp(name, "timeout") != 0)
			config_mistake(p->in, "[%.64s]: expected timeout=SECONDS or src=ADDRESS",
				       item);
		else if (udp && value[strspn(value, "0.")]) /* 0: the default; TCP: ignored */
			config_take(p->in, fc, timeout, "timeout", value);
	}
	if (udp && !p->in->mistaken && !option_line(&fc->said, timeout->name))
		config_take(p->in, fc, timeout, "timeout", UDP_TIMEOUT);
}

/* Cut the protocol off PORT.  True: UDP. */
static bool take_protocol(struct reader *p, char *port)
{
	char *protocol = port;
	bool udp;

	strsep(&protocol, "/"); /* NULL: there is none */
	udp = protocol && !strcasecmp(protocol, "udp");
	if (protocol && !udp && strcasecmp(protocol, "tcp") != 0)
		config_mistake(p->in, "%.64s/%.64s: expected /tcp or /udp", port, protocol);
	return udp;
}

/* HOST and PORT in the words of culvert. */
static const char *address_of(struct reader *p, const char *host, const char *port,
			      const char *protocol)
{
	return config_keep(p->in->c, strchr(host, ':') ? "[%s]:%s%s" : "%s:%s%s",
			   strcmp(host, "0") != 0 ? host : "0.0.0.0", port, protocol);
}

static void begin_forward(struct reader *p, char *words[4], bool udp)
{
	const char *protocol = udp ? "/udp" : "";
	bool any = strchr(words[0], ':') && !words[0][strspn(words[0], ":0")];
	const char *listen = address_of(p, any ? "" : words[0], words[1], protocol); /* IPv4, too */
	const char *upstream = address_of(p, words[2], words[3], ""), *name = listen;

	if (any)
		name = config_keep(p->in->c, "*%s", listen);
	else if (*listen == '[') /* a section's name has no brackets */
		name = config_keep(p->in->c, "%s:%s%s", words[0], words[1], protocol);
	config_begin_forward(p->in, name);
	config_take(p->in, p->in->forward, option_find("listen", SCOPE_FORWARD), "listen", listen);
	config_take(p->in, p->in->forward, option_find("upstream", SCOPE_FORWARD), "upstream",
		    upstream);
}

/* FIRST is the first word of the line, and REST the words behind it. */
static void take_rule(struct reader *p, char *first, char *rest)
{
	char *words[4] = { first }, *options = rest, *end;
	bool udp;

	strsep(&options, "["); /* NULL: there are none */
	end = options;
	strsep(&end, "]");
	if (options && !end)
		config_mistake(p->in, "\"[\" without \"]\"");
	for (int i = 1; i < 4; i++) {
		words[i] = next_word(&rest);
		if (*words[i])
			continue;
		config_mistake(p->in, "expected BINDADDRESS BINDPORT CONNECTADDRESS CONNECTPORT; "
				      "a file of culvert begins with a [SECTION]");
		if (!p->in->c->n_forwards) /* it is the file of another program */
			p->in->rest = NULL;
	}
	end_line(p, rest);
	end_forward(p);
	udp = take_protocol(p, words[1]);
	if (take_protocol(p, words[3]) != udp)
		config_mistake(p->in,
			       "/udp on one side: culvert translates no protocol to another");
	if (p->in->mistaken)
		return;
	begin_forward(p, words, udp);
	take_options(p, options, udp);
	if (end)
		end_line(p, end);
}

/* Take REST, the name of a file that rinetd writes.  KEY is culvert's word for WORD. */
static void take_file(struct reader *p, const char *word, const char *key, char *rest)
{
	char *value = next_word(&rest);

	if (strpbrk(value, ";#\"")) /* `culvert convert` would write it as a comment */
		config_mistake(p->in, "%s: culvert takes no file name with ; # or quotes", word);
	config_take(p->in, NULL, option_find(key, SCOPE_CULVERT), word, value);
	end_line(p, rest);
}

static void take_line(struct reader *p, char *line)
{
	char *word;

	line += strspn(line, BLANKS);
	if (strncmp(line, "logfile", 7) != 0 && strncmp(line, "pidlogfile", 10) != 0)
		line[strcspn(line, "#")] = '\0'; /* the name of a file may have a "#" */
	word = next_word(&line);
	if (!strcasecmp(word, "allow") || !strcasecmp(word, "deny")) { /* oi writes capitals */
		take_access(p, strlen(word) == 4 ? "deny" : "allow", next_word(&line));
		end_line(p, line);
	} else if (!strcmp(word, "logfile")) {
		take_file(p, "logfile", "session-log", line);
	} else if (!strcmp(word, "pidlogfile")) {
		take_file(p, "pidlogfile", "pid-file", line);
	} else if (!strcmp(word, "logcommon")) {
		config_mistake(p->in, "logcommon: culvert has a log format of its own");
	} else if (!strcmp(word, "include")) {
		config_mistake(p->in, "include: a rinetd.conf is one file");
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
	for (int i = DENY; i <= ALLOW; i++) {
		append(&r->c->said, &p.top[i]);
		free(p.top[i].lines);
		free(p.own[i].lines);
	}
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
