/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/sandbox.h"

/*
 * A file that a process without privileges appends lines to: a regular file, a FIFO, a terminal or
 * another device.
 */

/* PATH of a configuration: is it the path of a file, and not NULL or "-" (stdout)? */
static inline bool log_file_is_path(const char *path)
{
	return path && strcmp(path, "-") != 0;
}

/*
 * Open PATH for appending; if it is missing make it (mode 0640), and give it to ACCOUNT, who is who
 * culvert is, or will be.  Refuse a symbolic link, and a file or directory that an account other
 * than root and ACCOUNT could have made, or that everybody can write.  Return a descriptor or -errno;
 * then ERR says what is wrong and what to do.  -ENXIO: a FIFO that nobody reads.
 */
int log_file_open(const char *path, const struct account *account, char *err, size_t errlen);
