/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_STDERR_READER_H
#define CULVERT_TEST_STDERR_READER_H

#include <stdbool.h>

/*
 * A thread that reads what a program says on stderr: it keeps the newest 64 KiB, and notices
 * "culvert: ready" and a sanitizer's complaint.  With FLOW_VERBOSE in the environment all of it is
 * written to our stderr, too.
 */
struct stderr_reader;

/* FD is the reading end of the program's stderr; *RET closes it.  0 or -errno. */
int stderr_reader_open(int fd, struct stderr_reader **ret);

/*
 * Wait until the program is ready: 0.  -EPIPE: its stderr has ended before.  -ETIMEDOUT: neither
 * within TIMEOUT_MS.
 */
int stderr_reader_wait_ready(struct stderr_reader *r, int timeout_ms);

/* What is kept; the caller frees. */
char *stderr_reader_text(struct stderr_reader *r);

/* The first line in which a sanitizer complains, to be freed by the caller; NULL: none has. */
char *stderr_reader_complaint(struct stderr_reader *r);

/* Wait, for 2 seconds at most, until stderr has ended, so that all of it was seen.  Has it? */
bool stderr_reader_join(struct stderr_reader *r);

/*
 * Joins, and frees.  If somebody still holds the program's stderr, R stays, for its thread, and
 * that is said.
 */
void stderr_reader_close(struct stderr_reader *r);

#endif
