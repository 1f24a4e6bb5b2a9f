// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the main thread's event loop asks the privileged process; a worker that
 * takes a socket wakes the loop.  `lock` guards all stocks.  It is held for a few instructions, or
 * while the sockets of one stock are closed.  It is released while the main thread asks, which may
 * take seconds.  Only the main thread frees a stock that is closed, so the stock that it asks for
 * stays.  A shelf that could not be filled is tried again when the next session takes from it.
 */
#include "relay/marked_sockets.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_allowed.h"

#define FAMILIES 2

SYSCALLS_ALLOWED(SYSCALL_IF(PART_PRIVILEGED, close));

struct shelf {
	int fds[MARKED_SOCKETS];
	unsigned int n;
	bool wanted; /* something was taken, or asked for in vain, since the last try to fill it */
	int error;   /* of that try, -errno; 0: it was a success */
};

struct marked_sockets {
	struct socket_keeper *keeper;
	LIST_ENTRY(marked_sockets) in_keeper;
	struct forward_conf conf; /* a copy: its pointers are not to be followed */
	bool closed;
	struct shelf shelves[FAMILIES]; /* of IPv4, of IPv6 */
};

/* Fill a shelf whose sockets are wanted.  The lock is held, but not while the maker works. */
static int fill(struct marked_sockets *s, unsigned int which, char *err, size_t errlen)
{
	struct socket_keeper *k = s->keeper;
	struct shelf *h = &s->shelves[which];
	unsigned int n = h->wanted ? MARKED_SOCKETS - h->n : 0; /* nobody else adds */
	int fds[MARKED_SOCKETS], r;

	h->wanted = false;
	if (!n)
		return 0;
	if (h->error == -EMFILE) /* N sockets do not fit, but one may */
		n = 1;
	pthread_mutex_unlock(&k->lock);
	r = k->make(k->arg, &s->conf, which ? AF_INET6 : AF_INET, n, fds, err, errlen);
	pthread_mutex_lock(&k->lock);
	for (unsigned int i = 0; !r && i < n; i++)
		h->fds[h->n++] = fds[i];
	h->error = r;
	return r;
}

static void discard(struct marked_sockets *s)
{
	for (unsigned int i = 0; i < FAMILIES; i++)
		while (s->shelves[i].n)
			close(s->shelves[i].fds[--s->shelves[i].n]);
	free(s);
}

void socket_keeper_after_batch(struct socket_keeper *k)
{
	struct marked_sockets *s, *next;
	char err[256];

	pthread_mutex_lock(&k->lock);
	for (s = LIST_FIRST(&k->stocks); s; s = next) {
		if (s->closed) {
			next = LIST_NEXT(s, in_keeper);
			LIST_REMOVE(s, in_keeper);
			discard(s);
			continue;
		}
		/* new stocks may come meanwhile, before S in the list */
		for (unsigned int i = 0; i < FAMILIES; i++)
			if (fill(s, i, err, sizeof(err)))
				log_limited(LOG_ERR,
					    "cannot make sockets with a mark or for "
					    "transparent forwarding: %s",
					    err);
		next = LIST_NEXT(s, in_keeper);
	}
	pthread_mutex_unlock(&k->lock);
}

/* --- stocks --- */

int marked_sockets_open(struct socket_keeper *k, const struct forward_conf *fc,
			struct marked_sockets **ret)
{
	const struct endpoint *to = &fc->upstream.servers[0].at;
	bool ipv6 = to->n_addrs && to->addrs[0].ss.ss_family == AF_INET6;
	struct marked_sockets *s = calloc(1, sizeof(*s));
	char err[256];
	int r;

	if (!s)
		return log_complain(-ENOMEM, "out of memory");
	s->keeper = k;
	s->conf = *fc;
	/* the other shelf, which a name may need, is filled when a session asks for it */
	s->shelves[ipv6].wanted = true;
	pthread_mutex_lock(&k->lock);
	r = fill(s, ipv6, err, sizeof(err));
	if (!r) {
		LIST_INSERT_HEAD(&k->stocks, s, in_keeper);
		*ret = s;
	}
	pthread_mutex_unlock(&k->lock);
	if (!r)
		return 0;
	discard(s);
	return log_complain(r,
			    "forward %s has a mark or is transparent, which needs "
			    "CAP_NET_ADMIN: %s",
			    forward_name(fc), err);
}

void marked_sockets_close(struct marked_sockets *s)
{
	struct socket_keeper *k = s ? s->keeper : NULL;

	if (!s)
		return;
	pthread_mutex_lock(&k->lock);
	s->closed = true;
	pthread_mutex_unlock(&k->lock);
	loop_wake(k->loop);
}

int marked_sockets_take(struct marked_sockets *s, int family)
{
	struct socket_keeper *k = s->keeper;
	struct shelf *h = &s->shelves[family == AF_INET6];
	int fd = -ENOSR;

	pthread_mutex_lock(&k->lock);
	if (h->n)
		fd = h->fds[--h->n];
	else if (h->error == -EPIPE || h->error == -EAFNOSUPPORT)
		fd = h->error; /* to wait would be in vain */
	h->wanted = true;
	pthread_mutex_unlock(&k->lock);
	loop_wake(k->loop);
	return fd;
}
