/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/addr.h"
#include "base/loop.h"
#include "config/config.h"
#include "relay/forward.h"
#include "relay/handshake.h"
#include "relay/worker.h"

/*
 * Sockets that listen, and how workers accept from them.
 *
 *   struct listening   one address, for one forward at a time
 *     at[worker]       struct listener: one worker's socket there, watched by its loop
 *
 * Each worker has a socket of its own (SO_REUSEPORT), so the kernel spreads connections and
 * workers share nothing; flows of UDP as udp_worker() says.  A unix socket, and a socket that
 * systemd has opened, is one that all workers watch.
 */

/* Belongs to the worker's thread once it has started. */
struct listener {
	struct source source; /* fd -1: closed */
	struct worker *worker;
	struct listening *on;
	struct forward *forward; /* whose sessions it opens; a reload puts another in its place */
	LIST_ENTRY(listener) in_worker;
	struct udp_socket *udp;      /* of UDP: it has this instead of SOURCE */
	struct listener_shape shape; /* of TCP: of connections that it accepts */
	bool paused;                 /* since the last accepted connection */
	unsigned int burst;          /* connections to accept at the next event */
};

/* Belongs to the thread that reloads. */
struct listening {
	struct forward *forward;
	struct forward *becomes; /* with the change that is planned; NULL: it is closed */
	struct addr asked;       /* as configured */
	struct addr addr;        /* the same with the port that the kernel has picked */
	bool udp;                /* the protocol of ASKED, in which other ports have its number */
	bool shared;             /* one socket for all workers */
	bool given;              /* ... which systemd has opened, and keeps: see given_take() */
	LIST_ENTRY(listening) in_service; /* or in a change that is planned */
	LIST_ENTRY(listening) in_bucket;  /* of that, see change.c */
	unsigned int n_workers;
	struct listener at[];
};

LIST_HEAD(listening_list, listening);

/* --- sockets --- */

/*
 * Make N sockets that listen on A, an address of FC; port 0 in A becomes the one that the kernel
 * has picked.  JOINS: this daemon has sockets that may be in the way of A; otherwise A must be
 * free, since SO_REUSEPORT would let a second culvert of the same user share it in silence.  A
 * unix socket's file that nobody listens on is left over from a crash, and is removed.  Those of UDP
 * drop what comes before all of them are there.  -errno; ERR says what is wrong.
 *
 * The kernel wants all sockets of one SO_REUSEPORT group to be made under the same effective uid.
 */
int listener_sockets(void *unused, const struct forward_conf *fc, struct addr *a, bool joins,
		     unsigned int n, int *fds, char *err, size_t errlen);

/* listener_sockets(), or what calls it in another process for a daemon that is confined. */
struct listening_maker {
	typeof(listener_sockets) *make;
	void *arg;
};

/* --- sockets that systemd has opened --- */

/*
 * Socket activation, sd_listen_fds(3): systemd opens the sockets and keeps them while culvert
 * restarts, so that no client is refused.  One is used for the listen address, and protocol, that
 * it is bound to.
 * They stay open as long as the daemon runs, so a forward that a reload takes away and another
 * brings back finds its socket again.  Only the thread that reloads may use them.
 *
 * Take those that the environment of the process tells of, which is then told no more.  0, also if
 * there is none; -errno: ERR says which is of no use, and why.
 */
int given_take(char *err, size_t errlen);
/* 0 if a forward listens on each of them; else -EINVAL, and ERR says on which none does. */
int given_check(char *err, size_t errlen);

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

/* Replace port 0 in A, an address of E, by the port that L has, and E's text by that of A. */
void listening_adopt(const struct listening *l, struct endpoint *e, struct addr *a);

/* Give the sockets that L accepts from now on the options of FC. */
void listening_set_options(struct listening *l, const struct forward_conf *fc);

/* --- one worker's side; on its thread, or while it does not run --- */

/*
 * Begin to accept on L.  Where accept(2) finds no descriptor or memory, or at a limit of sessions,
 * a listener pauses, and clients wait in the backlog.  A client that was accepted and for whose
 * session there is no memory is reset.
 */
void listener_start(struct listening *l, struct worker *w);
/* After each batch of events: options that W's listeners grant follow the knowledge of servers. */
void listeners_follow_servers(struct worker *w);
/* The sessions that LS opens from now on are those of F. */
void listener_becomes(struct listener *ls, struct forward *f);
/*
 * Stop accepting, and close the worker's own socket.  Connections that the kernel has completed
 * already are taken first: a client that saw its connect succeed is served.  At a limit of sessions
 * the rest of the backlog is reset.  To be called by loop_call(), when no event for LS can be at
 * hand.
 */
void listener_end(struct listener *ls);
