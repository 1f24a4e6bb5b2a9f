/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "datapath/graft/graft.h"
#include "datapath/sockmap/sockmap.h"

/*
 * Behaviours of the kernel that the carriers rely on.  Each is tried with the real programs and the
 * real hand-over code, on connections of its own.
 */

/* The carrier that relies on a behaviour; a sum of values means a set of carriers. */
enum probe_carrier {
	PROBE_SOCKMAP = 1,
	PROBE_SPLICE = 2,
	PROBE_GRAFT = 4,
	PROBE_ALL = 7,
};

#define BEHAVIOURS 8
#define PROBE_DETAIL 400

struct plan;

struct behaviour {
	const char *name;
	enum probe_carrier carrier;
	const char *shows; /* the property, and its first Linux if that is known */
	const char *why;   /* the damage without it */
	const struct plan
		*plan; /* NULL: the caller tries it, by sockmap_open() or graft_table_open() */
};

/* In the order in which they are to be tried. */
extern const struct behaviour behaviours[BEHAVIOURS];

/*
 * True if B holds; else RET_DETAIL, of PROBE_DETAIL bytes, has the failed step.  K and GS: the
 * loaded programs, which PROBE_SOCKMAP and PROBE_GRAFT need.  SMALL: small buffers for all sockets,
 * which is harder.
 */
bool behaviour_holds(const struct behaviour *b, struct sockmap *k, struct graft_table *gs,
		     bool small, char *ret_detail);

/*
 * Connected sockets and streams of known bytes, for behaviours and for tests/kernel.  Results are
 * 0, a count, or -errno.
 */

/* At least RIG_PATTERN bytes of the stream of known bytes, from offset OFF on. */
#define RIG_PATTERN 65521 /* a prime: no loss or repetition of a round number goes unseen */
const unsigned char *rig_pattern(uint64_t off);
/* Send up to LEN bytes of the stream from OFF on, as many as the socket takes at once. */
ssize_t rig_send(int fd, uint64_t off, size_t len);
/*
 * Receive up to MOST bytes that are there, in one go, which must be those of the stream from OFF
 * on.  Returns their number; -EILSEQ: a byte is wrong; -ENODATA: nothing but the end of the stream.
 */
ssize_t rig_receive(int fd, uint64_t off, size_t most);

#define RIG_SMALL (16 * 1024)
#define RIG_WIDE (4 * 1024 * 1024) /* or as far as rmem_max and wmem_max allow */
void rig_set_buffers(int snd, int rcv, int size);
/*
 * Connect two sockets over loopback, non-blocking and with TCP_NODELAY; SMALL: with small buffers;
 * MSS: the largest segment; 0: that of lo.  The caller owns both.
 */
int rig_connect(bool small, unsigned int mss, int *ret_connected, int *ret_accepted);
