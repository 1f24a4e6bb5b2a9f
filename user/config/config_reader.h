/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_READER_H
#define CULVERT_CONFIG_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "config/config_text.h"

/*
 * What a file is read with, whatever its form (config_file.c, config_rinetd.c): line by line, up to
 * the first mistake, which is printed with file and line and ends the reading.
 */
struct config_reader {
	struct config *c;
	struct config_text *text;
	FILE *f;
	const char *path;  /* for messages */
	unsigned int line; /* the one that was read last */
	size_t bytes;      /* read */
	int error;         /* 0: no mistake yet */
};

#define CONFIG_FILE_MAX (1 << 20) /* bytes that a file may have */
#define CONFIG_LINE_ROOM 16385    /* for a line; rinetd 0.62 cut longer ones into two */

/* The line that was read last is wrong; or LINE is. */
void config_mistake(struct config_reader *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void config_mistake_at(struct config_reader *r, unsigned int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void config_no_memory(struct config_reader *r);

/*
 * The next line, without its end, into the SIZE bytes of BUF; false: there is none, or a mistake.
 * It has no control character but tabs, and the byte order mark of UTF-8 is taken off the first.
 */
bool config_next_line(struct config_reader *r, char *buf, size_t size);

/* The forward called NAME, or NULL. */
struct forward_text *config_find_forward(const struct config_text *text, const char *name);
/* One of that name, which nobody has, that the file says in this line; NULL: no memory. */
struct forward_text *config_add_forward(struct config_reader *r, const char *name);
static inline struct forward_text *config_last_forward(const struct config_reader *r)
{
	return &r->text->forwards[r->text->n - 1];
}

/* LINE, which calls O KEY, says that it is VALUE: for all (T is NULL), or for T. */
void config_take(struct config_reader *r, unsigned int line, struct forward_text *t,
		 const struct option_def *o, const char *key, const char *value);

#endif
