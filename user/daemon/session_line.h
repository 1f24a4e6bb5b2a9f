/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_LINE_H
#define CULVERT_SESSION_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "relay/session_record.h"

/*
 * A record as a line of the session log: one object of JSON and a newline.  docs/operations.md says
 * what its members mean.  json-c would take ten times as long, and at ten thousand short sessions a
 * second that is CPU time that they miss.
 */

#define SESSION_LINE_MAX 4096 /* PIPE_BUF: into a pipe, a line is written whole or not at all */

/* From the clock of the records to that of the calendar. */
struct session_clock {
	int64_t offset_ms;  /* CLOCK_REALTIME - CLOCK_MONOTONIC */
	int64_t second;     /* that TEXT is about */
	char text[80];      /* "2026-11-22T06:44:01"; "": nothing yet */
};

/* Write the line into BUF, SESSION_LINE_MAX bytes; how many it has.  Not terminated. */
size_t session_line(const struct session_record *r, struct session_clock *clock, char *buf);

#endif
