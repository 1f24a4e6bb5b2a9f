/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_CLIENT_RIG_H
#define CULVERT_TESTS_CLIENT_RIG_H

/* The client of the control socket, as from a shell. */

#include <unistd.h>

#include "capture.h"
#include "cli/client.h"

#define OUT_MAX 16384

/* Run the client with WORDS up to NULL, of which the first is the subcommand. */
static inline int run_words(const char *const *words, char out[OUT_MAX], char err[OUT_MAX])
{
	struct capture stdout_capture, stderr_capture;
	char *argv[12];
	int argc = 0;
	int code;

	for (; words[argc]; argc++)
		argv[argc] = (char *)words[argc];
	argv[argc] = NULL;
	capture_begin(&stdout_capture, STDOUT_FILENO);
	capture_begin(&stderr_capture, STDERR_FILENO);
	code = client_run(argc, argv);
	capture_end(&stderr_capture, err, OUT_MAX);
	capture_end(&stdout_capture, out, OUT_MAX);
	return code;
}

#define RUN(out, err, ...) run_words((const char *const[]){ __VA_ARGS__, NULL }, out, err)

#endif
