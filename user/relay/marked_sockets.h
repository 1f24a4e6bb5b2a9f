/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/loop.h"
#include "config/config.h"

/*
 * Sockets to the upstreams of forwards that have a mark or are transparent.  Only the privileged
 * process can make such sockets, and a worker must not wait for that process.  So each such forward
 * has a stock, for each family that its upstream has needed.  The main thread refills the stock.
 */
struct marked_sockets;

#define MARKED_SOCKETS 32 /* of a forward, for each family */

/* Asks the privileged process: N sockets of FAMILY for FC.  -errno; ERR says why. */
typedef int socket_maker_fn(void *arg, const struct forward_conf *fc, int family, unsigned int n,
			    int *fds, char *err, size_t errlen);

/* A struct of zeroes has no stocks. */
struct socket_keeper {
	socket_maker_fn *make;
	void *arg;            /* of make(), which the main thread calls */
	struct loop *loop;    /* of the main thread */
	pthread_mutex_t lock; /* of the fields below, and of all stocks */
	LIST_HEAD(marked_sockets_list, marked_sockets) stocks;
};

/* Refill all stocks, and free those that are closed: to be called after each batch of LOOP. */
void socket_keeper_after_batch(struct socket_keeper *k);

/*
 * A stock for FC, filled for its first server.  -errno of the privileged process, after a
 * complaint.
 */
int marked_sockets_open(struct socket_keeper *k, const struct forward_conf *fc,
			struct marked_sockets **ret);
/* Close S, from which no worker takes any more.  NULL is fine. */
void marked_sockets_close(struct marked_sockets *s);

/*
 * Take a socket of FAMILY; it is non-blocking.  -ENOSR: the stock is empty until the privileged
 * process answers.  -EPIPE: that process has ended.  -EAFNOSUPPORT.  Each call makes the main
 * thread try again.  Does not wait.
 */
int marked_sockets_take(struct marked_sockets *s, int family);
