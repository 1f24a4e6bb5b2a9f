// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration file:
 *
 *	[culvert]            options that the command line has as well, without "--"
 *	[forward NAME]       listen = ADDRESS, upstream = ADDRESS, and options for it alone
 *
 * Theory of operation: inih takes lines apart and calls on_key() for each key.  It does not tell
 * the number of a line or sections without a key, and it accepts in silence lines and names of
 * sections that are too long for it.  So next_line(), which feeds it line by line, looks first.
 * next_line() also knows which lines must hold a key: one for which inih has not called on_key() is
 * a mistake.
 */
#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "config/rinetd.h"

/* inih cuts longer names of sections off (MAX_SECTION in ini.c). */
#define SECTION_MAX 49
#define FORWARD "forward"
#define BLANKS " \t"
#define BOM "\xef\xbb\xbf" /* which editors put before UTF-8 */

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored in a text, which config_text_close() frees. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

/* --- texts --- */

struct forward_text *config_text_add(struct config_text *t)
{
	struct forward_text *more = array_grow(t->forwards, t->n, sizeof(*more));

	if (!more)
		return NULL;
	t->forwards = more;
	memset(&more[t->n], 0, sizeof(*more));
	return &more[t->n++];
}

void config_text_close(struct config_text *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->forwards[i].said.lines);
	free(t->forwards);
	free(t->said.lines);
	free(t->words.lines);
	free(t->notes.lines);
	*t = (struct config_text){ 0 };
}

int config_lines_add(struct config_lines *l, const struct config_line *line, const char *value)
{
	struct config_line *more = array_grow(l->lines, l->n, sizeof(*more));

	if (!more)
		return -ENOMEM;
	l->lines = more;
	more[l->n] = *line;
	more[l->n++].value = value;
	return 0;
}

const struct config_line *config_lines_find(const struct config_lines *l, const char *name)
{
	for (size_t i = l->n; i-- > 0;)
		if (!strcmp(l->lines[i].option->name, name))
			return &l->lines[i];
	return NULL;
}

unsigned int forward_says(const struct forward_text *t, const char *name)
{
	const struct config_line *l = config_lines_find(&t->said, name);

	return l ? l->line : 0;
}

void config_text_say_notes(const struct config_text *text, const char *file)
{
	char at[CONFIG_PLACE_LEN];

	for (size_t i = 0; i < text->notes.n; i++) {
		const struct config_line *l = &text->notes.lines[i];

		log_complain(0, "%snote: %s", config_place(file, l->line, at), l->value);
	}
}

void config_text_say_empty(const char *file)
{
	log_complain(0, "%s: warning: no forward here: give LISTEN UPSTREAM on the command line",
		     file);
}

/* --- the reader --- */

__attribute__((format(printf, 3, 0)))
static void say_mistake(struct config_reader *r, unsigned int line, const char *fmt, va_list ap)
{
	char text[OPTION_WRONG_LEN + 64], at[CONFIG_PLACE_LEN];

	if (r->error)
		return;
	vsnprintf(text, sizeof(text), fmt, ap);
	r->error = log_complain(-EINVAL, "%s%s", config_place(r->c->file, line, at), text);
}

void config_mistake(struct config_reader *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say_mistake(r, r->line, fmt, ap);
	va_end(ap);
}

void config_mistake_at(struct config_reader *r, unsigned int line, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say_mistake(r, line, fmt, ap);
	va_end(ap);
}

void config_no_memory(struct config_reader *r)
{
	if (!r->error)
		r->error = log_complain(-ENOMEM, "out of memory");
}

void config_note(struct config_reader *r, unsigned int line, const char *fmt, ...)
{
	const struct config_line note = { .line = line };
	const char *kept;
	char text[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	kept = config_keep(r->c, text);
	if (!kept || config_lines_add(&r->text->notes, &note, kept))
		config_no_memory(r);
}

/* Read the next line and its end, up to ROOM bytes.  Returns how many. */
static size_t read_bytes(struct config_reader *r, char *buf, size_t room)
{
	size_t n = 0;
	int ch = 0;

	while (n < room && ch != '\n' && (ch = getc(r->f)) != EOF) {
		if (!ch)
			config_mistake(r, "a NUL byte");
		buf[n++] = (char)ch;
	}
	if (ch == EOF && ferror(r->f) && !r->error)
		r->error = log_complain(-EIO, "%s: cannot be read: %s", r->c->file,
					strerror(errno));
	if (n == room && ch != '\n')
		config_mistake(r, "the line has more than %zu bytes", room - 1);
	r->bytes += n;
	if (r->bytes > CONFIG_FILE_MAX)
		config_mistake(r, "the file has more than %d bytes", CONFIG_FILE_MAX);
	return n;
}

static bool has_control_character(const char *line)
{
	for (const char *c = line; *c; c++)
		if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
			return true;
	return false;
}

bool config_next_line(struct config_reader *r, char *buf, size_t size)
{
	size_t n;

	if (r->error)
		return false;
	r->line++;
	n = read_bytes(r, buf, size - 1);
	if (!n || r->error)
		return false;
	while (n && strchr("\r\n", buf[n - 1]))
		n--;
	buf[n] = '\0';
	if (r->line == 1 && !strncmp(buf, BOM, strlen(BOM)))
		memmove(buf, buf + strlen(BOM), n + 1 - strlen(BOM));
	if (has_control_character(buf))
		config_mistake(r, "a control character");
	if (!strncmp(buf, BOM, strlen(BOM)))
		config_mistake(r, "a byte order mark that is not the file's first character");
	return !r->error;
}

struct forward_text *config_find_forward(const struct config_text *text, const char *name)
{
	for (size_t i = 0; i < text->n; i++)
		if (text->forwards[i].name && !strcmp(text->forwards[i].name, name))
			return &text->forwards[i];
	return NULL;
}

struct forward_text *config_add_forward(struct config_reader *r, const char *name)
{
	const char *kept = config_keep(r->c, name);
	struct forward_text *t = kept ? config_text_add(r->text) : NULL;

	if (!t) {
		config_no_memory(r);
		return NULL;
	}
	t->name = kept;
	t->file = r->c->file;
	t->line = r->line;
	return t;
}

void config_take(struct config_reader *r, struct forward_text *t, const struct config_line *line,
		 const char *value)
{
	struct config_lines *said = t ? &t->said : &r->text->said;
	const struct config_line *before = option_is_list(line->option) ? NULL :
		config_lines_find(said, line->option->name);
	const char *kept;

	if (before) {
		config_mistake_at(r, line->line, "%s: given twice, first in line %u", line->key,
				  before->line);
		return;
	}
	kept = config_keep(r->c, value);
	if (!kept || config_lines_add(said, line, kept))
		config_no_memory(r);
}

/* --- sections --- */

enum section { SECTION_NONE, SECTION_GLOBAL, SECTION_FORWARD };

struct parser {
	struct config_reader in;
	char line[CONFIG_LINE_ROOM];
	bool key_due; /* the line has to hold a key, and on_key() has not seen it yet */
	enum section section; /* that is being read */
	unsigned int global_line; /* of [culvert]; 0: not yet */
};

static void begin_forward(struct parser *p, const char *name)
{
	const struct forward_text *same = config_find_forward(p->in.text, name);

	if (same)
		config_mistake(&p->in, "[" FORWARD " %s]: the name is taken in line %u", name,
			       same->line);
	else if (config_add_forward(&p->in, name))
		p->section = SECTION_FORWARD;
}

static void end_section(struct parser *p)
{
	if (p->section == SECTION_FORWARD && !p->in.error) {
		const struct forward_text *t = config_last_forward(&p->in);

		if (!t->listen || !t->upstream)
			config_mistake_at(&p->in, t->line, "[" FORWARD " %s]: %s is missing",
					  t->name, t->listen ? "upstream" : "listen");
	}
	p->section = SECTION_NONE;
}

/* SECTION is "forward", and what follows. */
static void begin_named(struct parser *p, const char *section)
{
	const char *name = section + strlen(FORWARD);

	if (!name[strspn(name, BLANKS)])
		config_mistake(&p->in, "[%s]: the name is missing, expected [" FORWARD " NAME]",
			       section);
	else if (*name != ' ' || strpbrk(name + 1, BLANKS))
		config_mistake(&p->in, "[%s]: a name is one word, expected [" FORWARD " NAME]",
			       section);
	else if (strchr(";#", name[1])) /* what inih takes for a comment, or nearly so */
		config_mistake(&p->in, "[%s]: a name cannot begin with ; or #", section);
	else
		begin_forward(p, name + 1);
}

/* LINE begins with "[". */
static void begin_section(struct parser *p, const char *line)
{
	const char *end = strchr(line, ']');
	size_t len = end ? (size_t)(end - line - 1) : 0;
	const char *rest = end ? end + 1 + strspn(end + 1, BLANKS) : NULL;
	char name[SECTION_MAX + 1];

	end_section(p);
	if (!end) {
		config_mistake(&p->in, "\"[\" without \"]\"");
		return;
	}
	if (len > SECTION_MAX) {
		config_mistake(&p->in, "a section's name has at most %d bytes", SECTION_MAX);
		return;
	}
	if (*rest && !strchr(";#", *rest)) {
		config_mistake(&p->in, "nothing may follow \"]\"");
		return;
	}
	memcpy(name, line + 1, len);
	name[len] = '\0';
	if (!strcmp(name, "culvert")) {
		if (p->global_line)
			config_mistake(&p->in, "[culvert] again, it was in line %u",
				       p->global_line);
		p->global_line = p->in.line;
		p->section = SECTION_GLOBAL;
	} else if (!strncmp(name, FORWARD, strlen(FORWARD)) &&
		   strchr(BLANKS, name[strlen(FORWARD)])) {
		begin_named(p, name);
	} else {
		config_mistake(&p->in, "[%s]: unknown section, expected [culvert] or [" FORWARD
			       " NAME]", name);
	}
}

/* --- keys --- */

static bool is_address(const char *key)
{
	return !strcmp(key, "listen") || !strcmp(key, "upstream");
}

static void take_option(struct parser *p, const char *key, const char *value)
{
	struct forward_text *t = p->section == SECTION_FORWARD ?
					 config_last_forward(&p->in) : NULL;
	const struct option_def *o = option_find_key(key, t);
	const struct config_line line = { .option = o, .key = o ? o->name : NULL,
					  .line = p->in.line };

	if (o)
		config_take(&p->in, t, &line, value);
	else if (!t && option_is_gone(key, strlen(key)))
		config_note(&p->in, p->in.line, OPTION_GONE);
	else if (is_address(key) || option_find_key(key, !t))
		config_mistake(&p->in, "%s: this key can only be in [%s]", key,
			       t ? "culvert" : FORWARD " NAME");
	else
		config_mistake(&p->in, "%s: unknown key of [%s] (`culvert help run` lists them)",
			       key, t ? FORWARD " NAME" : "culvert");
}

static void take_address(struct parser *p, const char *key, const char *value)
{
	struct forward_text *t = config_last_forward(&p->in);
	bool listen = !strcmp(key, "listen");
	const char **to = listen ? &t->listen : &t->upstream;
	unsigned int *line = listen ? &t->listen_line : &t->upstream_line;

	if (*to) {
		config_mistake(&p->in, "%s: given twice, first in line %u", key, *line);
		return;
	}
	*line = p->in.line;
	*to = config_keep(p->in.c, value);
	if (!*to)
		config_no_memory(&p->in);
}

/* True for a "#" that was meant to begin a comment: at the beginning, or behind a blank. */
static bool has_number_sign(const char *value)
{
	for (const char *at = strchr(value, '#'); at; at = strchr(at + 1, '#'))
		if (at == value || strchr(BLANKS, at[-1]))
			return true;
	return false;
}

static bool is_quoted(const char *value)
{
	return *value == '"' || (*value == '\'' && value[strlen(value) - 1] == '\'');
}

/* For inih: 0 is an error. */
static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	struct parser *p = arg;

	(void)section; /* begin_section() has seen all of its name */
	p->key_due = false;
	if (p->in.error)
		return 0;
	if (!*key)
		config_mistake(&p->in, "a value without a key");
	else if (p->section == SECTION_NONE)
		config_mistake(&p->in, "%s: before the first section, [culvert] or [" FORWARD
			       " NAME]", key);
	else if (!value || !*value)
		config_mistake(&p->in, "%s: needs a value", key);
	else if (has_number_sign(value))
		config_mistake(&p->in, "%s: \"#\" in a value: a comment there begins with \";\"",
			       key);
	else if (is_quoted(value))
		config_mistake(&p->in, "%s: a value is written without quotes", key);
	else if (p->section == SECTION_FORWARD && is_address(key))
		take_address(p, key, value);
	else
		take_option(p, key, value);
	return !p->in.error;
}

/* --- lines --- */

/* Complain if inih has found no key in the line before. */
static void end_line(struct parser *p)
{
	if (p->key_due)
		config_mistake(&p->in, "neither [SECTION] nor KEY = VALUE");
	p->key_due = false;
}

/* LINE goes to inih next, which has room for SIZE bytes.  False: inih need not see it. */
static bool look_at(struct parser *p, const char *line, size_t size)
{
	const char *text = line + strspn(line, BLANKS);

	if (!*text || strchr(";#", *text))
		return false;
	if (strlen(line) >= size)
		config_mistake(&p->in, "the line has more than %zu bytes, which only comments and "
			       "empty lines may have", size - 1);
	/* inih would join it to the line before. */
	else if (text != line)
		config_mistake(&p->in, "indented: sections and keys begin in the first column");
	else if (*text == '[')
		begin_section(p, line);
	else
		p->key_due = true;
	return !p->in.error;
}

/* For inih, as fgets(3). */
static char *next_line(char *buf, int size, void *arg)
{
	struct parser *p = arg;

	end_line(p);
	if (!config_next_line(&p->in, p->line, sizeof(p->line)))
		return NULL;
	snprintf(buf, (size_t)size, "%s", look_at(p, p->line, (size_t)size) ? p->line : "");
	return p->in.error ? NULL : buf;
}

static int parse_sections(FILE *f, struct config *c, struct config_text *text)
{
	struct parser p = { .in = { .c = c, .text = text, .f = f } };
	int r = ini_parse_stream(next_line, &p, on_key, &p);

	end_line(&p);
	end_section(&p);
	if (r == -2) /* inih's word for it */
		config_no_memory(&p.in);
	else if (r)
		config_mistake_at(&p.in, (unsigned int)r, "neither [SECTION] nor KEY = VALUE");
	return p.in.error;
}

/* --- the file --- */

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
		r = log_complain(-EINVAL, "%s: %s, not a regular file", real,
				 S_ISDIR(st.st_mode) ? "a directory" : "a device, socket or pipe");
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

/* Symbolic links are followed first: what counts is the file that is read, and its directory. */
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

static int take(FILE *f, struct config *c, struct config_text *text)
{
	int r = rinetd_is(f) ? rinetd_parse(f, c, text) : parse_sections(f, c, text);

	fclose(f);
	return r;
}

int config_file_read(struct config *c, struct config_text *text)
{
	FILE *f = NULL;
	int r = config_file_open(c->file, &f);

	return r ?: take(f, c, text);
}

int config_file_take(const struct config_source *from, struct config *c, struct config_text *text)
{
	/* The stream is only read; and there is none of no bytes. */
	FILE *f = fmemopen(from->len ? (char *)from->text : (char[]){ '\n' }, from->len ?: 1, "r");

	return f ? take(f, c, text) : log_complain(-ENOMEM, "out of memory");
}
