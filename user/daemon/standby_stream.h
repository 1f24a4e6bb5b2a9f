/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/standby.h"

/* A stream is an export or an import, and has a thread of the control socket. */

/* At how many milliseconds of age `export` tells of a session, if the request does not say. */
#define STANDBY_AFTER_MS 2000

/*
 * Serve the client at FD until the client or this daemon ends that: export sessions that were
 * grafted AFTER_MS ago (standby_export.c), or import sessions as NAME (standby_import.c).  On a
 * thread of C.
 */
void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms);
void standby_import(struct standby *sb, const struct control *c, int fd, const char *name);

/* --- for both, on that thread --- */

#define STREAM_BUFFER 65536
/* A peer that takes nothing, or sends nothing, for so long is cut off. */
#define STREAM_DEAF_MS 10000

enum stream_phase {
	STREAM_CLOSED,
	STREAM_DUMPS, /* all sessions are on their way; of an import: once a record has come */
	STREAM_IN_SYNC,
};

/* What an export has told of a place. */
struct exported {
	uint32_t key; /* changes with the record of the place; 0: there is none */
	struct graft_tuple client;
};

/* NAME: of an import.  NULL: no memory, or STREAMS_MAX streams are open. */
struct stream *standby_stream_open(struct standby *sb, const struct control *c, int fd,
				   const char *name);
void standby_stream_close(struct stream *s);
void standby_stream_enter(struct stream *s, enum stream_phase phase);
