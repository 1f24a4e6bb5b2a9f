// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a reader knows words, and not each rule about their values, nor about two
 * sections.  The reader of culvert.conf knows those rules.  So it reads what has been made, and its
 * complaints become comments, until it has none.
 */
#include "config/foreign.h"

#include <ctype.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"
#include "config/read.h"

#define TRIAL "@" /* the name of the file that is tried */
#define COMPLAINTS_MAX (1 << 16)

/* --- statements --- */

void foreign_open(struct foreign *f, const char *file, size_t len)
{
	*f = (struct foreign){ .file = file };
	f->words = allocated(calloc(len + 2, sizeof(*f->words)));
}

static void keep(void *name)
{
	(void)name; /* F owns it */
}

void foreign_close(struct foreign *f)
{
	tdestroy(f->names, keep);
	config_close(&f->own);
	free(f->words);
	free(f->statements);
	free(f->lines);
}

void foreign_word(struct foreign *f, char *word)
{
	f->words[f->n_words++] = word;
}

void foreign_end(struct foreign *f, unsigned int line, unsigned int depth)
{
	const struct statement *last = f->n ? &f->statements[f->n - 1] : NULL;
	char **first = last ? last->words + last->n + 1 : f->words;
	size_t n = (size_t)(f->words + f->n_words - first);

	if (!n)
		return;
	f->words[f->n_words++] = NULL;
	f->statements = array_grow(f->statements, f->n, sizeof(*f->statements));
	f->statements[f->n++] =
		(struct statement){ .words = first, .n = n, .line = line, .depth = depth };
}

/* --- lines --- */

/* A line has no control character, and is a comment as a whole, or not at all. */
static void add_line(struct foreign *f, unsigned int from, bool off, const char *text)
{
	char *copy = (char *)foreign_keep(f, "%s", text);

	for (char *at = copy; *at; at++)
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			*at = '?';
	f->lines = array_grow(f->lines, f->n_lines, sizeof(*f->lines));
	f->lines[f->n_lines++] = (struct foreign_line){ copy, from, off };
}

static void add_comment(struct foreign *f, unsigned int from, const char *keyword,
			const char *reason)
{
	add_line(f, from, true,
		 foreign_keep(f, "%s:%u: %.200s: %.500s", f->file, from, keyword, reason));
}

void foreign_lost(struct foreign *f, const struct statement *s, const char *keyword,
		  const char *reason)
{
	f->lost = true;
	if (!s->told)
		add_comment(f, s->line, keyword, reason);
}

void foreign_once(struct foreign *f, const struct statement *s, const char *keyword,
		  const char *reason)
{
	for (size_t i = 0; i < f->n_once; i++)
		if (!strcmp(f->once[i], reason))
			return;
	if (f->n_once == sizeof(f->once) / sizeof(f->once[0]))
		return;
	f->once[f->n_once++] = reason;
	add_comment(f, s->line, keyword, reason);
}

const char *keys_find(const struct keys *k, const char *key)
{
	for (size_t i = 0; i < k->n; i++)
		if (!strcmp(k->all[i].key, key))
			return k->all[i].value;
	return NULL;
}

void keys_add(struct keys *k, const struct statement *s, const char *key, const char *value)
{
	k->all = array_grow(k->all, k->n, sizeof(*k->all));
	k->all[k->n].key = key;
	k->all[k->n].value = value;
	k->all[k->n++].from = s->line;
}

void keys_set(struct keys *k, const struct statement *s, const char *key, const char *value)
{
	for (size_t i = 0; i < k->n; i++)
		if (!strcmp(k->all[i].key, key)) {
			k->all[i].value = value;
			k->all[i].from = s->line;
			return;
		}
	keys_add(k, s, key, value);
}

void text_join(struct text *t, const char *separator, const char *more)
{
	size_t gap = t->all ? strlen(separator) : 0, len = strlen(more);

	t->all = allocated(realloc(t->all, t->len + gap + len + 1));
	memcpy(t->all + t->len, separator, gap);
	memcpy(t->all + t->len + gap, more, len + 1);
	t->len += gap + len;
}

const char *text_keep(struct foreign *f, struct text *t)
{
	const char *kept = t->all ? foreign_keep(f, "%s", t->all) : NULL;

	free(t->all);
	*t = (struct text){ 0 };
	return kept;
}

const char *foreign_seconds(struct foreign *f, unsigned long long ms)
{
	const char *text = foreign_keep(f, "%llu.%03llu", ms / 1000, ms % 1000);

	return ms % 1000 ? text : foreign_keep(f, "%llu", ms / 1000);
}

const char *foreign_host(struct foreign *f, const char *address)
{
	size_t len = strchr(address, '.') ? strcspn(address, ":") : strlen(address);

	return foreign_keep(f, "%.*s", (int)len, address);
}

const char *foreign_escape(struct foreign *f, const char *text)
{
	size_t len = strlen(text);
	char *all = allocated(malloc(4 * len + 1)), *to = all;
	const char *kept;

	for (const char *at = text; *at; at++) {
		unsigned char c = (unsigned char)*at;
		bool edge = at == text || at == text + len - 1; /* blanks there would be lost */

		if (c == '\r' || c == '\n' || c == '\t')
			to += sprintf(to, "\\%c", c == '\r' ? 'r' : c == '\n' ? 'n' : 't');
		else if (c == '\\')
			to += sprintf(to, "\\\\");
		else if (c < 0x20 || c >= 0x7f || c == ';' || c == '#' || (c == ' ' && edge))
			to += sprintf(to, "\\x%02x", c);
		else
			*to++ = *at;
	}
	*to = '\0';
	kept = foreign_keep(f, "%s", all);
	free(all);
	return kept;
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

const char *foreign_name(struct foreign *f, const char *wish)
{
	char *name = (char *)foreign_keep(f, "%.200s", *wish ? wish : "forward");
	const char *unique = name;

	for (char *at = name; *at; at++)
		if (isspace((unsigned char)*at) || strchr("[]", *at))
			*at = '_';
	/* numbers go on, as thousands of servers may lead to one upstream */
	while (*(const char **)allocated(tsearch(unique, &f->names, compare)) != unique)
		unique = foreign_keep(f, "%s-%u", name, ++f->n_twins + 1);
	return unique;
}

void foreign_section(struct foreign *f, const struct statement *s, const char *head,
		     const struct keys *k, bool off)
{
	add_line(f, s->line, off, foreign_keep(f, "[%s]", head));
	for (size_t i = 0; i < k->n; i++)
		add_line(f, k->all[i].from, off,
			 foreign_keep(f, "%s = %s", k->all[i].key, k->all[i].value));
	add_line(f, s->line, false, "");
}

void foreign_write(const struct foreign *f, FILE *to)
{
	for (size_t i = 0; i < f->n_lines; i++)
		fprintf(to, "%s%s\n", f->lines[i].off ? "; " : "", f->lines[i].text);
}

/* --- the trial --- */

/* Read the lines as culvert would.  COMPLAINTS: what it says.  -errno, or the number of forwards. */
static int read_lines(const struct foreign *f, char *complaints)
{
	char run[] = "run", option[] = "-c", name[] = TRIAL;
	char *words[] = { run, option, name, NULL };
	FILE *to = allocated(fdopen(memfd_create("converted", MFD_CLOEXEC), "w+"));
	struct config c;
	int r;

	foreign_write(f, to);
	fflush(to);
	rewind(to);
	log_keep_complaint(complaints, COMPLAINTS_MAX);
	r = config_read_any(3, words, fileno(to), &c);
	log_keep_complaint(NULL, 0);
	r = r ?: (int)c.n_forwards;
	config_close(&c);
	fclose(to);
	return r;
}

/* Make line AT a comment, with its section if the section must not be without it. */
static void drop(struct foreign *f, size_t at, const char *why)
{
	static const char *const vital[] = { "[",      "listen ", "upstream ",
					     "allow ", "deny ",   "proxy-protocol " };
	const char *text = f->lines[at].text;
	size_t begin = at, end = at + 1;

	for (size_t i = 0; i < sizeof(vital) / sizeof(vital[0]); i++) {
		if (strncmp(text, vital[i], strlen(vital[i])) != 0)
			continue;
		while (begin && *f->lines[begin].text != '[')
			begin--;
		while (end < f->n_lines && *f->lines[end].text)
			end++;
	}
	for (size_t i = begin; i < end; i++)
		f->lines[i].off = true;
	f->lost = true;
	f->lines[at].text = foreign_keep(f, "%s:%u: %s: %s", f->file, f->lines[at].from, text, why);
}

/* Make the lines of COMPLAINTS ("@:LINE: REASON; @:LINE: REASON") comments.  False: there is none. */
static bool drop_all(struct foreign *f, char *complaints)
{
	bool any = false;

	for (char *at = complaints, *next; at; at = next) {
		unsigned long line;
		char *why, *see;

		next = strstr(at, "; " TRIAL ":");
		if (next) {
			*next = '\0';
			next += 2;
		}
		if (strncmp(at, TRIAL ":", 2) != 0)
			continue;
		line = strtoul(at + 2, &why, 10);
		see = strstr(why, ": see " TRIAL ":");
		if (see)
			*see = '\0';
		if (!line || line > f->n_lines || f->lines[line - 1].off)
			continue;
		drop(f, line - 1, why + strspn(why, ": "));
		any = true;
	}
	return any;
}

int foreign_try(struct foreign *f)
{
	char *complaints = allocated(malloc(COMPLAINTS_MAX));
	int r;

	do
		r = read_lines(f, complaints);
	while (r < 0 && drop_all(f, complaints));
	if (r < 0)
		r = log_complain(-EINVAL, "%s: %s", f->file, complaints);
	free(complaints);
	return r;
}
