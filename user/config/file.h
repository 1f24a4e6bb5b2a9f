/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "config/config.h"
#include "config/option.h"

#define CONFIG_FILE_MAX (1 << 20) /* bytes that a file may have */

/*
 * Open the file PATH for reading: a descriptor, or -errno if that fails or if others could have
 * written it.
 */
int config_file_open(const char *path);

/*
 * What the file PATH says of `control` in [culvert], the path of the control socket: RET, which the
 * caller frees; NULL: nothing.  Keys that are unknown or wrong are passed over: a daemon runs, and
 * its reload says what is wrong.  -errno, after a complaint, if the file cannot be read.
 */
int config_file_control(const char *path, char **ret);

/*
 * A reader takes a file line by line, whatever its form.  The first mistake is printed with file
 * and line, and ends the reading.
 */
struct config_reader {
	struct config *c;
	char *text;                   /* all of the file; owned: whoever opens a reader frees it */
	char *rest;                   /* what has not been read yet; NULL: nothing */
	unsigned int line;            /* the last one read */
	int error;                    /* 0: no mistake yet */
	struct forward_conf *forward; /* the last one that began; NULL: none has */
};

/*
 * Begin to read FD, or (-1) open it: the file that C names.  If that fails, a line on stderr says
 * why, r->error is -errno, and there is no line.
 */
void config_reader_open(struct config_reader *r, int fd, struct config *c);

/* Read all of R, a file with sections. */
void config_read_sections(struct config_reader *r);

/* "FILE:LINE: " of the last line read. */
const char *config_here(const struct config_reader *r);

/* Complain about PLACE; or about the last line read. */
#define config_mistake_at(r, place, ...)                                                           \
	((r)->error = (r)->error ?: config_complain(place, __VA_ARGS__))
#define config_mistake(r, ...) config_mistake_at(r, config_here(r), __VA_ARGS__)

/*
 * The next line, without its end; NULL: there is none, or a mistake.  It has no control character
 * but tabs.
 */
char *config_next_line(struct config_reader *r);

/* Add a forward called NAME, which must not be taken, in the last line read. */
void config_begin_forward(struct config_reader *r, const char *name);

/* Take the line that KEY is VALUE, which sets O, as said by FC, or (NULL) for all forwards. */
void config_take(struct config_reader *r, struct forward_conf *fc, const struct option_def *o,
		 const char *key, const char *value);
