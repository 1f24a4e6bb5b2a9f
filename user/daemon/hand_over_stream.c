// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: records are gathered, and go out together as a frame: the length of the
 * records, the number of descriptors, the records.  The descriptors travel beside the first byte.
 */
#include "daemon/hand_over_stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL(sendmsg), SYSCALL(recvmsg), SYSCALL(poll), SYSCALL(ppoll), SYSCALL(close));

#define FRAME 65536 /* bytes from which a frame is sent */
#define FRAME_MAX (256 << 20)
#define SEND_MS 10000

struct frame {
	uint32_t len, n_fds; /* in network byte order */
};

#define RECORD_HEAD 6 /* kind, descriptors, length in four bytes */

static bool hand_room(uint8_t **buf, size_t *room, size_t len)
{
	size_t more = *room ?: FRAME;
	uint8_t *new;

	while (more < len)
		more *= 2;
	if (more == *room)
		return true;
	new = realloc(*buf, more);
	if (!new)
		return false;
	*buf = new;
	*room = more;
	return true;
}

uint8_t *hand_put(struct hand_stream *h, enum hand_kind kind, const void *at, size_t head,
		  size_t len, const int *fds, size_t n_fds)
{
	uint8_t *to;

	if ((h->n_out_fds + n_fds > HAND_FDS_MAX || h->out_len > FRAME) && hand_flush(h))
		return NULL;
	if (!hand_room(&h->out, &h->out_room, h->out_len + RECORD_HEAD + len))
		return NULL;
	to = h->out + h->out_len;
	to[0] = (uint8_t)kind;
	to[1] = (uint8_t)n_fds;
	for (int i = 0; i < 4; i++)
		to[2 + i] = (uint8_t)(len >> 8 * (3 - i));
	if (head)
		memcpy(to + RECORD_HEAD, at, head);
	memcpy(h->out_fds + h->n_out_fds, fds, n_fds * sizeof(*fds));
	h->n_out_fds += n_fds;
	h->out_len += RECORD_HEAD + len;
	return to + RECORD_HEAD + head;
}

static int hand_wait(int fd, short events, int ms)
{
	struct pollfd p = { .fd = fd, .events = events };
	int n;

	do {
		n = poll(&p, 1, ms);
	} while (n < 0 && errno == EINTR);
	return n > 0 ? 0 : n ? -errno : -ETIMEDOUT;
}

static int hand_send(struct hand_stream *h, const void *head, size_t len)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(h->out_fds))];
	} control;
	struct iovec iov[] = { { (void *)head, len }, { h->out, h->out_len } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };

	if (h->n_out_fds) {
		control.head = (struct cmsghdr){ CMSG_LEN(sizeof(int) * h->n_out_fds), SOL_SOCKET,
						 SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.head), h->out_fds, sizeof(int) * h->n_out_fds);
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * h->n_out_fds);
	}
	while (iov[0].iov_len + iov[1].iov_len) {
		ssize_t n = sendmsg(h->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
		int r = n >= 0          ? 0 :
			errno == EINTR  ? 0 :
			errno == EAGAIN ? hand_wait(h->fd, POLLOUT, SEND_MS) :
					  -errno;

		if (r)
			return r;
		for (int i = 0; n > 0 && i < 2; i++) {
			size_t some = (size_t)n < iov[i].iov_len ? (size_t)n : iov[i].iov_len;

			iov[i].iov_base = (char *)iov[i].iov_base + some;
			iov[i].iov_len -= some;
			n -= (ssize_t)some;
			m.msg_control = NULL;
			m.msg_controllen = 0;
		}
	}
	return 0;
}

int hand_flush(struct hand_stream *h)
{
	struct frame f = { htonl((uint32_t)h->out_len), htonl((uint32_t)h->n_out_fds) };
	int r = h->out_len ? hand_send(h, &f, sizeof(f)) : 0;

	h->bytes += h->out_len;
	h->out_len = h->n_out_fds = 0;
	return r;
}

/* Read LEN bytes to AT; the first call for a frame gets its descriptors. */
static int hand_read(struct hand_stream *h, int ms, void *at, size_t len)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(h->in_fds))];
	} control;

	while (len) {
		struct iovec iov = { at, len };
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = &control,
				    .msg_controllen = sizeof(control) };
		int r = hand_wait(h->fd, POLLIN, ms);
		ssize_t n = r ? 0 : recvmsg(h->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

		if (r || (n < 0 && errno != EINTR && errno != EAGAIN))
			return r ?: -errno;
		if (!n)
			return -EPIPE;
		if (c && c->cmsg_type == SCM_RIGHTS) {
			h->n_in_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(h->in_fds, CMSG_DATA(c), h->n_in_fds * sizeof(int));
		}
		if (n > 0) {
			at = (char *)at + n;
			len -= (size_t)n;
		}
	}
	return 0;
}

static void hand_close_fds(struct hand_stream *h)
{
	while (h->in_fds_at < h->n_in_fds)
		close(h->in_fds[h->in_fds_at++]);
	h->in_fds_at = h->n_in_fds = 0;
}

static int hand_frame(struct hand_stream *h, int ms)
{
	struct frame f;
	int r;

	hand_close_fds(h);
	h->in_len = h->in_at = 0;
	r = hand_read(h, ms, &f, sizeof(f));
	if (r)
		return r;
	/* fewer descriptors than were sent: this process has no room for them */
	if (h->n_in_fds != ntohl(f.n_fds))
		return -EMFILE;
	if (ntohl(f.len) > FRAME_MAX || !hand_room(&h->in, &h->in_room, ntohl(f.len)))
		return -ENOMEM;
	r = hand_read(h, ms, h->in, ntohl(f.len));
	h->in_len = r ? 0 : ntohl(f.len);
	return r;
}

int hand_get(struct hand_stream *h, int ms, struct hand_record *ret)
{
	const uint8_t *at;
	size_t len;
	int r = h->in_at == h->in_len ? hand_frame(h, ms) : 0;

	if (r)
		return r;
	at = h->in + h->in_at;
	if (h->in_len - h->in_at < RECORD_HEAD)
		return -EPROTO;
	len = (size_t)at[2] << 24 | (size_t)at[3] << 16 | (size_t)at[4] << 8 | at[5];
	if (h->in_len - h->in_at - RECORD_HEAD < len || h->n_in_fds - h->in_fds_at < at[1])
		return -EPROTO;
	*ret = (struct hand_record){ .kind = at[0],
				     .bytes = at + RECORD_HEAD,
				     .len = len,
				     .fds = h->in_fds + h->in_fds_at,
				     .n_fds = at[1] };
	h->in_at += RECORD_HEAD + len;
	h->in_fds_at += at[1];
	return 0;
}

void hand_close(struct hand_stream *h)
{
	hand_close_fds(h);
	free(h->out);
	free(h->in);
	h->out = h->in = NULL;
}
