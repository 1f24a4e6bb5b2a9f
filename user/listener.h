/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LISTENER_H
#define CULVERT_LISTENER_H

#include "config.h"
#include "loop.h"
#include "worker.h"

/*
 * Listening sockets.  Each worker has its own for every address of every forward (SO_REUSEPORT), so
 * the kernel spreads connections and workers share nothing; unix sockets know no SO_REUSEPORT, and
 * there the workers watch one socket together.
 *
 * Out of descriptors, memory or sessions, a listener pauses: clients wait in the backlog.
 */
struct listen_fd;

struct listener {
	struct source source;
	struct timer resume;
	struct worker *worker;
	struct listener *next; /* of this worker */
	bool paused;            /* since the last accepted connection */
	unsigned int burst;     /* connections to accept at the next event */
	unsigned int streak;    /* events in a row that had so many */
	struct listen_fd *slot; /* where the descriptor came from */
};

/*
 * Bind all listening sockets: FDS[worker][address], in the order of the configuration.  Needs the
 * privilege for low ports.  -errno; ERR names the address.
 */
struct listen_fds;
int listeners_bind(const struct config *c, struct listen_fds **ret, char *err, size_t errlen);
/* Closes what no worker has taken, and removes the files of unix sockets. */
void listeners_unbind(struct listen_fds *l);

/*
 * Of the N workers' sockets, let new connections go to those of the first ACTIVE.  By one thread at
 * a time, and not while a worker stops.
 */
void listeners_steer(struct listen_fds *l, unsigned int active);

/* Start accepting on W's share of the sockets. */
int listeners_start(struct listen_fds *l, struct worker *w, struct listener **ret);
/*
 * Stop accepting.  Connections that the kernel has completed already are taken first: a client that
 * saw its connect succeed is served.  To be called by the worker's own thread; the listeners are
 * freed later, since more events for them may be at hand.
 */
void listeners_stop(struct listener *list);
/* When the worker's loop has ended, or never ran: those not stopped stay listeners_unbind()'s. */
void listeners_free(struct listener *list);

#endif
