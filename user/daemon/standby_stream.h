/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_socket.h"
#include "daemon/standby.h"

/*
 * An export or an import.  Each has a thread of the control socket, on which all functions here
 * run.
 */

/* The age from which an export sends a session, unless the request has another. */
#define STANDBY_AFTER_MS 2000
#define DEAF_MS 10000 /* a peer that takes nothing, or sends nothing, for this time is cut off */

enum stream_phase {
	STREAM_CLOSED,
	STREAM_DUMPS, /* all present sessions travel; entered again at an import's first record */
	STREAM_IN_SYNC,
};

/*
 * Take the lock of streams after that of forwards.  Control requests that show streams take both
 * in this order, too.
 */
void stream_lock(struct standby *sb);
void stream_unlock(struct standby *sb);

/*
 * NAME: of an import; NULL: an export.  Returns NULL if there is no memory, or STREAMS_MAX streams
 * are open.
 */
struct stream *stream_open(struct standby *sb, const struct control *c, int fd, const char *name);
void stream_enter(struct stream *s, enum stream_phase phase);
void stream_close(struct stream *s);

/*
 * Take R with ARG.  A wrong R has kind RECORD_NONE, and WHY is its fault.  Returns a fault that ends the
 * stream, or NULL: later records may be right.
 */
typedef const char *stream_take_fn(void *arg, struct graft_record *r, const char *why);
/*
 * Give the records that come at FD to TAKE, until the stream of NAME ends.  The client and the log get
 * the fault that ends the stream.
 */
void stream_read(const struct control *c, int fd, const char *name, stream_take_fn *take,
		 void *arg);

/*
 * Serve the client at FD until the client or this daemon ends the stream.  The export sends
 * sessions that have been grafted for AFTER_MS (standby_export.c).  The import enters sessions as
 * those of NAME (standby_import.c).
 */
void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms);
void standby_import(struct standby *sb, const struct control *c, int fd, const char *name);
/*
 * An import has put a STANDBY session at AT, which was at place WAS, or is new (NO_SLOT).  Under the lock
 * of streams.
 */
void standby_export_came(struct standby *sb, uint32_t was, uint32_t at);
/* Let all exports tell of AT, which this relay owns, again.  Under the lock of streams. */
void standby_export_again(struct standby *sb, uint32_t at);
