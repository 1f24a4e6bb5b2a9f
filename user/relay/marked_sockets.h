/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/loop.h"
#include "config/config.h"

/*
 * Sockets for connections to the upstreams of forwards that have a mark or are transparent, which
 * only the privileged process can make.  A worker must not wait for that process, so each such
 * forward has some in stock, for each family that its upstream has shown to need.  The main thread
 * fills up what is taken.
 */
struct marked_sockets;

#define MARKED_SOCKETS 32 /* of a forward, for each family */

/* Asks the privileged process: N sockets of FAMILY for FC.  -errno; ERR says why. */
typedef int socket_maker_fn(void *arg, const struct forward_conf *fc, int family, unsigned int n,
			    int *fds, char *err, size_t errlen);

/* One of zeroes has no stocks. */
struct socket_keeper {
	socket_maker_fn *make;
	void *arg;
	struct loop *loop;    /* of the main thread */
	pthread_mutex_t lock; /* of what follows, and of all stocks */
	LIST_HEAD(marked_sockets_list, marked_sockets) stocks;
};

/* LOOP is the main thread's, which asks MAKE(ARG). */
void socket_keeper_open(struct socket_keeper *k, socket_maker_fn *make, void *arg,
			struct loop *loop);
/*
 * Make what is wanted, free what is closed: to be called after each batch of LOOP, and when all
 * stocks are closed and LOOP runs no more.
 */
void socket_keeper_after_batch(struct socket_keeper *k);

/* A stock for FC, filled for its first server.  -errno of that process, after a complaint. */
int marked_sockets_open(struct socket_keeper *k, const struct forward_conf *fc,
			struct marked_sockets **ret);
/* No worker takes from it any more.  NULL is fine. */
void marked_sockets_close(struct marked_sockets *s);

/*
 * Take a socket of FAMILY; it is non-blocking.  -ENOSR: there is none at the moment, but soon, or
 * once the privileged process answers.  -EPIPE: that has ended.  -EAFNOSUPPORT.  Each call makes
 * the main thread try again.  Waits for nobody.
 */
int marked_sockets_take(struct marked_sockets *s, int family);
