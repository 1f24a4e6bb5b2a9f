/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Records and descriptors that one process hands to another on the same machine, over a unix socket
 * of type stream.  A bundle travels as a whole.  Its records are in a memfd, ahead of the other
 * descriptors, so the receiver need not exist yet: the socket keeps all until somebody reads.
 *
 * A record is a struct, and bytes of any length behind it.  The two processes may be of two versions.
 * So a field is only ever added at the end of a struct, with 0 as the value of a sender that does not
 * know the field: record_read() cuts a struct that is longer than expected, and fills up a shorter one.
 */
struct bundle {
	uint8_t *bytes; /* owned */
	size_t len, room, at;
	int *fds; /* owned; the descriptors are the caller's */
	size_t n_fds, fds_room, fds_at;
	bool lacks; /* memory: a record is missing */
};

struct record {
	uint32_t kind, of; /* of the caller's choice */
	const int *fds;
	size_t n_fds;
	const uint8_t *at; /* the struct; in the bundle, as are FDS and MORE */
	size_t size;
	const uint8_t *more; /* the bytes behind it */
	size_t n_more;
};

/*
 * Put a record behind the others, with the struct R->at, R->fds, and room for R->n_more bytes, which
 * is returned.  NULL: there is no memory, and bundle_send() will fail.
 */
uint8_t *bundle_put(struct bundle *b, const struct record *r);
/* The next record of B, whose descriptors are the caller's from now on.  False: none is left. */
bool bundle_get(struct bundle *b, struct record *ret);
/* The struct of R goes to TO, which has SIZE bytes. */
void record_read(const struct record *r, void *to, size_t size);

/* Make the memfd, if there is none: before seccomp forbids that.  -errno. */
int bundle_open(void);
/* -errno.  The other process has BUNDLE_MS for each message. */
#define BUNDLE_MS 5000
int bundle_send(const struct bundle *b, int fd);
/* B is made new.  -errno; -EMFILE: there is no room for the descriptors; -EPIPE: the other has ended. */
int bundle_receive(struct bundle *b, int fd);
/* Free B, and close the descriptors that bundle_get() has not returned, if B was received. */
void bundle_free(struct bundle *b);
