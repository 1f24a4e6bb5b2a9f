// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one lock for all stocks, held for a few instructions; while the thread asks
 * the privileged process it does not hold it, and the stock that it asks for is `busy` and cannot
 * be closed.  It sleeps while all shelves are full, or what is not full could not be filled: that
 * is tried again after a while, unless another try would be of no use.
 */
#include "relay/socket_stock.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/new_thread.h"
#include "base/syscalls_needed.h"
#include "daemon/privileged_client.h"

#define RETRY_MS 200
#define FAMILIES 2

SYSCALLS_NEEDED(
	SYSCALL_IF(PART_PRIVILEGED, close));

struct shelf {
	int fds[SOCKET_STOCK];
	unsigned int n;
	bool wanted;
	int error; /* of the last try; 0: it was a success */
	uint64_t retry_ms; /* not before, if it was not */
};

struct socket_stock {
	struct stock_keeper *keeper;
	struct socket_stock *next;
	uint32_t generation;
	size_t forward;
	struct shelf shelves[FAMILIES];
	bool busy;
};

struct stock_keeper {
	struct privileged *privileged;
	struct socket_stock *first;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work; /* for the thread */
	pthread_cond_t idle; /* no longer busy */
	bool asleep, stop;
};

static const int families[FAMILIES] = { AF_INET, AF_INET6 };

static struct shelf *shelf_of(struct socket_stock *s, int family)
{
	return &s->shelves[family == AF_INET6];
}

/* --- filling; with the lock, but while asking --- */

/* 0, or -errno. */
static int fill(struct socket_stock *s, unsigned int which, char *err, size_t errlen)
{
	struct stock_keeper *k = s->keeper;
	struct shelf *h = &s->shelves[which];
	unsigned int n = SOCKET_STOCK - h->n; /* nobody else adds */
	uint32_t generation = s->generation;
	size_t forward = s->forward;
	int fds[SOCKET_STOCK], r;

	s->busy = true;
	pthread_mutex_unlock(&k->lock);
	r = privileged_sockets(k->privileged, generation, forward, families[which], n, fds, err,
			       errlen);
	pthread_mutex_lock(&k->lock);
	s->busy = false;
	pthread_cond_broadcast(&k->idle);
	for (unsigned int i = 0; !r && i < n; i++)
		h->fds[h->n++] = fds[i];
	h->error = r;
	h->retry_ms = clock_ms() + RETRY_MS;
	return r;
}

/*
 * Another try would not help: it has ended, the forward is none of those that it knows, or the
 * kernel has no such sockets.
 */
static bool is_final(int error)
{
	return error == -EPIPE || error == -EPERM || error == -EAFNOSUPPORT;
}

/* What is lacking here or there for a while, as whoever connects without a stock may find, too. */
static bool is_scarcity(int error)
{
	return error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOBUFS;
}

static bool can_be_filled(const struct shelf *h, uint64_t now)
{
	if (!h->wanted || h->n == SOCKET_STOCK)
		return false;
	return !h->error || (!is_final(h->error) && now >= h->retry_ms);
}

/* The next shelf that can be filled, as of NOW. */
static struct socket_stock *find_work(const struct stock_keeper *k, uint64_t now,
				      unsigned int *ret_which)
{
	for (struct socket_stock *s = k->first; s; s = s->next)
		for (*ret_which = 0; *ret_which < FAMILIES; ++*ret_which)
			if (can_be_filled(&s->shelves[*ret_which], now))
				return s;
	return NULL;
}

static void fill_and_say(struct socket_stock *s, unsigned int which)
{
	char err[256];
	int before = s->shelves[which].error, r = fill(s, which, err, sizeof(err));

	if (r && r != before)
		log_limited(LOG_ERR, "no more sockets with a mark or for transparent forwarding: "
			    "%s", err);
}

/* Until there is something to do, or may be. */
static void wait_for_work(struct stock_keeper *k)
{
	struct timespec until = clock_timespec(clock_ms() + RETRY_MS);
	unsigned int which;

	k->asleep = true;
	if (find_work(k, NEVER, &which)) /* what has failed */
		pthread_cond_timedwait(&k->work, &k->lock, &until);
	else
		pthread_cond_wait(&k->work, &k->lock);
	k->asleep = false;
}

static void *keeper_main(void *arg)
{
	struct stock_keeper *k = arg;
	struct socket_stock *s;
	unsigned int which;

	pthread_mutex_lock(&k->lock);
	while (!k->stop) {
		s = find_work(k, clock_ms(), &which);
		if (s)
			fill_and_say(s, which);
		else
			wait_for_work(k);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

/* --- the keeper --- */

int stock_keeper_open(struct privileged *p, struct stock_keeper **ret)
{
	struct stock_keeper *k = calloc(1, sizeof(*k));
	int r;

	if (!k)
		return -ENOMEM;
	k->privileged = p;
	pthread_mutex_init(&k->lock, NULL);
	clock_cond_init(&k->work);
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
	if (!up->n_addrs) /* a name; what else is wanted is known when it is asked for */
		shelf_of(s, AF_INET)->wanted = true;
	pthread_mutex_lock(&k->lock);
	for (unsigned int i = 0; !r && i < FAMILIES; i++)
		if (s->shelves[i].wanted)
			r = fill(s, i, err, errlen);
	if (!r) {
		s->next = k->first;
		k->first = s;
	}
	pthread_mutex_unlock(&k->lock);
	if (r)
		discard(s);
	else
		*ret = s;
	return r;
}

void socket_stock_close(struct socket_stock *s)
{
	struct stock_keeper *k = s ? s->keeper : NULL;
	struct socket_stock **at;

	if (!s)
		return;
	pthread_mutex_lock(&k->lock);
	while (s->busy)
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
	for (unsigned int i = 0; i < FAMILIES; i++) {
		if (s->shelves[i].error == -EPERM)
			s->shelves[i].error = 0;
		s->shelves[i].retry_ms = 0;
	}
	if (s->keeper->asleep)
		pthread_cond_signal(&s->keeper->work);
	pthread_mutex_unlock(&s->keeper->lock);
}

int socket_stock_take(struct socket_stock *s, int family)
{
	struct stock_keeper *k = s->keeper;
	struct shelf *h = shelf_of(s, family);
	int fd;

	pthread_mutex_lock(&k->lock);
	h->wanted = true;
	if (h->n)
		fd = h->fds[--h->n];
	else
		fd = is_final(h->error) || is_scarcity(h->error) ? h->error : -EAGAIN;
	if (k->asleep)
		pthread_cond_signal(&k->work);
	pthread_mutex_unlock(&k->lock);
	return fd;
}
