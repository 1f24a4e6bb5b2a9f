/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/codec.h"

/*
 * The records by which a daemon hands itself over to the next, with descriptors beside them, over a
 * unix socket.  The old daemon is OLD, the next one NEW.
 *
 *   OLD  BEGIN, LISTEN for each socket address
 *   NEW  READY    it has come up, and waits for sessions alone.  OLD's workers wait from now on
 *   OLD  SESSION or UDP_SESSION for each session, with its bytes in hand; SERVER for each server; END
 *   NEW  TAKEN    with the ids of those sessions that it has no use for
 *   OLD  YOURS    it has closed its descriptors
 *
 * Until TAKEN has come, OLD goes on as if nothing had been if the connection ends.  A record that is
 * longer than expected has fields of a newer version, which are skipped; fields that are missing
 * are 0.
 */
enum hand_kind {
	HAND_NONE,
	HAND_BEGIN,
	HAND_LISTEN,
	HAND_READY,
	HAND_SESSION,
	HAND_UDP_SESSION,
	HAND_SERVER,
	HAND_END,
	HAND_TAKEN,
	HAND_YOURS,
};

#define HAND_FDS_MAX 250 /* SCM_MAX_FD is 253 */

struct hand_stream {
	int fd;
	uint8_t *out, *in; /* owned */
	size_t out_len, out_room, in_len, in_at, in_room;
	int out_fds[HAND_FDS_MAX], in_fds[HAND_FDS_MAX];
	size_t n_out_fds, n_in_fds, in_fds_at;
	uint64_t bytes; /* that were sent */
};

struct hand_record {
	enum hand_kind kind;
	const uint8_t *bytes; /* until the next call */
	size_t len;
	const int *fds; /* the caller's from now on */
	size_t n_fds;
};

/*
 * Put a record behind the others: LEN bytes, of which the first HEAD are at AT.  Returns where the
 * rest is to be put; NULL: there is no memory, or the other daemon is gone.  FDS stay the caller's,
 * and have to be open until hand_flush().
 */
uint8_t *hand_put(struct hand_stream *h, enum hand_kind kind, const void *at, size_t head,
		  size_t len, const int *fds, size_t n_fds);
/* Send all records.  -errno. */
int hand_flush(struct hand_stream *h);
/* Wait for the next record, at most MS for each part of it.  -errno; -EPIPE: the other is gone. */
int hand_get(struct hand_stream *h, int ms, struct hand_record *ret);
/* Free the buffers, and close descriptors that were received and not taken.  Not h->fd. */
void hand_close(struct hand_stream *h);
