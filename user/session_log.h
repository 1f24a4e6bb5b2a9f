/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_LOG_H
#define CULVERT_SESSION_LOG_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "sandbox.h"
#include "stats.h"

/*
 * The session log: a line of JSON for each session, when it ends, and for each client that was
 * refused.  Workers leave a record and go on; a thread of its own makes lines of them and writes
 * them.  Whatever becomes of the file costs lines, which are counted, and nothing else.
 */
struct session_log;
struct session;

/*
 * Open PATH ("-": stdout), before root is given up.  Whose sessions end all at once, SESSIONS of
 * them, shall find room for their records.  -errno; ERR says what is wrong and what to do.
 */
int session_log_open(const char *path, const struct account *account, unsigned int sessions,
		     struct session_log **ret, char *err, size_t errlen);
/* Start the thread.  -errno. */
int session_log_start(struct session_log *l);
/*
 * Write what is still queued, for SESSION_LOG_LAST_MS at most, and forget the log.  No worker may
 * run any more.  NULL is fine.
 */
#define SESSION_LOG_LAST_MS 2000
void session_log_close(struct session_log *l);

/* Open the path anew, once the records that are queued now are written.  From any thread. */
void session_log_reopen(struct session_log *l);

/* S ends because of END (session_record.h); KERNEL: session_kernel_bytes() of either flow. */
void session_log_ended(struct session_log *l, const struct session *s, const uint64_t kernel[2],
		       unsigned int end);
/* A client of FORWARD was turned away because of WHY. */
void session_log_refused(struct session_log *l, const char *forward, const struct sockaddr *client,
			 uint64_t now_ms, enum cause why);

/* For `culvert status`; of NULL, null. */
struct json_object *session_log_json(struct session_log *l);

#endif
