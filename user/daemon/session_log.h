/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_LOG_H
#define CULVERT_SESSION_LOG_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/sandbox.h"
#include "datapath/stats.h"

/*
 * The session log: a line of JSON for each session, when it ends, and for each client that was
 * refused.  Workers leave a record and go on; a thread of its own makes lines of them and writes
 * them.  Whatever becomes of the file costs lines, which are counted, and nothing else.
 */
struct session_log;
struct session;

/* Opens the path for who may not do so itself any more: a descriptor or -errno. */
typedef int session_log_opener(void *arg);

struct session_log_conf {
	const char *path;      /* "-": stdout */
	struct account account; /* who writes it */
	unsigned int sessions; /* that may end all at once and shall find room for their records */
	session_log_opener *opener; /* NULL: there is nobody */
	void *opener_arg;
};

/*
 * Open it, before root is given up.  -errno; ERR says what is wrong and what to do.
 */
int session_log_open(const struct session_log_conf *conf, struct session_log **ret, char *err,
		     size_t errlen);

/* Start the thread.  -errno. */
int session_log_start(struct session_log *l);
/*
 * Write what is still queued, for SESSION_LOG_LAST_MS at most, and forget the log.  No worker may
 * run any more.  NULL is fine.  False: the file or the opener does not come back to the thread,
 * which is left behind; what the opener uses must then stay until the process ends.
 */
#define SESSION_LOG_LAST_MS 2000
bool session_log_close(struct session_log *l);

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
