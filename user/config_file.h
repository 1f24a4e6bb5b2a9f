/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_FILE_H
#define CULVERT_CONFIG_FILE_H

#include <stddef.h>
#include <stdio.h>

#include "config.h"
#include "option.h"

/* A forward as it was written, before names are looked up. */
struct forward_text {
	const char *name, *listen, *upstream;
	const char *file; /* NULL: on the command line */
	unsigned int line, listen_line, upstream_line;
	struct forward_conf own;         /* what it says of options */
	unsigned int lines[OPTIONS_MAX]; /* of them, by option_number(); 0: it does not say */
};

/* All of them, in the order in which they were written, and which options are from the file. */
struct config_text {
	struct forward_text *forwards; /* owned */
	size_t n;
	unsigned int lines[OPTIONS_MAX]; /* by option_number(); 0: not given there, or not in
					  * force */
	bool offline; /* host names are not to be looked up */
};

/* Room for one more, zeroed; NULL: no memory. */
struct forward_text *config_text_add(struct config_text *t);
void config_text_close(struct config_text *t);

/*
 * Where a mistake is: "FILE:LINE: ", or "" for LINE 0.  Of a long FILE the end is kept.  BUF has
 * CONFIG_PLACE_LEN bytes; returns BUF.
 */
#define CONFIG_PLACE_LEN 300
const char *config_place(const char *file, unsigned int line, char *buf);

/*
 * Read the configuration file PATH: options into C, forwards into TEXT.  On a mistake prints one
 * line to stderr, with file and line, and returns -EINVAL; a file that cannot be read, or that
 * others than its owner could have written, gives another -errno.  Symbolic links are followed
 * first: what counts is the file that is read, and the directory that it is in.
 */
int config_file_read(const char *path, struct config *c, struct config_text *text);

/* Open it for that. */
int config_file_open(const char *path, FILE **ret);
#define CONFIG_FILE_MAX (1 << 20) /* bytes that it may have */

/* The same for an open file; nobody asks who could have written it.  PATH is for messages. */
int config_file_parse(FILE *f, const char *path, struct config *c, struct config_text *text);

#endif
