/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* A configuration file, and what comes of it: a configuration, or one line on stderr. */

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "capture.h"
#include "config/read.h"
#include "temp_dir.h"

static char rig_dir[TEMP_DIR_LEN];
static char rig_path[TEMP_DIR_LEN + 32]; /* of the file */
static struct config rig_config;         /* as read last */
static char rig_err[8192];               /* what was said of it */

/* Before the first test of a program, and behind the last. */
static inline int rig_open(void **state)
{
	(void)state;
	if (temp_dir_make(rig_dir))
		return -1;
	snprintf(rig_path, sizeof(rig_path), "%s/c", rig_dir);
	return 0;
}

static inline int rig_close(void **state)
{
	(void)state;
	config_close(&rig_config);
	return temp_dir_remove(rig_dir);
}

static inline void rig_write(const char *text)
{
	temp_file_write(rig_path, text, strlen(text));
}

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* Read WORDS (NULL: none) of the command line, and the file unless NO_FILE. */
static inline int rig_parse(bool no_file, const char *const *words)
{
	char *argv[20] = { (char *)"run", (char *)"--config", rig_path };
	struct capture capture;
	int argc = no_file ? 1 : 3, r;

	while (words && *words)
		argv[argc++] = (char *)*words++;
	argv[argc] = NULL;
	config_close(&rig_config);
	capture_begin(&capture, STDERR_FILENO);
	r = config_read(argc, argv, -1, &rig_config);
	capture_end(&capture, rig_err, sizeof(rig_err));
	return r;
}

/* TEXT (NULL: no file), with WORDS, is without a mistake, and nothing has to be said of it. */
static inline const struct config *rig_good(const char *text, const char *const *words)
{
	int r;

	if (text)
		rig_write(text);
	r = rig_parse(!text, words);
	if (r)
		fail_msg("%d: %s", r, rig_err);
	assert_string_equal(rig_err, "");
	return &rig_config;
}

struct rig_mistake {
	unsigned int line; /* 0: of the whole file */
	const char *complaint, *text;
};

/* The LEN bytes of TEXT have a mistake in LINE, which one line that begins with COMPLAINT says. */
static inline void rig_bad_bytes(const char *text, size_t len, unsigned int line,
				 const char *complaint)
{
	char want[512];
	int r;

	temp_file_write(rig_path, text, len);
	r = rig_parse(false, NULL);
	if (line)
		snprintf(want, sizeof(want), "culvert: %s:%u: %s", rig_path, line, complaint);
	else
		snprintf(want, sizeof(want), "culvert: %s", complaint);
	if (r != -EINVAL || strncmp(rig_err, want, strlen(want)) != 0 ||
	    strchr(rig_err, '\n') != rig_err + strlen(rig_err) - 1)
		fail_msg("%d: \"%s\"\ninstead of \"%s\"", r, rig_err, want);
}

static inline void rig_bad(const struct rig_mistake *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		rig_bad_bytes(rows[i].text, strlen(rows[i].text), rows[i].line, rows[i].complaint);
}
