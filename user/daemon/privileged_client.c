// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/privileged_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_PRIVILEGED, sendto), SYSCALL_IF(PART_PRIVILEGED, recvmsg),
	SETSOCKOPT_IF(PART_PRIVILEGED, SOL_SOCKET, SO_RCVTIMEO),
	SYSCALL_IF(PART_PRIVILEGED, close));

/* With the lock. */
static int give_up(struct privileged *p)
{
	if (!p->ended)
		log_error("the privileged process has ended: until culvert is started again there "
			  "is no reload, no new listener and no new socket for mark or "
			  "transparent, and before Linux 6.6 no graft at new interfaces; all else "
			  "goes on");
	p->ended = true;
	return -EPIPE;
}

/*
 * Wait for the answer of P, and for the descriptors before the answer.  RET_N: their number.
 * -EAGAIN: no answer in time.
 */
static int receive(struct privileged *p, int flags, struct privileged_answer *a, int *fds,
		   size_t *ret_n)
{
	_Alignas(struct cmsghdr) char control[PRIVILEGED_ROOM_FOR_FDS];
	struct iovec iov = { a, sizeof(*a) };
	ssize_t len;

	*ret_n = 0;
	do {
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control,
				    .msg_controllen = sizeof(control) };
		const struct cmsghdr *c;

		len = recvmsg(p->fd, &m, MSG_CMSG_CLOEXEC | flags);
		c = len == 1 ? CMSG_FIRSTHDR(&m) : NULL;
		if (c) {
			*ret_n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), *ret_n * sizeof(int));
		}
	} while (len == 1 || (len < 0 && errno == EINTR));
	p->owes = len < 0 && errno == EAGAIN;
	if (len == sizeof(*a))
		return 0;
	privileged_close(fds, *ret_n);
	*ret_n = 0;
	return p->owes ? -EAGAIN : -EPIPE;
}

/*
 * Take the lock, set the time for an answer, and drop a late answer to an earlier request.
 * -EAGAIN: not in time, and the lock is not taken.
 */
static int begin(struct privileged *p, bool reads)
{
	const struct timeval patience = { .tv_sec = reads ? PRIVILEGED_READ_S :
							    PRIVILEGED_PATIENCE_S };
	int fds[WORKERS_MAX], r = 0;
	struct privileged_answer late = { 0 };
	size_t n = 0;

	if (!lock_within(&p->lock, (uint64_t)patience.tv_sec * 1000))
		return -EAGAIN;
	setsockopt(p->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	/* only a reload waits for the late answer: the main thread can ask again later */
	if (!p->ended && p->owes)
		r = receive(p, reads ? 0 : MSG_DONTWAIT, &late, fds, &n);
	privileged_close(fds, n);
	if (r == -EAGAIN)
		pthread_mutex_unlock(&p->lock);
	return r == -EAGAIN ? r : 0;
}

/*
 * Send the request Q, and take the descriptors of the answer.  Q's address becomes that of the
 * answer.  If this process has no room for all descriptors, the kernel passes some: none is kept.
 */
static int ask(struct privileged *p, struct privileged_request *q, int *fds, char *err,
	       size_t errlen)
{
	struct privileged_answer a = { 0 };
	size_t n = 0;
	int r;

	if (!p) {
		snprintf(err, errlen,
			 "this needs the privileged process, which culvert does not "
			 "have: it was started without a configuration file (--config), or with "
			 "--privileged-process no");
		return -EPERM;
	}
	r = begin(p, q->op == PRIVILEGED_READ_CONFIG);
	if (!r) {
		r = -EPIPE;
		if (!p->ended && send(p->fd, q, sizeof(*q), MSG_NOSIGNAL) == sizeof(*q))
			r = receive(p, 0, &a, fds, &n);
		if (r && r != -EAGAIN)
			r = give_up(p);
		pthread_mutex_unlock(&p->lock);
	}
	if (r == -EAGAIN) {
		snprintf(err, errlen, "the privileged process has not answered in time: try again");
	} else if (r) {
		snprintf(err, errlen, "the privileged process has ended: start culvert again");
	} else if (a.error) {
		snprintf(err, errlen, "%s", *a.text ? a.text : strerror(a.error));
		r = -a.error;
	} else if (n != q->count) {
		snprintf(err, errlen, "%s", strerror(EMFILE));
		privileged_close(fds, n);
		r = -EMFILE;
	} else {
		q->addr = a.addr;
	}
	return r;
}

static int filters(void *p, unsigned int ifindex, enum graft_link link)
{
	struct privileged_request q = { .op = PRIVILEGED_FILTERS, .ifindex = ifindex, .link = link };

	return ask(p, &q, NULL, NULL, 0); /* an errno says enough */
}

int privileged_start(const struct config *c, int argc, char **argv, struct clsact *clsact,
		     struct privileged **ret)
{
	const struct timeval patience = { .tv_sec = PRIVILEGED_READ_S };
	struct privileged *p = allocated(calloc(1, sizeof(*p)));
	struct privileged_answer a = { 0 };
	int fds[2], r;

	*ret = p;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) || (p->pid = fork()) < 0)
		return log_complain(-errno, "cannot start the privileged process: %s%s",
				    strerror(errno), error_hint(HINT_RESOURCES, errno));
	if (!p->pid)
		privileged_serve_all(fds[1], c, argc, argv, clsact);
	close(fds[1]);
	p->fd = fds[0];
	setsockopt(p->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	pthread_mutex_init(&p->lock, NULL);
	r = recv(p->fd, &a, sizeof(a), 0) == sizeof(a) ? -a.error : -EPIPE;
	if (r)
		return log_complain(r, "the privileged process %s",
				    *a.text ? a.text : "does not start");
	if (clsact) {
		clsact->ask = filters;
		clsact->arg = p;
	}
	return 0;
}

int privileged_open_config(struct privileged *p, bool took, int fds[PRIVILEGED_FILES], char *err,
			   size_t errlen)
{
	struct privileged_request q = { .op = PRIVILEGED_READ_CONFIG,
					.took = took,
					.count = PRIVILEGED_FILES };

	return ask(p, &q, fds, err, errlen);
}

int privileged_listen(void *p, const struct forward_conf *fc, struct addr *a, bool joins,
		      unsigned int n, int *fds, char *err, size_t errlen)
{
	struct privileged_request q = { .op = PRIVILEGED_LISTEN,
					.count = n,
					.joins = joins,
					.transparent = fc->transparent,
					.udp = fc->listen.udp,
					.addr = *a };
	int r = ask(p, &q, fds, err, errlen);

	*a = q.addr;
	return r;
}

int privileged_sockets(void *p, const struct forward_conf *fc, int family, unsigned int n, int *fds,
		       char *err, size_t errlen)
{
	struct privileged_request q = { .op = PRIVILEGED_SOCKETS,
					.count = n,
					.mark = fc->mark,
					.transparent = fc->transparent,
					.udp = fc->listen.udp,
					.family = (uint32_t)family };

	return ask(p, &q, fds, err, errlen);
}

int privileged_revive(struct privileged *p, const struct graft_side *s, int *ret_fd, char *err,
		      size_t errlen)
{
	struct privileged_request q = { .op = PRIVILEGED_REVIVE, .count = 1, .side = *s };

	return ask(p, &q, ret_fd, err, errlen);
}
