/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Connected sockets and streams of known bytes, for behaviours and for tests/kernel.  Results are
 * 0, a count, or -errno.
 */

/* At least RIG_PATTERN bytes of the stream of known bytes, from offset OFF on. */
#define RIG_PATTERN 65521 /* a prime: no loss or repetition of a round number goes unseen */
const unsigned char *rig_pattern(uint64_t off);
/* Send up to LEN bytes of the stream from OFF on, in one go: what the socket takes now, or less. */
ssize_t rig_send(int fd, uint64_t off, size_t len);
/*
 * Receive up to MOST bytes that are there, in one go, which must be those of the stream from OFF on.
 * Returns their number; -EILSEQ: a byte is wrong; -ENODATA: nothing but the end of the stream.
 */
ssize_t rig_receive(int fd, uint64_t off, size_t most);

#define RIG_SMALL (16 * 1024)
#define RIG_WIDE (4 * 1024 * 1024) /* or as far as rmem_max and wmem_max allow */
void rig_set_buffers(int snd, int rcv, int size);
/*
 * Connect two sockets over loopback, non-blocking and with TCP_NODELAY; SMALL: with small buffers.
 * The caller owns both.
 */
int rig_connect(bool small, int *ret_connected, int *ret_accepted);
