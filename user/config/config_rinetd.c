// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each line becomes what a file with sections would say.  A rule begins a
 * forward; the rules of access behind it are kept until the next one, or the end of the file, and
 * become that forward's `deny` and `allow` together with those at the top (rinetd_rules.h).  All
 * values pass through the table of options, so a key that it has not is refused here as well.
 *
 * The first mistake ends the reading.
 */
#include "config/config_rinetd.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "config/rinetd_reader.h"

void rinetd_note(struct rinetd_reader *p, unsigned int line, const char *fmt, ...)
{
	char text[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!p->in.error && config_text_note(p->in.c, p->in.text, line, text))
		config_no_memory(&p->in);
}

const struct rinetd_word *rinetd_find_word(const struct rinetd_word *words, const char *name)
{
	while (words->name && strcmp(words->name, name))
		words++;
	return words->name ? words : NULL;
}

void rinetd_take_word(struct rinetd_reader *p, const struct rinetd_word *w, struct forward_text *t,
		      const char *value)
{
	const struct option_def *o = w->key ? option_find_key(w->key, t) : NULL;

	if (o)
		config_take(&p->in, p->in.line, t, o, w->name, value);
	else
		config_mistake(&p->in, "%s: %s", w->name,
			       w->why_not ? w->why_not : "this culvert cannot do that");
}

char *rinetd_trim(char *text)
{
	size_t len;

	text += strspn(text, RINETD_BLANKS);
	len = strlen(text);
	while (len && strchr(RINETD_BLANKS, text[len - 1]))
		text[--len] = '\0';
	return text;
}

/* --- words for all forwards --- */

static const struct rinetd_word globals[] = {
	{ "logfile", "session-log", NULL },
	{ "logcommon", NULL, "culvert has a log format of its own" },
	{ "pidlogfile", "pid-file", NULL },
	{ "pidfile", "pid-file", NULL },
	{ "buffersize", "copy-buffer", NULL },
	{ "connect-timeout", "connect-timeout", NULL },
	{ "include", NULL, "culvert reads one file: put the lines of the other one here" },
	{ "dns-refresh", "resolve-interval", NULL },
	{ "dns-multi-ip-expand", NULL, "all addresses of a name are tried in order" },
	{ "dns-multi-ip-proto", NULL, "all addresses of a name are tried in order" },
	{ "listen-backlog", NULL, "culvert chooses it" },
	{ "max-udp-connections", NULL, "culvert does not forward UDP" },
	{ "pool-min-free", NULL, "culvert has no pool of buffers to tune" },
	{ "pool-max-free", NULL, "culvert has no pool of buffers to tune" },
	{ "pool-trim-delay", NULL, "culvert has no pool of buffers to tune" },
	{ "statusfile", NULL, "ask `culvert status --json`" },
	{ "statusformat", NULL, "ask `culvert status --json`" },
	{ "statusinterval", NULL, "ask `culvert status --json`" },
	{ "statsloginterval", NULL, "ask `culvert status --json`" },
	{ NULL, NULL, NULL }
};

/* --- lines --- */

/* LINE begins with one of these words.  rinetd knows neither ALLOW nor prefixes: it is oi's. */
static void look_for_oi(struct rinetd_reader *p, const char *line, const char *pattern)
{
	bool lower = !strncmp(line, "allow", 5) || !strncmp(line, "deny", 4);

	if (p->is_oi || (lower && !strchr(pattern, '/')))
		return;
	p->is_oi = true;
	rinetd_note(p, p->in.line, "oi reads allow and deny and enforces none; culvert enforces "
		    "all, behind a forward as its own");
}

/* `allow` or `deny`, and its PATTERN. */
static void take_access(struct rinetd_reader *p, bool allow, const char *pattern)
{
	struct rinetd_rules *l = p->in.text->n ? &p->own : &p->global;
	const char *kept = config_keep(p->in.c, pattern);
	int r = kept ? rinetd_rules_add(l, allow, kept, p->in.line) : -ENOMEM;

	if (r == -EINVAL)
		config_mistake(&p->in, "\"%.64s\" is not valid, expected an address, in which "
			       "? is any character and * any number of them, or a prefix without "
			       "host bits", pattern);
	else if (r == -ENOENT)
		config_mistake(&p->in, "\"%.64s\" matches nobody: no address is written like "
			       "this", pattern);
	else if (r == -E2BIG)
		config_mistake(&p->in, "\"%.64s\": that would be more than %d addresses and "
			       "prefixes", pattern, RULE_SET_MAX);
	else if (r)
		config_no_memory(&p->in);
}

static void take_global(struct rinetd_reader *p, const struct rinetd_word *w, char *value)
{
	bool is_file = w->key && (!strcmp(w->key, "session-log") || !strcmp(w->key, "pid-file"));
	size_t len = strlen(value);

	if (is_file && *value == '"' && len > 2 && value[len - 1] == '"') {
		value[len - 1] = '\0';
		value++;
	}
	if (w->key && !*value)
		config_mistake(&p->in, "%s: needs a value", w->name);
	else if (w->key && value[strcspn(value, RINETD_BLANKS)])
		config_mistake(&p->in, "%s: \"%.64s\" is more than one word", w->name, value);
	else
		rinetd_take_word(p, w, NULL, value);
	if (is_file && !strcmp(w->name, "logfile"))
		rinetd_note(p, p->in.line, "logfile: culvert writes a line of JSON for each "
			    "session");
}

static void take_line(struct rinetd_reader *p, char *line)
{
	size_t len;
	char *rest;
	const struct rinetd_word *w;

	/* a comment begins with the line, behind a blank or behind options: not within a word */
	for (char *at = strchr(line, '#'); at; at = strchr(at + 1, '#'))
		if (at == line || strchr(RINETD_BLANKS "]", at[-1]))
			*at = '\0';
	line = rinetd_trim(line);
	if (!*line)
		return;
	p->first = p->first ?: p->in.line;
	len = strcspn(line, RINETD_BLANKS);
	rest = line + len + strspn(line + len, RINETD_BLANKS);
	if ((len == 5 && !strncasecmp(line, "allow", len)) ||
	    (len == 4 && !strncasecmp(line, "deny", len))) {
		take_access(p, len == 5, rest);
		look_for_oi(p, line, rest);
	} else if (!strncmp(line, "[culvert", 8) || !strncmp(line, "[forward", 8)) {
		config_mistake(&p->in, "a section, but line %u made this a rinetd.conf: a file "
			       "has one form", p->first);
	} else {
		char first = line[len];

		line[len] = '\0';
		w = rinetd_find_word(globals, line);
		line[len] = first;
		if (w)
			take_global(p, w, rest);
		else
			rinetd_take_rule(p, line);
	}
}

int config_rinetd_parse(FILE *f, const char *path, struct config *c, struct config_text *text)
{
	struct rinetd_reader p = { .in = { .c = c, .text = text, .f = f, .path = path } };
	char line[CONFIG_LINE_ROOM];

	text->is_rinetd = true;
	while (config_next_line(&p.in, line, sizeof(line)))
		take_line(&p, line);
	rinetd_end_forward(&p);
	if (p.global.n && !text->n)
		rinetd_note(&p, p.global.rules[0].line, "allow and deny are for the rules of this "
			    "file, and it has none");
	rinetd_rules_close(&p.global);
	return p.in.error;
}

/* --- which form? --- */

/* TEXT begins with the first word of the file. */
static bool begins_rinetd(const char *text)
{
	size_t len = strcspn(text, RINETD_BLANKS "=\r\n");

	if (*text == '[') /* an IPv6 address in brackets is no section */
		return text[1 + strspn(text + 1, "0123456789abcdefABCDEF:.%")] == ']' &&
		       memchr(text, ':', len);
	return *text && text[len + strspn(text + len, RINETD_BLANKS)] != '=';
}

bool config_rinetd_is(FILE *f)
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
		if (!n && !comment && ch && strchr(RINETD_BLANKS "\r\v\f\xef\xbb\xbf", ch))
			continue;
		comment |= !n && (ch == '#' || ch == ';');
		if (!comment)
			text[n++] = (char)ch;
	}
	text[n] = '\0';
	rewind(f);
	return begins_rinetd(text);
}
