/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Records and descriptors by which a daemon (OLD) hands itself over to the next (NEW), over a unix
 * socket.  Each bundle goes as a whole:
 *
 *   OLD  BEGIN, LISTEN for each address that it listens at
 *   NEW  nothing: it has come up.  OLD's workers wait from now on
 *   OLD  SESSION and UDP_SESSION, with bytes in hand; SERVER for each server
 *   NEW  REFUSED for each session that it has no use for: all others are its own
 *   OLD  nothing: it has closed its descriptors
 *
 * If the connection ends before REFUSED has come, OLD goes on as if nothing had been.  A record that
 * is longer than expected has fields of a newer version, which are skipped; a missing field is 0.
 */
enum hand_kind {
	HAND_BEGIN,
	HAND_LISTEN,
	HAND_SESSION,
	HAND_UDP_SESSION,
	HAND_SERVER,
	HAND_REFUSED,
};

struct bundle {
	uint8_t *bytes; /* owned */
	size_t len, room, at;
	int *fds; /* owned; the descriptors are the caller's */
	size_t n_fds, fds_room, fds_at;
	bool lacks; /* memory: a record is missing */
};

struct hand_record {
	enum hand_kind kind;
	const uint8_t *bytes; /* of the bundle */
	size_t len;
	const int *fds;
	size_t n_fds;
};

/*
 * Put a record behind the others: HEAD bytes at AT, and REST more, whose place is returned.  NULL:
 * there is no memory.
 */
uint8_t *bundle_put(struct bundle *b, enum hand_kind kind, const void *at, size_t head, size_t rest,
		    const int *fds, size_t n_fds);
/* The next record of B, whose descriptors are the caller's from now on.  False: none is left. */
bool bundle_get(struct bundle *b, struct hand_record *ret);
/* -errno; the other daemon has MS for each part. */
int bundle_send(const struct bundle *b, int fd, int ms);
/* B is empty.  -errno; -EMFILE: there is no room for the descriptors. */
int bundle_receive(struct bundle *b, int fd, int ms);
/* Free B; with CLOSE_FDS, close the descriptors that bundle_get() has not returned. */
void bundle_free(struct bundle *b, bool close_fds);
