/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * A private directory for the files of a test, and files in it.  It is below /tmp: what is in it
 * may be a unix socket, whose path must be short.
 */

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TEMP_DIR_LEN sizeof("/tmp/culvert-test.XXXXXX")

/* DIR becomes its path, of TEMP_DIR_LEN bytes.  0 or -1. */
static inline int temp_dir_make(char *dir)
{
	strcpy(dir, "/tmp/culvert-test.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static inline int temp_dir_remove_entry(const char *path, const struct stat *st, int type,
					struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

/* With all that is in it. */
static inline int temp_dir_remove(const char *dir)
{
	return nftw(dir, temp_dir_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* The file PATH is these bytes, and its owner's alone. */
static inline void temp_file_write(const char *path, const void *data, size_t len)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, 0600), 0);
}
