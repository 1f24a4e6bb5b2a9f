// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a thread asks the privileged process, since that may take long.  One lock
 * guards all stocks.  The thread does not hold it while it asks, and the stock that it asks for
 * cannot be closed meanwhile.  Whoever takes a socket wakes the thread; so a shelf that could not be
 * filled is tried again by the next session that wants something of it.
 */
#include "relay/socket_stock.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/new_thread.h"
#include "base/syscalls_needed.h"

#define FAMILIES 2

SYSCALLS_NEEDED(
	SYSCALL_IF(PART_PRIVILEGED, close));

struct shelf {
	int fds[SOCKET_STOCK];
	unsigned int n;
	bool wanted; /* something was taken, or asked for in vain, since the last try to fill it */
	int error;   /* of that try; 0: it was a success */
};

struct socket_stock {
	struct stock_keeper *keeper;
	struct socket_stock *next;
	uint32_t generation;
	size_t forward;
	struct shelf shelves[FAMILIES];
};

struct stock_keeper {
	socket_maker_fn *make;
	void *arg;
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows, and of all stocks */
	pthread_cond_t work;  /* for the thread */
	pthread_cond_t idle;  /* `filling` is another */
	struct socket_stock *first;
	struct socket_stock *filling; /* NULL: none */
	bool stop;
};

static const int families[FAMILIES] = { AF_INET, AF_INET6 };

static struct shelf *shelf_of(struct socket_stock *s, int family)
{
	return &s->shelves[family == AF_INET6];
}

/* Returns 0 or -errno.  The lock is held, but while asking. */
static int fill(struct socket_stock *s, unsigned int which, char *err, size_t errlen)
{
	struct stock_keeper *k = s->keeper;
	struct shelf *h = &s->shelves[which];
	unsigned int n = SOCKET_STOCK - h->n; /* nobody else adds */
	uint32_t generation = s->generation;
	size_t forward = s->forward;
	int fds[SOCKET_STOCK], r;

	h->wanted = false;
	k->filling = s;
	pthread_mutex_unlock(&k->lock);
	r = k->make(k->arg, generation, forward, families[which], n, fds, err, errlen);
	pthread_mutex_lock(&k->lock);
	k->filling = NULL;
	pthread_cond_broadcast(&k->idle);
	for (unsigned int i = 0; !r && i < n; i++)
		h->fds[h->n++] = fds[i];
	h->error = r;
	return r;
}

static struct socket_stock *find_work(const struct stock_keeper *k, unsigned int *ret_which)
{
	for (struct socket_stock *s = k->first; s; s = s->next)
		for (*ret_which = 0; *ret_which < FAMILIES; ++*ret_which)
			if (s->shelves[*ret_which].wanted && s->shelves[*ret_which].n < SOCKET_STOCK)
				return s;
	return NULL;
}

static void *keeper_main(void *arg)
{
	struct stock_keeper *k = arg;
	struct socket_stock *s;
	unsigned int which;
	char err[256];

	pthread_mutex_lock(&k->lock);
	while (!k->stop) {
		s = find_work(k, &which);
		if (!s) {
			pthread_cond_wait(&k->work, &k->lock);
		} else {
			int before = s->shelves[which].error;
			int r = fill(s, which, err, sizeof(err));

			if (r && r != before)
				log_limited(LOG_ERR, "no more sockets with a mark or for "
					    "transparent forwarding: %s", err);
		}
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

int stock_keeper_open(socket_maker_fn *make, void *arg, struct stock_keeper **ret)
{
	struct stock_keeper *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return -ENOMEM;
	k->make = make;
	k->arg = arg;
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->work, NULL);
	pthread_cond_init(&k->idle, NULL);
	r = new_thread(&k->thread, keeper_main, k);
	if (r) {
		free(k);
		return r;
	}
	*ret = k;
	return 0;
}

void stock_keeper_close(struct stock_keeper *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_cond_signal(&k->work);
	pthread_mutex_unlock(&k->lock);
	pthread_join(k->thread, NULL);
	pthread_cond_destroy(&k->idle);
	pthread_cond_destroy(&k->work);
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

int socket_stock_open(struct stock_keeper *k, const struct config *c, size_t forward,
		      struct socket_stock **ret, char *err, size_t errlen)
{
	const struct endpoint *up = &c->forwards[forward].upstream;
	struct socket_stock *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return -ENOMEM;
	s->keeper = k;
	s->generation = c->generation;
	s->forward = forward;
	for (size_t i = 0; i < up->n_addrs; i++)
		shelf_of(s, up->addrs[i].ss.ss_family)->wanted = true;
	if (!up->n_addrs) /* a name; which family it needs is known when a session asks */
		shelf_of(s, AF_INET)->wanted = true;
	for (unsigned int i = 0; !r && i < FAMILIES; i++) {
		struct shelf *h = &s->shelves[i];

		if (!h->wanted)
			continue;
		r = k->make(k->arg, s->generation, forward, families[i], SOCKET_STOCK, h->fds, err,
			    errlen);
		h->n = r ? 0 : SOCKET_STOCK;
	}
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
	pthread_mutex_lock(&k->lock);
	while (k->filling == s)
		pthread_cond_wait(&k->idle, &k->lock);
	for (at = &k->first; *at != s; at = &(*at)->next)
		;
	*at = s->next;
	pthread_mutex_unlock(&k->lock);
	discard(s);
}

void socket_stock_renumber(struct socket_stock *s, uint32_t generation, size_t forward)
{
	pthread_mutex_lock(&s->keeper->lock);
	s->generation = generation;
	s->forward = forward;
	for (unsigned int i = 0; i < FAMILIES; i++)
		s->shelves[i].error = 0;
	pthread_mutex_unlock(&s->keeper->lock);
}

/* What a session is told that finds none: ERROR of the last try, unless that is likely to pass. */
static int tell(int error)
{
	switch (error) {
	case -EPIPE: /* the privileged process has ended */
	case -EPERM:
	case -EAFNOSUPPORT:
	case -EMFILE:
	case -ENFILE:
	case -ENOMEM:
	case -ENOBUFS:
		return error;
	default:
		return -EAGAIN;
	}
}

int socket_stock_take(struct socket_stock *s, int family)
{
	struct stock_keeper *k = s->keeper;
	struct shelf *h = shelf_of(s, family);
	int fd;

	pthread_mutex_lock(&k->lock);
	fd = h->n ? h->fds[--h->n] : tell(h->error);
	h->wanted = true;
	pthread_cond_signal(&k->work);
	pthread_mutex_unlock(&k->lock);
	return fd;
}
