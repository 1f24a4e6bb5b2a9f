/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/addr.h"
#include "base/sandbox.h"
#include "datapath/stats.h"

/*
 * The session log: a line of JSON for each session when it ends, and for each client that was
 * refused (docs/operations.md).  A worker puts the line into a bounded queue and goes on; one
 * thread writes the lines.  A slow or full disk costs lines, which are counted, and nothing else.
 */
struct session_log;
struct forward;
struct session_view;
struct worker;

/*
 * Open the log at PATH ("-": stdout) before root is given up; ACCOUNT writes to it.  The queue has
 * room for SESSIONS that end at once.  -errno; ERR says what is wrong and what to do.
 */
int session_log_open(const char *path, const struct account *account, unsigned int sessions,
		     struct session_log **ret, char *err, size_t errlen);

/* Start the thread.  -errno. */
int session_log_start(struct session_log *l);

/*
 * Write the queue, for SESSION_LOG_LAST_MS at most, and free L.  No worker may run any more.  NULL
 * is fine.  If the thread hangs in a system call on the file, L is not freed.
 */
#define SESSION_LOG_LAST_MS 2000
void session_log_close(struct session_log *l);

/* Write the queue, then open the path anew.  From any thread. */
void session_log_reopen(struct session_log *l);
/* ERR: why the last reopening has failed, or "". */
void session_log_not_reopened(struct session_log *l, char *err, size_t errlen);

/* Log that the session V ends because of END, as of session_json.h. */
void session_log_ended(struct session_log *l, const struct session_view *v, unsigned int end);
/* Count the end of a session of W, and log it, if there is a log that takes such sessions. */
void session_ended(struct worker *w, const struct session_view *v, unsigned int end);
/* Log that a client of F was turned away because of WHY.  L may be NULL. */
void session_log_refused(struct session_log *l, const struct forward *f,
			 const union client_addr *client, enum cause why);

/* For `culvert status`. */
struct json_object *session_log_json(struct session_log *l);

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
 * Open PATH for appending; if it is missing make it (mode 0640), and give it to ACCOUNT, under
 * which culvert runs, or will run.  Refuse a symbolic link, and a file or directory that an account
 * other than root and ACCOUNT could have made, or that everybody can write.  Return a descriptor or
 * -errno; then ERR says what is wrong and what to do.  -ENXIO: a FIFO that nobody reads.
 */
int log_file_open(const char *path, const struct account *account, char *err, size_t errlen);
