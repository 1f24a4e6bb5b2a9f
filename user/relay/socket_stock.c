// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the main thread asks the privileged process, in its event loop; a worker that
 * takes a socket wakes it.  `lock` guards all stocks and is held for a few instructions.  `filling`
 * is held while the main thread asks, which may take seconds; a stock is closed under it.  A shelf
 * that could not be filled is tried again when the next session wants something of it.
 */
#include "relay/socket_stock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_needed.h"

#define FAMILIES 2

SYSCALLS_NEEDED(
	SYSCALL_IF(PART_PRIVILEGED, close));

struct shelf {
	int fds[SOCKET_STOCK];
	unsigned int n;
	bool wanted; /* something was taken, or asked for in vain, since the last try to fill it */
	int error;   /* of that try, -errno; 0: it was a success */
};

struct socket_stock {
	struct stock_keeper *keeper;
	struct socket_stock *next;
	const struct forward_conf *conf;
	struct shelf shelves[FAMILIES];
};

struct stock_keeper {
	socket_maker_fn *make;
	void *arg;
	struct loop *loop;       /* of the main thread */
	_Atomic bool asked;      /* something is wanted */
	pthread_mutex_t filling; /* to be taken before `lock` */
	pthread_mutex_t lock;    /* of what follows, and of all stocks */
	struct socket_stock *first;
};

static const int families[FAMILIES] = { AF_INET, AF_INET6 };

static struct shelf *shelf_of(struct socket_stock *s, int family)
{
	return &s->shelves[family == AF_INET6];
}

/* Make what is lacking, if it is wanted.  `filling` is held, or S is new. */
static int fill(struct socket_stock *s, unsigned int which, char *err, size_t errlen)
{
	struct stock_keeper *k = s->keeper;
	struct shelf *h = &s->shelves[which];
	unsigned int n;
	int fds[SOCKET_STOCK], r;

	pthread_mutex_lock(&k->lock);
	n = h->wanted ? SOCKET_STOCK - h->n : 0; /* nobody else adds */
	h->wanted = false;
	pthread_mutex_unlock(&k->lock);
	if (!n)
		return 0;
	r = k->make(k->arg, s->conf, families[which], n, fds, err, errlen);
	pthread_mutex_lock(&k->lock);
	for (unsigned int i = 0; !r && i < n; i++)
		h->fds[h->n++] = fds[i];
	h->error = r;
	pthread_mutex_unlock(&k->lock);
	return r;
}

void stock_keeper_after_batch(struct stock_keeper *k)
{
	struct socket_stock *s;
	char err[256];

	if (!atomic_exchange(&k->asked, false))
		return;
	pthread_mutex_lock(&k->filling);
	pthread_mutex_lock(&k->lock);
	s = k->first; /* others may come before it meanwhile; none goes */
	pthread_mutex_unlock(&k->lock);
	for (; s; s = s->next)
		for (unsigned int i = 0; i < FAMILIES; i++)
			if (fill(s, i, err, sizeof(err)))
				log_limited(LOG_ERR, "no more sockets with a mark or for "
					    "transparent forwarding: %s", err);
	pthread_mutex_unlock(&k->filling);
}

int stock_keeper_open(socket_maker_fn *make, void *arg, struct loop *loop, struct stock_keeper **ret)
{
	struct stock_keeper *k = calloc(1, sizeof(*k));

	if (!k)
		return -ENOMEM;
	k->make = make;
	k->arg = arg;
	k->loop = loop;
	pthread_mutex_init(&k->filling, NULL);
	pthread_mutex_init(&k->lock, NULL);
	*ret = k;
	return 0;
}

void stock_keeper_close(struct stock_keeper *k)
{
	if (!k)
		return;
	pthread_mutex_destroy(&k->filling);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

/* --- stocks --- */

static void discard(struct socket_stock *s)
{
	for (unsigned int i = 0; i < FAMILIES; i++)
		while (s->shelves[i].n)
			close(s->shelves[i].fds[--s->shelves[i].n]);
	free(s);
}

int socket_stock_open(struct stock_keeper *k, const struct forward_conf *fc,
		      struct socket_stock **ret, char *err, size_t errlen)
{
	const struct endpoint *up = &fc->upstream;
	struct socket_stock *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return -ENOMEM;
	s->keeper = k;
	s->conf = fc;
	for (size_t i = 0; i < up->n_addrs; i++)
		shelf_of(s, up->addrs[i].ss.ss_family)->wanted = true;
	if (!up->n_addrs) /* a name; which family it needs is known when a session asks */
		shelf_of(s, AF_INET)->wanted = true;
	for (unsigned int i = 0; !r && i < FAMILIES; i++)
		r = fill(s, i, err, errlen);
	if (r) {
		discard(s);
		return r;
	}
	pthread_mutex_lock(&k->lock);
	s->next = k->first;
	k->first = s;
	pthread_mutex_unlock(&k->lock);
	*ret = s;
	return 0;
}

void socket_stock_close(struct socket_stock *s)
{
	struct stock_keeper *k = s ? s->keeper : NULL;
	struct socket_stock **at;

	if (!s)
		return;
	pthread_mutex_lock(&k->filling);
	pthread_mutex_lock(&k->lock);
	for (at = &k->first; *at != s; at = &(*at)->next)
		;
	*at = s->next;
	pthread_mutex_unlock(&k->lock);
	pthread_mutex_unlock(&k->filling);
	discard(s);
}

int socket_stock_take(struct socket_stock *s, int family)
{
	struct stock_keeper *k = s->keeper;
	struct shelf *h = shelf_of(s, family);
	int fd = -ENOSR;

	pthread_mutex_lock(&k->lock);
	if (h->n)
		fd = h->fds[--h->n];
	else if (h->error == -EPIPE || h->error == -EAFNOSUPPORT)
		fd = h->error; /* to wait would be in vain */
	h->wanted = true;
	pthread_mutex_unlock(&k->lock);
	if (!atomic_exchange(&k->asked, true))
		loop_wake(k->loop);
	return fd;
}
