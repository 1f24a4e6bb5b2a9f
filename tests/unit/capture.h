/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * What a function under test writes to a standard stream, as a string.  Assert nothing between
 * capture_begin() and capture_end(): cmocka's message would be captured too.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct capture {
	int target; /* STDOUT_FILENO or STDERR_FILENO */
	int saved;  /* a copy of what was there */
	int file;
};

static inline void capture_begin(struct capture *c, int target)
{
	fflush(NULL);
	c->target = target;
	c->saved = fcntl(target, F_DUPFD_CLOEXEC, 3);
	c->file = memfd_create("capture", MFD_CLOEXEC);
	if (c->saved < 0 || c->file < 0 || fcntl(c->file, F_SETFL, O_APPEND) < 0 ||
	    dup2(c->file, target) < 0)
		abort();
}

/* Put the stream back, and what was written into BUF; returns BUF. */
static inline char *capture_end(struct capture *c, char *buf, size_t size)
{
	ssize_t n;

	fflush(NULL);
	n = pread(c->file, buf, size - 1, 0);
	if (n < 0 || dup2(c->saved, c->target) < 0)
		abort();
	buf[n] = '\0';
	close(c->file);
	close(c->saved);
	return buf;
}
