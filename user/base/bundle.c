// SPDX-License-Identifier: BSD-2-Clause
#include "base/bundle.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL(pwrite64), SYSCALL(pread64), SYSCALL(sendmsg),
		 SYSCALL(recvmsg), SYSCALL(poll), SYSCALL(ppoll), SYSCALL(close));

#define FDS_MOST 250 /* of a message; SCM_MAX_FD is 253 */
#define BYTES_MOST (1U << 30)

/*
 * Each message has these numbers of the whole bundle, whose records are at AT of the memfd.  The first
 * message has the memfd alone.
 */
struct totals {
	uint64_t at, len, n_fds;
};

/*
 * All bundles of this process are in one memfd, behind each other; the first ones are read by now.
 * One thread sends at a time.
 */
static int memfd = -1;
static uint64_t memfd_at;

int bundle_open(void)
{
	if (memfd < 0)
		memfd = memfd_create("culvert-bundles", MFD_CLOEXEC);
	return memfd < 0 ? -errno : 0;
}

struct record_head {
	uint32_t kind, of, n_fds, size, more;
};

/* Make room for WANTED elements of EACH bytes at *BUF, which has ROOM of them. */
static bool bundle_room(void *buf, size_t *room, size_t wanted, size_t each)
{
	size_t more = larger(larger(*room, 64), wanted > *room ? 2 * wanted : 0);
	void *new = more == *room ? *(void **)buf : realloc(*(void **)buf, more * each);

	if (!new)
		return false;
	*(void **)buf = new;
	*room = more;
	return true;
}

static bool bundle_add_fds(struct bundle *b, const int *fds, size_t n)
{
	if (!bundle_room(&b->fds, &b->fds_room, b->n_fds + n, sizeof(*fds)))
		return false;
	for (size_t i = 0; i < n; i++)
		b->fds[b->n_fds++] = fds[i];
	return true;
}

uint8_t *bundle_put(struct bundle *b, const struct record *r)
{
	struct record_head head = { r->kind, r->of, (uint32_t)r->n_fds, (uint32_t)r->size,
				    (uint32_t)r->n_more };
	uint8_t *to;

	if (!bundle_room(&b->bytes, &b->room, b->len + sizeof(head) + r->size + r->n_more, 1) ||
	    !bundle_add_fds(b, r->fds, r->n_fds)) {
		b->lacks = true;
		return NULL;
	}
	to = b->bytes + b->len;
	memcpy(to, &head, sizeof(head));
	if (r->size)
		memcpy(to + sizeof(head), r->at, r->size);
	b->len += sizeof(head) + r->size + r->n_more;
	return to + sizeof(head) + r->size;
}

bool bundle_get(struct bundle *b, struct record *ret)
{
	struct record_head head;
	size_t left = b->len - b->at;

	if (left < sizeof(head))
		return false;
	memcpy(&head, b->bytes + b->at, sizeof(head));
	left -= sizeof(head);
	if (left < head.size || left - head.size < head.more || b->n_fds - b->fds_at < head.n_fds)
		return false;
	*ret = (struct record){ .kind = head.kind,
				.of = head.of,
				.fds = b->fds + b->fds_at,
				.n_fds = head.n_fds,
				.at = b->bytes + b->at + sizeof(head),
				.size = head.size,
				.n_more = head.more };
	ret->more = ret->at + head.size;
	b->at += sizeof(head) + head.size + head.more;
	b->fds_at += head.n_fds;
	return true;
}

void record_read(const struct record *r, void *to, size_t size)
{
	memset(to, 0, size);
	memcpy(to, r->at, smaller(size, r->size));
}

/* --- over a socket --- */

union fds_message {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int) * FDS_MOST)];
};

/* Send or receive one message: T, and descriptors in CONTROL. */
static int bundle_pass(int fd, bool sends, struct totals *t, union fds_message *control, size_t len)
{
	struct iovec iov = { t, sizeof(*t) };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = len
	};
	struct pollfd p = { .fd = fd, .events = sends ? POLLOUT : POLLIN };
	ssize_t n;

	if (poll(&p, 1, BUNDLE_MS) == 0)
		return -ETIMEDOUT;
	n = sends ? sendmsg(fd, &m, MSG_NOSIGNAL) : recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	if (m.msg_flags & MSG_CTRUNC) /* the kernel has closed those that it had no room for */
		return -EMFILE;
	return n == sizeof(*t) ? 0 : -EPIPE;
}

static int bundle_send_fds(int fd, struct totals *t, const int *fds, size_t n)
{
	union fds_message control = { .head = { CMSG_LEN(sizeof(int) * n), SOL_SOCKET,
						SCM_RIGHTS } };

	memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * n);
	return bundle_pass(fd, true, t, &control, CMSG_SPACE(sizeof(int) * n));
}

int bundle_send(const struct bundle *b, int fd)
{
	struct totals t = { memfd_at, b->len, b->n_fds + 1 };
	int r = b->lacks ? -ENOMEM : bundle_open();

	if (!r && b->len && pwrite(memfd, b->bytes, b->len, (off_t)t.at) != (ssize_t)b->len)
		r = -ENOSPC;
	memfd_at = t.at + b->len < BYTES_MOST ? t.at + b->len : 0;
	r = r ?: bundle_send_fds(fd, &t, &memfd, 1);
	for (size_t i = 0; !r && i < b->n_fds; i += FDS_MOST)
		r = bundle_send_fds(fd, &t, b->fds + i, smaller(b->n_fds - i, FDS_MOST));
	return r;
}

/* The memfd has come as the first descriptor of B. */
static int bundle_read(struct bundle *b, uint64_t at, size_t len)
{
	if (len > BYTES_MOST)
		return -EPROTO;
	if (!bundle_room(&b->bytes, &b->room, len, 1))
		return -ENOMEM;
	b->len = len;
	return pread(b->fds[0], b->bytes, len, (off_t)at) == (ssize_t)len ? 0 : -EPROTO;
}

int bundle_receive(struct bundle *b, int fd)
{
	struct totals t;
	int r = 0;

	*b = (struct bundle){ 0 };
	do {
		union fds_message control = { .head.cmsg_len = 0 };
		size_t n = 0;

		r = bundle_pass(fd, false, &t, &control, sizeof(control));
		if (control.head.cmsg_type == SCM_RIGHTS && control.head.cmsg_len)
			n = (control.head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
		if (!bundle_add_fds(b, (const int *)CMSG_DATA(&control.head), n))
			r = r ?: -ENOMEM;
		else if (!r && !n)
			r = -EPROTO;
	} while (!r && b->n_fds < t.n_fds);
	b->fds_at = b->n_fds > 0;
	r = r ?: bundle_read(b, t.at, t.len);
	if (b->fds_at)
		close(b->fds[0]);
	return r;
}

void bundle_free(struct bundle *b)
{
	while (b->fds_at && b->fds_at < b->n_fds)
		close(b->fds[b->fds_at++]);
	free(b->bytes);
	free(b->fds);
	*b = (struct bundle){ 0 };
}
