// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: inih takes lines apart and calls us for each key.  What it does not tell
 * (the number of the line, sections without a key) or would take in silence (lines and section
 * names that are too long for it, control characters) is seen by what feeds it line by line:
 * config_reader.c, and look_at().  That also knows which lines have to hold a key, so one for which
 * inih has not called us is a mistake, which is said before any of a later line.
 *
 *	[culvert]            options that the command line has as well, without "--"
 *	[forward NAME]       listen = ADDRESS, upstream = ADDRESS, and options for it alone
 *
 * The first mistake ends the reading.
 */
#include "config/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "config/config_reader.h"
#include "config/config_rinetd.h"

/* inih cuts longer names of sections off (MAX_SECTION in ini.c). */
#define SECTION_MAX 49
#define FORWARD "forward"
#define BLANKS " \t"

enum section { SECTION_NONE, SECTION_GLOBAL, SECTION_FORWARD };

struct parser {
	struct config_reader in;
	char line[CONFIG_LINE_ROOM];
	bool key_due; /* the line has to hold a key, and on_key() has not seen it yet */
	enum section section; /* that is being read */
	unsigned int global_line; /* of [culvert]; 0: not yet */
};

/* --- sections --- */

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
	const char *rest = end ? end + 1 + strspn(end + 1, " \t") : NULL;
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

	if (o)
		config_take(&p->in, p->in.line, t, o, key, value);
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

/* A "#" that was meant as a comment: at the beginning, or behind a blank. */
static bool has_number_sign(const char *value)
{
	for (const char *at = strchr(value, '#'); at; at = strchr(at + 1, '#'))
		if (at == value || at[-1] == ' ' || at[-1] == '\t')
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

/* The line before is done with: did inih find a key in it? */
static void end_line(struct parser *p)
{
	if (p->key_due)
		config_mistake(&p->in, "neither [SECTION] nor KEY = VALUE");
	p->key_due = false;
}

/* Before inih gets it, which has room for SIZE bytes.  False: there is nothing in it for inih. */
static bool look_at(struct parser *p, const char *line, size_t size)
{
	const char *text = line + strspn(line, BLANKS);

	if (!*text || strchr(";#", *text))
		return false;
	if (strlen(line) >= size)
		config_mistake(&p->in, "the line has more than %zu bytes, which only comments and "
			       "empty lines may have", size - 1);
	/* to inih it would continue the line before, which no key of ours allows */
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

int config_file_parse(FILE *f, const char *path, struct config *c, struct config_text *text)
{
	struct parser p = { .in = { .c = c, .text = text, .f = f, .path = path } };
	int r = ini_parse_stream(next_line, &p, on_key, &p);

	end_line(&p);
	end_section(&p);
	if (r == -2) /* inih's word for it */
		config_no_memory(&p.in);
	else if (r)
		config_mistake_at(&p.in, (unsigned int)r, "neither [SECTION] nor KEY = VALUE");
	return p.in.error;
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
