/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LOG_FILE_H
#define CULVERT_LOG_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/sandbox.h"

/*
 * A file that lines are appended to: a regular one, a FIFO, a pipe, a terminal or another device.
 * A line is written whole or not at all, whatever happens: on a full disk what there is of it is
 * cut off again.
 */

/* PATH, as a configuration has it, is that of a file: there is one, and it is not stdout ("-"). */
static inline bool log_file_is_path(const char *path)
{
	return path && strcmp(path, "-") != 0;
}

/*
 * Open PATH for appending, and make it (mode 0640) if it is missing.  A symbolic link is refused,
 * and so is a file that others could have made or can write.  ACCOUNT is who culvert is, or will
 * be.  Returns a descriptor or -errno; then ERR says what is wrong and what to do.  -ENXIO: a FIFO
 * that nobody reads.
 */
int log_file_open(const char *path, const struct account *account, char *err, size_t errlen);

/*
 * The same as root before it is given up: as ACCOUNT if that may, so that it can be done again
 * later; else as root, and *RET_ROOT is set.  A file that is made belongs to ACCOUNT in any case.
 */
int log_file_open_as(const char *path, const struct account *account, bool *ret_root, char *err,
		     size_t errlen);

/* Would log_file_open() fail, in a way that will not pass?  Nothing is opened, nor made. */
int log_file_check(const char *path, const struct account *account, char *err, size_t errlen);

struct log_file {
	int fd;
	bool regular;
	bool torn; /* it ends in a part of a line, which could not be cut off */
};

/* FD is its own from now on; -1: it is not open. */
void log_file_adopt(struct log_file *f, int fd);
void log_file_close(struct log_file *f);

/* Called while the reader of a pipe is slow, ten times a second.  False: give up. */
typedef bool log_file_patience_fn(void *arg);

/*
 * Append the lines in TEXT.  Waits for the disk or the reader.  *RET_DONE: how many bytes of whole
 * lines are written, all of them if it returns 0; else -errno, -EAGAIN for a reader that was given
 * up.
 */
int log_file_write(struct log_file *f, const char *text, size_t len, log_file_patience_fn *patience,
		   void *arg, size_t *ret_done);

#endif
