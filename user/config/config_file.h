/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_FILE_H
#define CULVERT_CONFIG_FILE_H

#include <stdio.h>

#include "config/config_text.h"

/*
 * Read the configuration file PATH: options into C, forwards into TEXT.  A file that does not begin
 * with a section is a rinetd.conf (config_rinetd.h).  On a mistake prints one line to stderr, with
 * file and line, and returns -EINVAL; a file that cannot be read, or that others than its owner
 * could have written, gives another -errno.  Symbolic links are followed first: what counts is the
 * file that is read, and the directory that it is in.
 */
int config_file_read(const char *path, struct config *c, struct config_text *text);

/* Open it for that. */
int config_file_open(const char *path, FILE **ret);

/* The same for an open file; nobody asks who could have written it.  PATH is for messages. */
int config_file_take(FILE *f, const char *path, struct config *c, struct config_text *text);

/* The same for one with sections. */
int config_file_parse(FILE *f, const char *path, struct config *c, struct config_text *text);

#endif
