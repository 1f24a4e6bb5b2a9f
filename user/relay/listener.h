/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/addr.h"
#include "base/loop.h"
#include "config/config.h"
#include "relay/forward.h"
#include "relay/handshake_options.h"
#include "relay/worker.h"

/*
 * Sockets that listen, and how workers accept from them.
 *
 *   struct listening   one address, for one forward at a time
 *     at[worker]       struct listener: one worker's socket there, watched by its loop
 *
 * Each worker has a socket of its own (SO_REUSEPORT), so the kernel spreads connections and workers
 * share nothing; udp_worker() spreads flows of UDP.  If the socket is a unix socket, or systemd has
 * opened it, all workers watch the same one.
 */

/* Belongs to the worker's thread once it has started. */
struct listener {
	struct source source; /* fd -1: closed */
	struct worker *worker;
	struct listening *on;
	struct forward *forward; /* of new sessions; a reload may replace it */
	LIST_ENTRY(listener) in_worker;
	struct udp_listen_socket *udp; /* UDP: in place of SOURCE */
	struct listener_shape shape;   /* TCP: of accepted connections */
	struct syn_stock *syn;         /* of its forward; NULL: none */
	bool paused;                   /* it has paused, and accepted no client since */
	unsigned int burst;            /* connections to accept at the next event */
};

/* Belongs to the thread that reloads. */
struct listening {
	struct forward *forward;
	struct forward *becomes; /* after the planned change; NULL: to be closed */
	struct addr asked;       /* as configured */
	struct addr addr;        /* the same with the port that the kernel has picked */
	bool udp;                /* UDP, whose port numbers are apart from those of TCP */
	bool shared;             /* one socket for all workers */
	/* it stays when this daemon ends: systemd has it (given_take()), or the next daemon */
	bool given;
	LIST_ENTRY(listening) in_service; /* or in a change that is planned */
	LIST_ENTRY(listening) in_bucket;  /* of the planned change, see change_forwards.c */
	unsigned int n_workers;
	struct listener at[];
};

LIST_HEAD(listening_list, listening);

/* --- sockets --- */

/*
 * Make N sockets that listen on A, an address of FC; port 0 in A becomes the one that the kernel
 * has picked.  JOINS: this daemon itself may have sockets at A.  Otherwise A must be free:
 * SO_REUSEPORT would let a second culvert of the same user share A in silence.  A unix socket's
 * file that nobody listens on is left over from a crash, and is removed.  Datagrams that come
 * before all sockets of UDP exist are dropped.  -errno; ERR says what is wrong.
 *
 * The kernel wants all sockets of one SO_REUSEPORT group to be made under the same effective uid.
 */
int listener_sockets(void *unused, const struct forward_conf *fc, struct addr *a, bool joins,
		     unsigned int n, int *fds, char *err, size_t errlen);

/* listener_sockets(), or a function that lets the privileged process call it. */
struct listening_maker {
	typeof(listener_sockets) *make;
	void *arg;
};

/* --- sockets that systemd has opened --- */

/*
 * Socket activation, sd_listen_fds(3): systemd opens the sockets and keeps them while culvert
 * restarts, so that no client is refused.  A socket serves the listen address and the protocol that
 * it is bound to.  The sockets stay open while the daemon runs, so a forward that is removed and
 * added again finds its socket.  Only the thread that reloads may use the sockets.
 *
 * given_take() takes the sockets that environment variables name, and unsets these.  Returns
 * 0, even if there is no socket; or -errno, and ERR says which socket is of no use, and why.
 * *RET_STORE: the descriptor that the daemon before this one has left there (hand_over.h), if any.
 */
#define STORE_NAME "culvert-hand-over"
int given_take(char *err, size_t errlen, int *ret_store);
/* 0 if each of these sockets has a forward; else -EINVAL, and ERR names a socket without one. */
int given_check(char *err, size_t errlen);

/*
 * Use FD in the same way.  HANDED: it comes from the daemon before this one; each is used once.
 * False: it is no socket of use.
 */
bool given_put(int fd, bool handed);
/*
 * Up to MOST sockets that are bound to A go to FDS, which the caller owns.  Returns their number.
 */
unsigned int given_open(const struct addr *a, bool udp, unsigned int most, int *fds,
			bool *ret_handed);
/* Close those of the daemon before this one that nobody has used. */
void given_close_rest(void);

/* --- addresses --- */

/*
 * Listen on A, an address of F, with a socket for each of N workers that BY makes, or with the one
 * that systemd has opened.  Nobody accepts yet.  -errno after a complaint.
 */
int listening_open(const struct listening_maker *by, struct forward *f, const struct addr *a,
		   bool joins, unsigned int n, struct listening **ret);
/*
 * Close all sockets that are open, remove the file of a unix socket, and free L, whose listeners
 * have ended or never started.  NULL is fine.
 */
void listening_close(struct listening *l);
void listening_close_all(struct listening_list *list);

/*
 * Port 0 in A, an address of E, becomes the port of L.  The text of E gets that port, too, if E has
 * no other address.
 */
void listening_adopt(const struct listening *l, struct endpoint *e, struct addr *a);

/* Sockets that L accepts from now on get the options of FC. */
void listening_set_options(struct listening *l, const struct forward_conf *fc);

/* --- one worker's side; on its thread, or while it does not run --- */

/*
 * Begin to accept on L.  A listener pauses at a limit, and when accept(2) finds no descriptor or
 * memory.  Clients wait in the backlog meanwhile.  An accepted client is reset if there is no
 * memory for its session.
 */
void listener_start(struct listening *l, struct worker *w);
/*
 * After each batch of events: W's listeners refuse options that all servers are known to lack.
 */
void listeners_follow_servers(struct worker *w);
/* The sessions that LS opens from now on are those of F. */
void listener_becomes(struct listener *ls, struct forward *f);
/*
 * Stop accepting, and close the worker's own socket.  Connections that the kernel has completed
 * already are taken first: a client that saw its connect succeed is served.  At a limit of sessions
 * the rest of the backlog is reset.  To be called by loop_call(): between two batches no event for
 * LS is pending.
 */
void listener_end(struct listener *ls);
/* All listeners of W end. */
void listeners_end(struct worker *w);
