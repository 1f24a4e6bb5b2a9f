// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a bundle goes as its two lengths, then a byte for each portion of descriptors
 * beside it, then all records.
 */
#include "daemon/bundle.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL(sendmsg), SYSCALL(recvmsg), SYSCALL(poll), SYSCALL(ppoll), SYSCALL(close));

#define FDS_MOST 250 /* SCM_MAX_FD is 253 */
#define HEAD 6       /* kind, number of descriptors, length in four bytes */
#define BYTES_MOST (1U << 30)

static bool bundle_room(void *buf, size_t *room, size_t wanted, size_t each)
{
	size_t more = *room ?: 4096;
	void *new;

	while (more < wanted)
		more *= 2;
	new = more == *room ? *(void **)buf : realloc(*(void **)buf, more * each);
	if (!new)
		return false;
	*(void **)buf = new;
	*room = more;
	return true;
}

uint8_t *bundle_put(struct bundle *b, enum hand_kind kind, const void *at, size_t head, size_t rest,
		    const int *fds, size_t n_fds)
{
	size_t len = head + rest;
	uint8_t *to;

	if (!bundle_room(&b->bytes, &b->room, b->len + HEAD + len, 1) ||
	    !bundle_room(&b->fds, &b->fds_room, b->n_fds + n_fds, sizeof(*fds))) {
		b->lacks = true;
		return NULL;
	}
	to = b->bytes + b->len;
	to[0] = (uint8_t)kind;
	to[1] = (uint8_t)n_fds;
	for (int i = 0; i < 4; i++)
		to[2 + i] = (uint8_t)(len >> 8 * (3 - i));
	if (head)
		memcpy(to + HEAD, at, head);
	if (n_fds)
		memcpy(b->fds + b->n_fds, fds, n_fds * sizeof(*fds));
	b->n_fds += n_fds;
	b->len += HEAD + len;
	return to + HEAD + head;
}

bool bundle_get(struct bundle *b, struct hand_record *ret)
{
	const uint8_t *at = b->bytes + b->at;
	size_t len;

	if (b->len - b->at < HEAD)
		return false;
	len = (size_t)at[2] << 24 | (size_t)at[3] << 16 | (size_t)at[4] << 8 | at[5];
	if (b->len - b->at - HEAD < len || b->n_fds - b->fds_at < at[1])
		return false;
	*ret = (struct hand_record){ at[0], at + HEAD, len, b->fds + b->fds_at, at[1] };
	b->at += HEAD + len;
	b->fds_at += at[1];
	return true;
}

/* --- over a socket --- */

/* Send, or receive, all LEN bytes at AT, and N descriptors beside the first of them. */
static int bundle_pass(int fd, int ms, void *at, size_t len, int *fds, size_t n, bool sends)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int) * FDS_MOST)];
	} control = { .head = { CMSG_LEN(sizeof(int) * n), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov = { at, len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
		if (sends)
			memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * n);
	}
	while (iov.iov_len) {
		struct pollfd p = { .fd = fd, .events = sends ? POLLOUT : POLLIN };
		ssize_t got;

		if (poll(&p, 1, ms) == 0)
			return -ETIMEDOUT;
		got = sends ? sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) :
			      recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (!got)
			return -EPIPE;
		if (got < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (got < 0)
			continue;
		if (n && !sends) {
			if (m.msg_flags & MSG_CTRUNC || !CMSG_FIRSTHDR(&m))
				return -EMFILE; /* the kernel closes those that it has no room for */
			memcpy(fds, CMSG_DATA(&control.head), sizeof(int) * n);
		}
		n = 0;
		m.msg_control = NULL;
		m.msg_controllen = 0;
		iov.iov_base = (char *)iov.iov_base + got;
		iov.iov_len -= (size_t)got;
	}
	return 0;
}

static int bundle_pass_all(struct bundle *b, int fd, int ms, bool sends)
{
	int r = 0;

	for (size_t i = 0; !r && i < b->n_fds; i += FDS_MOST) {
		char c = 'f';

		r = bundle_pass(fd, ms, &c, 1, b->fds + i, smaller(b->n_fds - i, FDS_MOST), sends);
		if (r && !sends)
			b->n_fds = i; /* so many have come */
	}
	return r ?: bundle_pass(fd, ms, b->bytes, b->len, NULL, 0, sends);
}

int bundle_send(const struct bundle *b, int fd, int ms)
{
	uint64_t sizes[2] = { b->len, b->n_fds };

	if (b->lacks)
		return -ENOMEM;
	return bundle_pass(fd, ms, sizes, sizeof(sizes), NULL, 0, true) ?:
		       bundle_pass_all((struct bundle *)b, fd, ms, true);
}

int bundle_receive(struct bundle *b, int fd, int ms)
{
	uint64_t sizes[2];
	int r = bundle_pass(fd, ms, sizes, sizeof(sizes), NULL, 0, false);

	*b = (struct bundle){ 0 };
	if (r)
		return r;
	if (sizes[0] > BYTES_MOST || sizes[1] > BYTES_MOST / sizeof(int))
		return -EPROTO;
	if (!bundle_room(&b->bytes, &b->room, sizes[0], 1) ||
	    !bundle_room(&b->fds, &b->fds_room, sizes[1], sizeof(int)))
		return -ENOMEM;
	b->len = sizes[0];
	b->n_fds = sizes[1];
	return bundle_pass_all(b, fd, ms, false);
}

void bundle_free(struct bundle *b, bool close_fds)
{
	while (close_fds && b->fds_at < b->n_fds)
		close(b->fds[b->fds_at++]);
	free(b->bytes);
	free(b->fds);
	*b = (struct bundle){ 0 };
}
