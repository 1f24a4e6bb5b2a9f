// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each line becomes what a file with sections would say.  A rule begins a
 * forward; the rules of access behind it are kept until the next one, or the end of the file, and
 * become that forward's `deny` and `allow` together with those at the top (rinetd_rules.h).  All
 * values pass through the table of options, so a key that it has not is refused here as well.
 *
 * The first mistake ends the reading.
 */
#include "config_rinetd.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "config_file.h"
#include "log.h"
#include "rinetd_reader.h"

#define LINE_ROOM 16384 /* rinetd 0.62 cut longer ones into two */
#define BOM "\xef\xbb\xbf"

void rinetd_mistake(struct rinetd_reader *p, unsigned int line, const char *fmt, ...)
{
	char text[OPTION_WRONG_LEN + 64], at[CONFIG_PLACE_LEN];
	va_list ap;

	if (p->error)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	p->error = log_complain(-EINVAL, "%s%s", config_place(p->path, line, at), text);
}

void rinetd_no_memory(struct rinetd_reader *p)
{
	if (!p->error)
		p->error = log_complain(-ENOMEM, "out of memory");
}

void rinetd_note(struct rinetd_reader *p, unsigned int line, const char *fmt, ...)
{
	char text[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!p->error && config_text_note(p->c, p->text, line, text))
		rinetd_no_memory(p);
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
	char buf[OPTION_WRONG_LEN];
	int r;

	if (!o) {
		rinetd_mistake(p, p->line, "%s: %s", w->name,
			       w->why_not ? w->why_not : "this culvert cannot do that");
		return;
	}
	r = config_text_take(p->c, p->text, t, o, value, p->line, buf);
	if (r == -ENOMEM)
		rinetd_no_memory(p);
	else if (r)
		rinetd_mistake(p, p->line, "%s: %s", w->name, buf);
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

/* `allow` or `deny`, and its PATTERN. */
static void take_access(struct rinetd_reader *p, bool allow, const char *pattern)
{
	struct rinetd_rules *l = p->text->n ? &p->own : &p->global;
	const char *kept = config_keep(p->c, pattern);
	int r = kept ? rinetd_rules_add(l, allow, kept, p->line) : -ENOMEM;

	if (r == -EINVAL)
		rinetd_mistake(p, p->line, "\"%.64s\" is not valid, expected an address, in which "
			       "? is any character and * any number of them, or a prefix without "
			       "host bits", pattern);
	else if (r == -ENOENT)
		rinetd_mistake(p, p->line, "\"%.64s\" matches nobody: no address is written like "
			       "this", pattern);
	else if (r == -E2BIG)
		rinetd_mistake(p, p->line, "\"%.64s\": that would be more than %d addresses and "
			       "prefixes", pattern, RULE_SET_MAX);
	else if (r)
		rinetd_no_memory(p);
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
		rinetd_mistake(p, p->line, "%s: needs a value", w->name);
	else if (w->key && value[strcspn(value, RINETD_BLANKS)])
		rinetd_mistake(p, p->line, "%s: \"%.64s\" is more than one word", w->name, value);
	else
		rinetd_take_word(p, w, NULL, value);
	if (is_file && !strcmp(w->name, "logfile"))
		rinetd_note(p, p->line, "logfile: culvert writes a line of JSON for each session");
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
	p->first = p->first ?: p->line;
	len = strcspn(line, RINETD_BLANKS);
	rest = line + len + strspn(line + len, RINETD_BLANKS);
	if (!strncasecmp(line, "allow", len) && len == 5) {
		take_access(p, true, rest);
	} else if (!strncasecmp(line, "deny", len) && len == 4) {
		take_access(p, false, rest);
	} else if (!strncmp(line, "[culvert", 8) || !strncmp(line, "[forward", 8)) {
		rinetd_mistake(p, p->line, "a section, but line %u made this a rinetd.conf: a file "
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

/* The next line, without its end; false: there is none. */
static bool read_line(struct rinetd_reader *p, char *buf)
{
	size_t n = 0;
	int ch = 0;

	p->line++;
	while (n < LINE_ROOM && (ch = getc(p->f)) != EOF && ch != '\n') {
		if (!ch)
			rinetd_mistake(p, p->line, "a NUL byte");
		buf[n++] = (char)ch;
	}
	p->bytes += n + 1;
	if (ch == EOF && ferror(p->f) && !p->error)
		p->error = log_complain(-EIO, "%s: cannot be read: %s", p->path, strerror(errno));
	if (n == LINE_ROOM)
		rinetd_mistake(p, p->line, "the line has more than %d bytes", LINE_ROOM - 1);
	if (p->bytes > CONFIG_FILE_MAX)
		rinetd_mistake(p, p->line, "the file has more than %d bytes", CONFIG_FILE_MAX);
	if (p->error || (ch == EOF && !n))
		return false;
	if (n && buf[n - 1] == '\r')
		n--;
	buf[n] = '\0';
	for (size_t i = 0; i < n; i++)
		if (((unsigned char)buf[i] < 0x20 && buf[i] != '\t') || buf[i] == 0x7f)
			rinetd_mistake(p, p->line, "a control character");
	return !p->error;
}

int config_rinetd_parse(FILE *f, const char *path, struct config *c, struct config_text *text)
{
	struct rinetd_reader p = { .c = c, .text = text, .f = f, .path = path };
	char buf[LINE_ROOM + 1];

	text->is_rinetd = true;
	while (!p.error && read_line(&p, buf)) {
		size_t bom = p.line == 1 && !strncmp(buf, BOM, strlen(BOM)) ? strlen(BOM) : 0;

		take_line(&p, buf + bom);
	}
	rinetd_end_forward(&p);
	rinetd_rules_close(&p.global);
	return p.error;
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
	size_t n = 0;
	bool comment = false;
	int ch;

	while ((ch = getc(f)) != EOF && n + 1 < sizeof(text)) {
		if (ch == '\n') {
			if (n)
				break;
			comment = false;
			continue;
		}
		if (!n && !comment && ch && strchr(RINETD_BLANKS "\r\v\f" BOM, ch))
			continue;
		comment |= !n && (ch == '#' || ch == ';');
		if (!comment)
			text[n++] = (char)ch;
	}
	text[n] = '\0';
	rewind(f);
	return begins_rinetd(text);
}
