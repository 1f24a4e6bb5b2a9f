/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_FILE_H
#define CULVERT_CONFIG_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "config/config.h"

/*
 * A configuration as it was written: texts, each with its line.  The file with sections, the
 * rinetd.conf (rinetd.h) and the command line all become this; config.c stores the values.
 */

#define CONFIG_FILE_MAX (1 << 20) /* bytes that a file may have */

/* A setting; without OPTION: a note for the reader. */
struct config_line {
	const struct option_def *option;
	const char *key;   /* as the file calls OPTION */
	const char *value;
	unsigned int line; /* of the file; 0: of the command line */
};

struct config_lines {
	struct config_line *lines; /* owned, but not their texts */
	size_t n;
};

struct forward_text {
	const char *name, *listen, *upstream;
	const char *file; /* NULL: on the command line */
	unsigned int line, listen_line, upstream_line;
	bool no_rules;    /* do not inherit allow and deny */
	struct config_lines said;
};

struct config_text {
	struct forward_text *forwards; /* owned; in the order in which they were written */
	size_t n;
	struct config_lines said;  /* the file, for all forwards */
	struct config_lines words; /* the command line; counts over the file */
	struct config_lines notes;
	bool is_rinetd;            /* the file is a rinetd.conf */
	bool may_be_empty;         /* no forward is no mistake */
};

void config_text_close(struct config_text *t);
/* Add a forward, zeroed. */
struct forward_text *config_text_add(struct config_text *t);

void config_lines_add(struct config_lines *l, struct config_line line);
/* The last line that says the option NAME, or NULL. */
const struct config_line *config_lines_find(const struct config_lines *l, const char *name);
/* The line of the file that says the option NAME in T; 0: T does not say it. */
unsigned int forward_says(const struct forward_text *t, const char *name);

/* Print the notes on stderr, a line each. */
void config_text_say_notes(const struct config_text *text, const char *file);
/* Warn on stderr that FILE has no forward, which may be meant. */
void config_text_say_empty(const char *file);

/* --- reading --- */

/* Open the file PATH for reading.  -errno if that fails or if others could have written it. */
int config_file_open(const char *path, FILE **ret);

/*
 * Read the file that C names into TEXT.  A file that does not begin with a section is a
 * rinetd.conf.  On a mistake prints one line to stderr, with file and line, and returns -EINVAL; a
 * file that config_file_open() refuses gives another -errno.
 */
int config_file_read(struct config *c, struct config_text *text);
/* The same of the content FROM. */
int config_file_take(const struct config_source *from, struct config *c, struct config_text *text);

/*
 * A reader takes a file line by line, whatever its form.  The first mistake is printed with file
 * and line, and ends the reading.
 */
struct config_reader {
	struct config *c;
	struct config_text *text;
	char *rest, *end;  /* what has not been read yet; END may be written to */
	unsigned int line; /* the last one read */
	int error;         /* 0: no mistake yet */
};

/* Complain about LINE; or about the last line read. */
#define config_mistake_at(r, line, ...)                                                            \
	((r)->error = (r)->error ?: config_complain((r)->c->file, line, __VA_ARGS__))
#define config_mistake(r, ...) config_mistake_at(r, (r)->line, __VA_ARGS__)

/*
 * The next line, without its end; NULL: there is none, or a mistake.  It has no control character
 * but tabs.
 */
char *config_next_line(struct config_reader *r);

/* Add a forward called NAME, which must not be taken, in the last line read; NULL: a mistake. */
struct forward_text *config_add_forward(struct config_reader *r, const char *name);
static inline struct forward_text *config_last_forward(const struct config_reader *r)
{
	return &r->text->forwards[r->text->n - 1];
}

/* Take the line that KEY is VALUE, which sets O, as said in T, or (NULL) for all forwards. */
void config_take(struct config_reader *r, struct forward_text *t, const struct option_def *o,
		 const char *key, const char *value);
/* Note something, which lives as long as the configuration, about LINE. */
void config_note(struct config_reader *r, unsigned int line, const char *note);

#endif
