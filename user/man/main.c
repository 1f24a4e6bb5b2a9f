// SPDX-License-Identifier: BSD-2-Clause
/*
 * culvert-man FILE: a manual page, or a completion, on stdout, made of FILE and of the program's
 * tables, so that what it says of options and values is what the program does.  FILE is roff, or in
 * the language of a shell, but for lines that begin with "@":
 *
 *   @options            an entry for each option of the command line
 *   @key NAME           the head of the entry of a key that [culvert] may have; its text follows
 *   @forward-key NAME   the same of a key that [forward NAME] alone may have
 *   @reloaded           a line with the keys of the daemon that a reload can change
 *   @rows               the rows of a completion, see completion.c
 *
 * "@VERSION@" anywhere is the version.  A key of the table that such a page does not mention is a
 * mistake.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "completion.h"
#include "config/option.h"
#include "version.h"

#define VERSION_MARK "@VERSION@"
#define LINE_LEN 1024
#define LINE_GOOD 50

struct page {
	const char *path;
	unsigned int line;
	bool has_keys;
	bool given[OPTIONS_MAX]; /* by the place in the table */
};

__attribute__((format(printf, 2, 3), noreturn)) static void fail(const struct page *p,
								 const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%s:%u: ", p->path, p->line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

/* A blank at C ends a line that would be longer than mandoc likes; "." would begin a request. */
static bool may_break(const char *text, const char *c)
{
	return c - text > LINE_GOOD && c[1] != '.' && c[1] != '\'';
}

/* TEXT in roff; what stands between backquotes is bold.  CAPITAL: its first letter is made one. */
static void put_text(const char *text, bool capital)
{
	const char *line = text;
	bool bold = false;

	if (*text == '.' || *text == '\'')
		fputs("\\&", stdout);
	for (const char *c = text; *c; c++) {
		if (*c == ' ' && may_break(line, c)) {
			putchar('\n');
			line = c + 1;
		} else if (*c == '`') {
			bold = !bold;
			fputs(bold ? "\\fB" : "\\fR", stdout);
		} else if (*c == '-') {
			fputs("\\-", stdout);
		} else if (*c == '\\') {
			fputs("\\e", stdout);
		} else if (c == text && capital && *c >= 'a' && *c <= 'z') {
			putchar(*c - 'a' + 'A');
		} else {
			putchar(*c);
		}
	}
}

static const char *default_of(const struct option_def *o)
{
	return o->computed ? o->computed : o->initial;
}

/* --- the command line --- */

static void put_option(const struct option_def *o)
{
	const char *initial = default_of(o);

	fputs(".TP\n\\fB\\-\\-", stdout);
	put_text(o->name, false);
	fputs("\\fR", stdout);
	if (o->metavar) {
		fputs(" \\fI", stdout);
		put_text(o->metavar, false);
		fputs("\\fR", stdout);
	}
	putchar('\n');
	put_text(o->help, true);
	if (initial) {
		fputs("; default: ", stdout);
		put_text(initial, false);
	}
	puts(".");
}

static void put_options(void)
{
	for (const struct option_def *o = option_table; o->name; o++)
		if (o->scope != SCOPE_FORWARD)
			put_option(o);
}

/* --- the file --- */

static bool is_key(const struct option_def *o, bool forward)
{
	return forward ? o->scope == SCOPE_FORWARD :
			 o->scope == SCOPE_GLOBAL || o->scope == SCOPE_EACH;
}

static void put_head(struct page *p, const struct option_def *o)
{
	if (p->given[o - option_table])
		fail(p, "%s: has a text already", o->name);
	p->has_keys = p->given[o - option_table] = true;
	fputs(".TP\n\\fB", stdout);
	put_text(o->name, false);
	fputs(" =\\fR \\fI", stdout);
	put_text(o->metavar ? o->metavar : "", false);
	fputs("\\fR\nValue: ", stdout);
	put_text(o->expected, false);
	puts(".");
	if (default_of(o)) {
		fputs("Default: ", stdout);
		put_text(default_of(o), false);
		puts(".");
	}
	puts(".IP");
}

static void put_key(struct page *p, const char *name, bool forward)
{
	for (const struct option_def *o = option_table; o->name; o++) {
		if (is_key(o, forward) && !strcmp(o->name, name)) {
			put_head(p, o);
			return;
		}
	}
	fail(p, "%s: the table has no such key of %s", name, forward ? "[forward]" : "[culvert]");
}

/* A page that has texts for keys has one for each. */
static void check_keys(struct page *p)
{
	for (const struct option_def *o = option_table; p->has_keys && o->name; o++) {
		bool forward = is_key(o, true);

		if ((forward || is_key(o, false)) && !p->given[o - option_table])
			fail(p,
			     "the key %s of %s has no text: write \"%s %s\" and a sentence or "
			     "two of what it is for",
			     o->name, forward ? "[forward]" : "[culvert]",
			     forward ? "@forward-key" : "@key", o->name);
	}
}

/* One line: the keys of the daemon that a reload can change. */
static void put_reloaded(void)
{
	const char *between = ".BR ";

	for (const struct option_def *o = option_table; o->name; o++) {
		if (o->scope != SCOPE_GLOBAL || !o->reloads)
			continue;
		fputs(between, stdout);
		put_text(o->name, false);
		between = " \", \" ";
	}
	puts(" .");
}

/* --- lines --- */

static void put_line(const char *line)
{
	const char *mark;

	for (; (mark = strstr(line, VERSION_MARK)); line = mark + strlen(VERSION_MARK)) {
		fwrite(line, 1, (size_t)(mark - line), stdout);
		put_text(CULVERT_VERSION, false);
	}
	puts(line);
}

static void take_line(struct page *p, const char *line)
{
	static const char key[] = "@key ", forward_key[] = "@forward-key ";

	if (line[0] != '@' || !strncmp(line, VERSION_MARK, strlen(VERSION_MARK)))
		put_line(line);
	else if (!strcmp(line, "@options"))
		put_options();
	else if (!strcmp(line, "@reloaded"))
		put_reloaded();
	else if (!strncmp(line, key, strlen(key)))
		put_key(p, line + strlen(key), false);
	else if (!strncmp(line, forward_key, strlen(forward_key)))
		put_key(p, line + strlen(forward_key), true);
	else if (!strcmp(line, "@rows"))
		completion_rows();
	else
		fail(p, "\"%s\": unknown directive", line);
}

int main(int argc, char **argv)
{
	struct page p = { .path = argc == 2 ? argv[1] : NULL };
	char line[LINE_LEN];
	FILE *f;

	if (!p.path) {
		fputs("usage: culvert-man FILE\n", stderr);
		return 2;
	}
	f = fopen(p.path, "re");
	if (!f) {
		fprintf(stderr, "%s: %s\n", p.path, strerror(errno));
		return 1;
	}
	while (fgets(line, sizeof(line), f)) {
		p.line++;
		if (!strchr(line, '\n'))
			fail(&p, "the line is too long, or not ended");
		line[strcspn(line, "\n")] = '\0';
		take_line(&p, line);
	}
	check_keys(&p);
	if (ferror(f) || fflush(stdout) || ferror(stdout))
		fail(&p, "cannot be read, or the page not be written");
	fclose(f);
	return 0;
}
