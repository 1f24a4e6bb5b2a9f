/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_PRIVILEGED_RIG_H
#define CULVERT_TEST_PRIVILEGED_RIG_H

/*
 * What tests of the privileged process start it with: a configuration file in a folder of their
 * own.  In it, `seccomp = kill`: a system call that its filter does not know ends it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/config.h"
#include "temp_dir.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* not every program needs all */

#define NUMBERS "[culvert]\nseccomp = kill\n[forward a]\nlisten = 127.0.0.1:0\n" \
		"upstream = 127.0.0.1:9\n[forward b]\nlisten = [::1]:0\nupstream = 127.0.0.1:9\n"

static char folder[TEMP_DIR_LEN];
static char path[64];
static char *words[] = { (char *)"run", (char *)"--config", path, NULL };
static struct config config;

static int make_folder(void **state)
{
	(void)state;
	if (temp_dir_make(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/c", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return temp_dir_remove(folder);
}

static void write_bytes(const char *text, size_t len)
{
	temp_file_write(path, text, len);
}

static void write_file(const char *text)
{
	write_bytes(text, strlen(text));
}

#pragma GCC diagnostic pop

#endif
