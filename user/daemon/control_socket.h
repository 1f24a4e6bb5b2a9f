/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/addr.h"
#include "daemon/control_requests.h"

/*
 * The control socket, and the threads that serve it: one request per connection, a few clients at a
 * time.  A request is one line (control_requests.h); the answer, one line of JSON, is made by
 * control_round.h.
 */
struct control;

#define CONTROL_REQUEST_MAX 4096 /* bytes of a request, its newline and one more */

#define CONTROL_ANSWER_MS 2000 /* for a client to take an answer, or a piece of it */

/* Make the answer to REQ, one at a time.  The caller releases it.  NULL: there is no memory. */
typedef struct json_object *control_answer_fn(void *arg, const struct request *req);

/*
 * The answer to REQ of PEER: that of FN; or an error, if REQ changes something and MAY_CHANGE is
 * false.  The caller releases the answer.  NULL: there is no memory.
 */
struct json_object *control_answer(control_answer_fn *fn, void *arg, const struct request *req,
				   const struct ucred *peer, bool may_change);

/*
 * Bind PATH (mode 0660, of the group GID).  The directory of PATH is made, for UID, if there is
 * none.  Processes that may open the file may look; root and UID alone may make changes.  The
 * socket of a dead daemon is replaced; that of a live one gives -EADDRINUSE.  -errno, after a
 * complaint.
 */
int control_open(const char *path, uid_t uid, gid_t gid, struct control **ret);
/*
 * Serve the client at FD after the answer to REQ; if the command is in_pieces, send the answer.
 * Not called after an error.  The connection ends when this returns.
 */
typedef void control_stream_fn(void *arg, const struct control *c, const struct request *req,
			       int fd);
/* Start the threads, with more for STREAMS.  -errno: some may run, until control_close(). */
int control_start(struct control *c, control_answer_fn *answer, control_stream_fn *stream,
		  unsigned int streams, void *arg);

/*
 * Listen at A for control_serve().  BOTH: A is [::], and takes both families.  A unix socket has
 * mode 0660 and the group GID.  Its directory is made, for UID, if that is missing.  The socket of
 * a dead daemon is replaced; that of a live one gives -EADDRINUSE, unless it has handed the socket
 * over (given_open()).  -errno.
 */
int control_listen(const struct addr *a, bool both, uid_t uid, gid_t gid, struct control **ret);
/* Serve the client at FD, which is closed afterwards; a few at a time, each on its thread. */
typedef void control_serve_fn(struct control *c, int fd, void *arg);
/* Start the threads, with more for STREAMS.  -errno: some may run, until control_close(). */
int control_serve(struct control *c, control_serve_fn *serve, unsigned int streams, void *arg);
/*
 * Read the client's bytes before END, or before the client's shutdown(2), into TEXT, of SIZE.  They
 * have to come within MS.  TEXT then ends with a NUL.  -errno.
 */
int control_read(const struct control *c, int fd, const char *end, int ms, char *text, size_t size);
/* Send TEXT.  The client has to take all of it within MS.  -errno. */
int control_send(const struct control *c, int fd, int ms, const char *text, size_t len);

/*
 * Wait until something can be read from FD, at most MS (-1: for ever).  1: it can; 0: not;
 * -ESHUTDOWN: the threads are to end.
 */
int control_wait(const struct control *c, int fd, int ms);

/* The socket that listens, for the next daemon; -1: C is NULL. */
int control_listener(const struct control *c);

/*
 * Stop the threads, close the socket, remove the file if the directory still allows it.  STAYS: the
 * next daemon has the socket, so its file stays.
 */
void control_close(struct control *c, bool stays);
