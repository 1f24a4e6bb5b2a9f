/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "config/config.h"
#include "config/option.h"

#define CONFIG_FILE_MAX (1 << 20) /* bytes that a file may have */

/*
 * Open the file PATH, with the files that it includes, for reading: a descriptor, or -errno if that
 * fails or if others could have written one of them.
 */
int config_file_open(const char *path);

/*
 * Read `control` in [culvert], the path of the control socket, from the file PATH into *RET, which
 * the caller frees.  NULL: the file does not set it.  Unknown or wrong keys are ignored, because a
 * reload of the daemon reports them.  -errno, after a complaint, if the file cannot be read.
 */
int config_file_control(const char *path, char **ret);

/*
 * A reader takes a culvert.conf or a rinetd.conf line by line.  The first mistake of each line is
 * printed with file and line.  Reading goes on.
 */
struct config_reader {
	struct config *c;
	char *text;                   /* all of the file; owned by the opener of the reader */
	char *rest;                   /* the part that has not been read yet; NULL: nothing */
	const char *file;             /* whose line was read last */
	unsigned int line;            /* its number */
	bool includes;                /* that file is an included one, whose sections are its own */
	bool mistaken;                /* that line has a mistake */
	bool astray;                  /* a line outside of sections had one, in this file */
	int error;                    /* 0: no mistake yet */
	struct forward_conf *forward; /* the last one that began; NULL: none has */
};

/*
 * Begin to read FD, which is the file that C names; -1: open that file.  If that fails, a line on
 * stderr says why, r->error is -errno, and the text is empty.
 */
void config_reader_open(struct config_reader *r, int fd, struct config *c);
/* Begin to read the text that R has. */
void config_reader_begin(struct config_reader *r);

/* Read all of R, a file with sections. */
void config_read_sections(struct config_reader *r);

/* "FILE:LINE: " of the last line read. */
const char *config_here(const struct config_reader *r);

/* config_mistake_at() complains about PLACE, config_mistake() about the line read last, once. */
#define config_mistake_at(r, place, ...) ((r)->error = config_complain(place, __VA_ARGS__))
#define config_mistake(r, ...)                                                                     \
	((r)->mistaken ?                                                                           \
		 (void)0 :                                                                         \
		 (void)((r)->mistaken = true, config_mistake_at(r, config_here(r), __VA_ARGS__)))

/* The next line, without its end; NULL: there is none.  A control character is a mistake. */
char *config_next_line(struct config_reader *r);

/*
 * Add a forward called NAME, which begins in the line read last.  Another forward of that name is a
 * mistake.  If the line is mistaken, so is the forward.
 */
void config_begin_forward(struct config_reader *r, const char *name);

/*
 * Keep the line KEY = VALUE, which sets O, for FC (NULL: for all forwards).  A mistaken line is not
 * kept.
 */
void config_take(struct config_reader *r, struct forward_conf *fc, const struct option_def *o,
		 const char *key, const char *value);
