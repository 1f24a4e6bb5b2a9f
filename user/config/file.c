// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration file:
 *
 *	[culvert]            options that the command line has as well, without "--"
 *	[forward NAME]       listen = ADDRESS, upstream = ADDRESS, and options for it alone
 *
 * Theory of operation: next_line() feeds inih line by line, and inih calls on_key() for each key.
 * inih does not tell of sections without a key, and it accepts in silence lines and names of
 * sections that are too long for it.  So next_line() looks at each line first, and reads sections
 * itself.
 */
#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "config/rinetd.h"

#define BLANKS " \t"
#define BOM "\xef\xbb\xbf" /* which editors put before UTF-8 */

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored in a text, which config_text_close() frees. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

/* --- texts --- */

struct forward_text *config_text_add(struct config_text *t)
{
	t->forwards = array_grow(t->forwards, t->n, sizeof(*t->forwards));
	t->forwards[t->n] = (struct forward_text){ 0 };
	return &t->forwards[t->n++];
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

void config_lines_add(struct config_lines *l, struct config_line line)
{
	l->lines = array_grow(l->lines, l->n, sizeof(*l->lines));
	l->lines[l->n++] = line;
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

char *config_next_line(struct config_reader *r)
{
	char *line = r->rest, *end;

	if (r->error || line == r->end)
		return NULL;
	end = memchr(line, '\n', (size_t)(r->end - line)) ?: r->end;
	r->rest = end < r->end ? end + 1 : end;
	r->line++;
	if (end > line && end[-1] == '\r')
		end--;
	*end = '\0';
	for (const char *at = line; at < end; at++)
		if (((unsigned char)*at < 0x20 && *at != '\t') || *at == 0x7f)
			config_mistake(r, "a control character");
	if (r->line == 1 && !strncmp(line, BOM, strlen(BOM)))
		line += strlen(BOM);
	return r->error ? NULL : line;
}

struct forward_text *config_add_forward(struct config_reader *r, const char *name)
{
	struct forward_text *t;

	for (size_t i = 0; i < r->text->n; i++)
		if (!strcmp(r->text->forwards[i].name, name))
			config_mistake(r, "[forward %s]: the name is taken in line %u", name,
				       r->text->forwards[i].line);
	if (r->error)
		return NULL;
	t = config_text_add(r->text);
	t->name = config_keep(r->c, "%s", name);
	t->file = r->c->file;
	t->line = r->line;
	return t;
}

void config_take(struct config_reader *r, struct forward_text *t, const struct option_def *o,
		 const char *key, const char *value)
{
	struct config_lines *said = t ? &t->said : &r->text->said;
	const struct config_line *before = option_is_list(o) ? NULL :
							       config_lines_find(said, o->name);

	if (before)
		config_mistake(r, "%s: given twice, first in line %u", key, before->line);
	else
		config_lines_add(said, (struct config_line){
			.option = o, .key = key, .value = config_keep(r->c, "%s", value),
			.line = r->line });
}

void config_note(struct config_reader *r, unsigned int line, const char *note)
{
	config_lines_add(&r->text->notes, (struct config_line){ .value = note, .line = line });
}

/* --- sections --- */

enum section { SECTION_NONE, SECTION_GLOBAL, SECTION_FORWARD };

struct parser {
	struct config_reader in;
	enum section section; /* that is being read */
};

static void end_section(struct parser *p)
{
	const struct forward_text *t;

	if (p->section != SECTION_FORWARD)
		return;
	t = config_last_forward(&p->in);
	if (!t->listen || !t->upstream)
		config_mistake_at(&p->in, t->line, "[forward %s]: %s is missing", t->name,
				  t->listen ? "upstream" : "listen");
}

/* LINE begins with "[".  inih cuts off what is behind 49 bytes of a section's name. */
static void begin_section(struct parser *p, const char *line)
{
	char name[42];
	const char *rest;
	int len = 0;

	end_section(p);
	if (!strncmp(line, "[culvert]", 9))
		len = 9;
	else
		sscanf(line, "[forward%*[ ]%41[^] \t]]%n", name, &len);
	rest = line + len + strspn(line + len, BLANKS);
	if (!len || (*rest && !strchr(";#", *rest)))
		config_mistake(&p->in, "\"%.64s\": expected [culvert] or [forward NAME], where "
			       "NAME is a word of at most 41 bytes, and nothing behind it", line);
	else if (len == 9)
		p->section = SECTION_GLOBAL;
	else if (config_add_forward(&p->in, name))
		p->section = SECTION_FORWARD;
}

/* --- keys --- */

static void take_option(struct parser *p, const char *key, const char *value)
{
	bool forward = p->section == SECTION_FORWARD;
	const struct option_def *o = option_find_key(key, forward);

	if (o)
		config_take(&p->in, forward ? config_last_forward(&p->in) : NULL, o, o->name,
			    value);
	else if (!forward && option_is_gone(key))
		config_note(&p->in, p->in.line, OPTION_GONE);
	else
		config_mistake(&p->in, "%s: unknown key of [%s] (`culvert help run` lists them)",
			       key, forward ? "forward NAME" : "culvert");
}

static void take_address(struct parser *p, const char *key, const char *value)
{
	struct forward_text *t = config_last_forward(&p->in);
	bool listen = !strcmp(key, "listen");
	const char **to = listen ? &t->listen : &t->upstream;
	unsigned int *line = listen ? &t->listen_line : &t->upstream_line;

	if (*to)
		config_mistake(&p->in, "%s: given twice, first in line %u", key, *line);
	*line = p->in.line;
	*to = config_keep(p->in.c, "%s", value);
}

/* For inih: 0 is an error. */
static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	struct parser *p = arg;

	(void)section; /* begin_section() has seen all of its name */
	if (p->section == SECTION_NONE)
		config_mistake(&p->in, "%s: before the first section, [culvert] or [forward NAME]",
			       key);
	else if (!value || !*value)
		config_mistake(&p->in, "%s: needs a value", key);
	else if (strstr(value, " #"))
		config_mistake(&p->in, "%s: \"#\" in a value: a comment there begins with \";\"",
			       key);
	else if (p->section == SECTION_FORWARD &&
		 (!strcmp(key, "listen") || !strcmp(key, "upstream")))
		take_address(p, key, value);
	else
		take_option(p, key, value);
	return !p->in.error;
}

/* For inih, as fgets(3).  A comment may be longer than inih's lines: it becomes an empty line. */
static char *next_line(char *buf, int size, void *arg)
{
	struct parser *p = arg;
	const char *line = config_next_line(&p->in), *text;

	if (!line)
		return NULL;
	text = line + strspn(line, BLANKS);
	if (!*text || strchr(";#", *text))
		line = "";
	else if (strlen(line) >= (size_t)size)
		config_mistake(&p->in, "the line has more than %d bytes, which only comments and "
			       "empty lines may have", size - 1);
	else if (text != line) /* inih would join it to the line before */
		config_mistake(&p->in, "indented: sections and keys begin in the first column");
	else if (*line == '[')
		begin_section(p, line);
	snprintf(buf, (size_t)size, "%s", line);
	return p->in.error ? NULL : buf;
}

static void read_sections(struct config_reader *r)
{
	struct parser p = { .in = *r };
	int line = ini_parse_stream(next_line, &p, on_key, &p);

	if (line)
		config_mistake_at(&p.in, (unsigned int)line, "neither [SECTION] nor KEY = VALUE");
	else
		end_section(&p);
	r->error = p.in.error;
}

/* --- the file --- */

/* Root's daemon does what the file says: nobody else may be able to write it. */
static int check_owner(const struct stat *st, const char *path)
{
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return log_complain(-EPERM, "%s belongs to uid %u, who could write anything into "
				    "the configuration: chown root", path,
				    (unsigned int)st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH) && !(S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX))
		return log_complain(-EPERM, "%s can be written by others (mode %04o): chmod go-w",
				    path, (unsigned int)st->st_mode & 07777);
	return 0;
}

/* Symbolic links are followed first: what counts is the file that is read, and its directory. */
int config_file_open(const char *path, FILE **ret)
{
	char *real = realpath(path, NULL);
	/* not to wait for the writer of a FIFO */
	int fd = real ? open(real, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK) : -1;
	struct stat st, dir;
	int r;

	if (fd < 0 || fstat(fd, &st))
		r = log_complain(-errno, "%s: %s (uid %u)", path, strerror(errno),
				 (unsigned int)geteuid());
	else if (!S_ISREG(st.st_mode))
		r = log_complain(-EINVAL, "%s: not a regular file", real);
	else
		r = check_owner(&st, real);
	if (!r && stat(dirname(real), &dir))
		r = log_complain(-errno, "%s: %s", real, strerror(errno));
	r = r ?: check_owner(&dir, real);
	free(real);
	*ret = r ? NULL : allocated(fdopen(fd, "r"));
	if (r && fd >= 0)
		close(fd);
	return r;
}

int config_file_read(struct config *c, struct config_text *text)
{
	char *content = allocated(malloc(CONFIG_FILE_MAX + 1));
	struct config_source from = { .text = content };
	FILE *f;
	int r = config_file_open(c->file, &f);

	if (!r) {
		from.len = fread(content, 1, CONFIG_FILE_MAX + 1, f);
		r = ferror(f) ? log_complain(-EIO, "%s: cannot be read", c->file) :
				config_file_take(&from, c, text);
		fclose(f);
	}
	free(content);
	return r;
}

int config_file_take(const struct config_source *from, struct config *c, struct config_text *text)
{
	char *copy = allocated(calloc(1, from->len + 1));
	struct config_reader r = { .c = c, .text = text, .rest = copy, .end = copy + from->len };

	if (from->len)
		memcpy(copy, from->text, from->len);
	if (from->len > CONFIG_FILE_MAX)
		r.error = log_complain(-EINVAL, "%s: the file has more than %d bytes", c->file,
				       CONFIG_FILE_MAX);
	text->is_rinetd = rinetd_is(copy);
	if (text->is_rinetd)
		rinetd_read(&r);
	else
		read_sections(&r);
	free(copy);
	return r.error;
}
