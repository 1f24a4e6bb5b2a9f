// SPDX-License-Identifier: BSD-2-Clause
/*
 * culvert-man FILE prints a manual page, or a completion.  FILE is roff, or a script of a shell.
 * The program's tables replace its lines that begin with "@", so the text of options and values is
 * right:
 *
 *   @options            an entry for each option of the command line
 *   @key NAME           the head of the entry of a key that [culvert] may have; its text follows
 *   @forward-key NAME   the same of a key that [forward NAME] alone may have
 *   @sni-key NAME       the same of a key that [sni FORWARD NAME...] alone may have
 *   @rows               the rows of a completion, see completion.c
 *
 * "@VERSION@" anywhere is the version.  A page with texts for keys must have a text for each key of
 * the table.
 */
#include <ctype.h>
#include <errno.h>
#include <error.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "completion.h"
#include "config/option.h"
#include "version.h"

#define VERSION_MARK "@VERSION@"

struct page {
	const char *path;
	unsigned int line;
	bool has_keys;
	bool given[OPTIONS_MAX]; /* by the index in the table */
};

#define fail(p, ...) error_at_line(1, 0, (p)->path, (p)->line, __VA_ARGS__)

/* Print in roff, which would make a hyphen of a plain "-". */
__attribute__((format(printf, 1, 2))) static void put(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (const char *c = text; *c; c++)
		printf(*c == '-' ? "\\%c" : "%c", *c);
}

/* --- the command line --- */

static void put_option(const struct option_def *o)
{
	const char *initial = o->computed ?: o->initial;

	put(".TP\n\\fB--%s\\fR \\fI%s\\fR\n", o->name, o->metavar);
	put("%c%s", toupper((unsigned char)o->help[0]), o->help + 1);
	if (initial)
		put("; default: %s", initial);
	puts(".");
}

static void put_options(void)
{
	for (const struct option_def *o = option_table; o->name; o++)
		if (o->scope & SCOPE_WORDS)
			put_option(o);
}

/* --- the file --- */

/* Can O stand in a section of SCOPE, and is its text in that part of the page? */
static bool is_key(const struct option_def *o, enum option_scope scope)
{
	return scope == SCOPE_CULVERT ? o->scope & scope :
					!(o->scope & SCOPE_GLOBAL) && o->scope & scope;
}

static void put_head(struct page *p, const struct option_def *o)
{
	const char *initial = o->computed ?: o->initial;

	if (p->given[o - option_table])
		fail(p, "%s: has a text already", o->name);
	p->has_keys = p->given[o - option_table] = true;
	put(".TP\n\\fB%s =\\fR \\fI%s\\fR\nValue: %s.\n", o->name, o->metavar, o->expected);
	if (initial)
		put("Default: %s.\n", initial);
	puts(".IP");
}

static void put_key(struct page *p, const char *name, enum option_scope scope)
{
	const struct option_def *o = option_table;

	while (o->name && (!is_key(o, scope) || strcmp(o->name, name) != 0))
		o++;
	if (!o->name)
		fail(p, "%s: the table has no such key of that section", name);
	put_head(p, o);
}

/* Fail if a page has texts for keys, but not for each. */
static void check_keys(struct page *p)
{
	for (const struct option_def *o = option_table; p->has_keys && o->name; o++)
		if (o->scope != SCOPE_WORDS && !p->given[o - option_table])
			fail(p,
			     "the key %s has no text: write \"@%skey %s\" and a sentence or two "
			     "of what it is for",
			     o->name,
			     o->scope & SCOPE_WORDS   ? "" :
			     o->scope & SCOPE_FORWARD ? "forward-" :
							"sni-",
			     o->name);
}

/* --- lines --- */

static void put_line(const char *line)
{
	const char *mark;

	for (; (mark = strstr(line, VERSION_MARK)); line = mark + strlen(VERSION_MARK)) {
		fwrite(line, 1, (size_t)(mark - line), stdout);
		put("%s", CULVERT_VERSION);
	}
	puts(line);
}

static void take_line(struct page *p, const char *line)
{
	static const char key[] = "@key ", forward_key[] = "@forward-key ", sni_key[] = "@sni-key ";

	if (line[0] != '@' || !strncmp(line, VERSION_MARK, strlen(VERSION_MARK)))
		put_line(line);
	else if (!strcmp(line, "@options"))
		put_options();
	else if (!strncmp(line, key, strlen(key)))
		put_key(p, line + strlen(key), SCOPE_CULVERT);
	else if (!strncmp(line, forward_key, strlen(forward_key)))
		put_key(p, line + strlen(forward_key), SCOPE_FORWARD);
	else if (!strncmp(line, sni_key, strlen(sni_key)))
		put_key(p, line + strlen(sni_key), SCOPE_SNI);
	else if (!strcmp(line, "@rows"))
		completion_rows();
	else
		fail(p, "\"%s\": unknown directive", line);
}

int main(int argc, char **argv)
{
	struct page p = { .path = argc == 2 ? argv[1] : "", .line = 1 };
	FILE *f = fopen(p.path, "re");
	char *line = NULL;
	size_t room;

	if (!f)
		error(1, errno, "cannot read FILE \"%s\"", p.path);
	for (; getline(&line, &room, f) > 0; p.line++) {
		line[strcspn(line, "\n")] = '\0';
		take_line(&p, line);
	}
	check_keys(&p);
	if (ferror(f) || fflush(stdout) || ferror(stdout))
		fail(&p, "cannot be read, or the page not be written");
	free(line);
	fclose(f);
	return 0;
}
