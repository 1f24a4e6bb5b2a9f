/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation: inih takes lines apart and calls us for each key.  What it does not tell
 * (the number of the line, sections without a key) or would take in silence (lines and section
 * names that are too long for it, control characters) the reader sees that feeds it line by line.
 * The reader also knows which lines have to hold a key, so one for which inih has not called us is
 * a mistake, which is said before any of a later line.
 *
 *	[culvert]            options that the command line has as well, without "--"
 *	[forward NAME]       listen = ADDRESS, upstream = ADDRESS, and options for it alone
 *
 * The first mistake ends the reading.
 */
#include "config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_rinetd.h"
#include "log.h"
#include "option.h"

/* inih cuts longer names of sections off (MAX_SECTION in ini.c). */
#define SECTION_MAX 49
#define FORWARD "forward "
#define BOM "\xef\xbb\xbf" /* which editors put before UTF-8 */
#define BOM_LEN 3

enum section { SECTION_NONE, SECTION_GLOBAL, SECTION_FORWARD };

struct parser {
	struct config *c;
	struct config_text *text;
	FILE *f;
	const char *path;
	unsigned int line;
	size_t bytes;
	int error;
	bool key_due; /* LINE has to hold a key, and on_key() has not seen it yet */
	enum section section; /* that is being read */
	unsigned int global_line; /* of [culvert]; 0: not yet */
};

/* The first mistake counts. */
__attribute__((format(printf, 3, 4)))
static void mistake(struct parser *p, unsigned int line, const char *fmt, ...)
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

/* --- sections --- */

static void begin_forward(struct parser *p, const char *name)
{
	struct forward_text *t;

	for (size_t i = 0; i < p->text->n; i++) {
		if (!strcmp(p->text->forwards[i].name, name)) {
			mistake(p, p->line, "[" FORWARD "%s]: the name is taken in line %u", name,
				p->text->forwards[i].line);
			return;
		}
	}
	t = config_text_add(p->text);
	if (t)
		t->name = config_keep(p->c, name);
	if (!t || !t->name) {
		p->error = log_complain(-ENOMEM, "out of memory");
		return;
	}
	t->file = p->path;
	t->line = p->line;
	p->section = SECTION_FORWARD;
}

static void end_section(struct parser *p)
{
	if (p->section == SECTION_FORWARD && !p->error) {
		const struct forward_text *t = &p->text->forwards[p->text->n - 1];

		if (!t->listen || !t->upstream)
			mistake(p, t->line, "[" FORWARD "%s]: %s is missing", t->name,
				t->listen ? "upstream" : "listen");
	}
	p->section = SECTION_NONE;
}

/* LINE begins with "[". */
static void begin_section(struct parser *p, const char *line)
{
	const char *end = strchr(line, ']');
	size_t len = end ? (size_t)(end - line - 1) : 0;
	char name[SECTION_MAX + 1];

	end_section(p);
	if (!end) {
		mistake(p, p->line, "\"[\" without \"]\"");
		return;
	}
	if (len > SECTION_MAX) {
		mistake(p, p->line, "a section's name has at most %d bytes", SECTION_MAX);
		return;
	}
	if (end[1 + strspn(end + 1, " \t\r\n")] && !strchr(";#", end[1 + strspn(end + 1, " \t")])) {
		mistake(p, p->line, "nothing may follow \"]\"");
		return;
	}
	memcpy(name, line + 1, len);
	name[len] = '\0';
	if (!strcmp(name, "culvert")) {
		if (p->global_line)
			mistake(p, p->line, "[culvert] again, it was in line %u", p->global_line);
		p->global_line = p->line;
		p->section = SECTION_GLOBAL;
	} else if (!strncmp(name, FORWARD, strlen(FORWARD)) && name[strlen(FORWARD)] &&
		   !strpbrk(name + strlen(FORWARD), " \t")) {
		/* what inih takes for a comment, or nearly so */
		if (strchr(";#", name[strlen(FORWARD)]))
			mistake(p, p->line, "[%s]: a name cannot begin with ; or #", name);
		else
			begin_forward(p, name + strlen(FORWARD));
	} else {
		mistake(p, p->line,
			"[%s]: unknown section, expected [culvert] or [" FORWARD "NAME]", name);
	}
}

/* --- keys --- */

static void take_option(struct parser *p, const char *key, const char *value)
{
	struct forward_text *t = p->section == SECTION_FORWARD ?
					 &p->text->forwards[p->text->n - 1] : NULL;
	const struct option_def *o = option_find_key(key, t);
	char buf[OPTION_WRONG_LEN];
	int r;

	if (!o) {
		mistake(p, p->line, "%s: unknown key of [%s] (`culvert help run` lists them)", key,
			t ? FORWARD "NAME" : "culvert");
		return;
	}
	r = config_text_take(p->c, p->text, t, o, value, p->line, buf);
	if (r == -ENOMEM)
		p->error = log_complain(-ENOMEM, "out of memory");
	else if (r < 0)
		mistake(p, p->line, "%s: %s", key, buf);
}

static void take_address(struct parser *p, const char *key, const char *value)
{
	struct forward_text *t = &p->text->forwards[p->text->n - 1];
	bool listen = !strcmp(key, "listen");
	const char **to = listen ? &t->listen : &t->upstream;
	unsigned int *line = listen ? &t->listen_line : &t->upstream_line;

	if (*to) {
		mistake(p, p->line, "%s: given twice, first in line %u", key, *line);
		return;
	}
	*line = p->line;
	*to = config_keep(p->c, value);
	if (!*to)
		p->error = log_complain(-ENOMEM, "out of memory");
}

/* A "#" that was meant as a comment: at the beginning, or behind a blank. */
static bool has_number_sign(const char *value)
{
	for (const char *at = strchr(value, '#'); at; at = strchr(at + 1, '#'))
		if (at == value || at[-1] == ' ' || at[-1] == '\t')
			return true;
	return false;
}

/* For inih: 0 is an error. */
static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	struct parser *p = arg;

	(void)section; /* begin_section() has seen all of its name */
	p->key_due = false;
	if (p->error)
		return 0;
	if (!*key)
		mistake(p, p->line, "a value without a key");
	else if (p->section == SECTION_NONE)
		mistake(p, p->line, "%s: before the first section, [culvert] or [" FORWARD "NAME]",
			key);
	else if (!value || !*value)
		mistake(p, p->line, "%s: needs a value", key);
	else if (has_number_sign(value))
		mistake(p, p->line, "%s: \"#\" in a value: a comment there begins with \";\"", key);
	else if (p->section == SECTION_FORWARD &&
		 (!strcmp(key, "listen") || !strcmp(key, "upstream")))
		take_address(p, key, value);
	else
		take_option(p, key, value);
	return !p->error;
}

/* --- lines --- */

/* The line before is done with: did inih find a key in it? */
static void end_line(struct parser *p)
{
	if (p->key_due)
		mistake(p, p->line, "neither [SECTION] nor KEY = VALUE");
	p->key_due = false;
}

/* The bytes of the next line, which is number p->line: how many. */
static size_t read_bytes(struct parser *p, char *buf, size_t size)
{
	size_t n = 0;
	int ch = 0;

	while (n < size && ch != '\n' && (ch = getc(p->f)) != EOF) {
		if (!ch)
			mistake(p, p->line, "a NUL byte");
		buf[n++] = (char)ch;
	}
	if (ch == EOF && ferror(p->f) && !p->error)
		p->error = log_complain(-EIO, "%s: cannot be read: %s", p->path, strerror(errno));
	if (n == size && ch != '\n')
		mistake(p, p->line, "the line has more than %zu bytes", size - 1);
	p->bytes += n;
	if (p->bytes > CONFIG_FILE_MAX)
		mistake(p, p->line, "the file has more than %d bytes", CONFIG_FILE_MAX);
	return n;
}

/* Blanks, as inih sees them, are then none but these; and carriage returns end lines only. */
static void check_characters(struct parser *p, const char *line)
{
	for (const char *c = line; *c; c++)
		if (((unsigned char)*c < 0x20 || *c == 0x7f) && *c != '\t' && c[strspn(c, "\r\n")])
			mistake(p, p->line, "a control character");
}

/* Before inih gets it. */
static void look_at(struct parser *p, const char *line)
{
	const char *text = line + strspn(line, " \t\r\n");

	check_characters(p, line);
	if (!strncmp(line, BOM, BOM_LEN))
		mistake(p, p->line, "a byte order mark that is not the file's first character");
	if (!*text || strchr(";#", *text))
		return;
	/* to inih it would continue the line before, which no key of ours allows */
	if (text != line)
		mistake(p, p->line, "indented: sections and keys begin in the first column");
	else if (*text == '[')
		begin_section(p, line);
	else
		p->key_due = true;
}

/* For inih, as fgets(3). */
static char *next_line(char *buf, int size, void *arg)
{
	struct parser *p = arg;
	size_t n;

	end_line(p);
	if (p->error)
		return NULL;
	p->line++;
	n = read_bytes(p, buf, (size_t)size - 1);
	buf[n] = '\0';
	if (!n || p->error)
		return NULL;
	if (p->line == 1 && !strncmp(buf, BOM, BOM_LEN))
		memmove(buf, buf + BOM_LEN, n + 1 - BOM_LEN);
	look_at(p, buf);
	return p->error ? NULL : buf;
}

int config_file_parse(FILE *f, const char *path, struct config *c, struct config_text *text)
{
	struct parser p = { .c = c, .text = text, .f = f, .path = path };
	int r = ini_parse_stream(next_line, &p, on_key, &p);

	end_line(&p);
	end_section(&p);
	if (!p.error && r == -2) /* inih's word for it */
		p.error = log_complain(-ENOMEM, "out of memory");
	if (!p.error && r)
		mistake(&p, (unsigned int)r, "neither [SECTION] nor KEY = VALUE");
	return p.error;
}

/* --- whose file? --- */

/* Root's daemon does what the file says: nobody else may be able to write it. */
static int check_owner(const struct stat *st, const char *what, const char *path)
{
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return log_complain(-EPERM, "%s: %s belongs to uid %u, who could write anything "
				    "into it: chown root", path, what, (unsigned int)st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH) && !(S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX))
		return log_complain(-EPERM, "%s: %s can be written by others (mode %04o): chmod "
				    "go-w", path, what, (unsigned int)st->st_mode & 07777);
	return 0;
}

static int say_unreadable(int error, const char *path)
{
	if (error == -EACCES)
		return log_complain(error, "%s: %s: the account that starts culvert, here uid %u, "
				    "must be able to read it", path, strerror(-error),
				    (unsigned int)geteuid());
	if (error == -ENOENT)
		return log_complain(error, "%s: %s: give the path of a file that exists; a "
				    "symbolic link must lead to one", path, strerror(-error));
	return log_complain(error, "%s: %s", path, strerror(-error));
}

/* REAL has no symbolic links in it. */
static int open_checked(const char *real, FILE **ret)
{
	char *copy = strdup(real);
	struct stat dir, st;
	int fd, r;

	if (!copy)
		return log_complain(-ENOMEM, "out of memory");
	r = stat(dirname(copy), &dir) ? -errno : 0;
	free(copy);
	/* not to wait for the writer of a FIFO */
	fd = r ? -1 : open(real, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st)) {
		r = r ?: -errno;
		say_unreadable(r, real);
	} else if (!S_ISREG(st.st_mode)) {
		r = log_complain(-EINVAL, "%s: not a regular file", real);
	} else {
		r = check_owner(&st, "the file", real);
		r = r ?: check_owner(&dir, "its directory", real);
	}
	if (!r) {
		*ret = fdopen(fd, "r");
		if (*ret)
			return 0;
		r = say_unreadable(-errno, real);
	}
	if (fd >= 0)
		close(fd);
	return r;
}

int config_file_open(const char *path, FILE **ret)
{
	char *real = realpath(path, NULL);
	int r;

	if (!real)
		return say_unreadable(-errno, path);
	r = open_checked(real, ret);
	free(real);
	return r;
}

int config_file_take(FILE *f, const char *path, struct config *c, struct config_text *text)
{
	return config_rinetd_is(f) ? config_rinetd_parse(f, path, c, text) :
				     config_file_parse(f, path, c, text);
}

int config_file_read(const char *path, struct config *c, struct config_text *text)
{
	FILE *f = NULL;
	int r = config_file_open(path, &f);

	if (r)
		return r;
	r = config_rinetd_is(f) ? config_rinetd_parse(f, path, c, text) :
				  config_file_parse(f, path, c, text);
	fclose(f);
	return r;
}
