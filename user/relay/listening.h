/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LISTENING_H
#define CULVERT_LISTENING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "relay/forward.h"

/*
 * The addresses that culvert listens on.  Each worker has a socket of its own for every address
 * (SO_REUSEPORT), so the kernel spreads connections and workers share nothing; unix sockets know no
 * SO_REUSEPORT, and there the workers watch one socket together, as they do with one that systemd
 * has opened.
 */
struct listening {
	struct forward *forward; /* of the thread that reloads, */
	struct forward *becomes; /* ... meanwhile; NULL: to be closed */
	struct addr asked;      /* as configured */
	struct addr addr;       /* the same with the port that the kernel has picked */
	bool shared;            /* one socket for all workers */
	bool given;             /* ... which systemd has opened, and keeps: see given.h */
	bool transparent;       /* has IP_TRANSPARENT, which can be cleared later, but not set */
	bool leaving;           /* others have its address; it has handshakes under way */
	uint64_t leaves_ms;     /* and then is closed; CLOCK_MONOTONIC */
	struct listening *replaces; /* by then that has begun to leave */
	unsigned int n_workers;
	unsigned int place;     /* of the first socket in the SO_REUSEPORT group */
	int *fds;               /* by worker; -1: closed by that worker; owned */
	struct listening *next;
};

/*
 * Who makes the sockets: N of them that listen on A, an address of FC; port 0 in A becomes that
 * which the kernel has picked.  JOINS: others of this daemon's may be in the way of it.  -errno,
 * and ERR says why.
 */
struct listening_maker {
	int (*make)(void *arg, const struct forward_conf *fc, struct addr *a, bool joins,
		    unsigned int n, int *fds, char *err, size_t errlen);
	void *arg;
};
/* This thread, which needs the privilege for low ports.  See listen_socket.h. */
extern const struct listening_maker listening_by_self;

/* Listen on A, an address of FC, with a socket for each of N workers.  -errno, and ERR. */
int listening_open(const struct listening_maker *by, const struct forward_conf *fc,
		   const struct addr *a, bool joins, unsigned int n, struct listening **ret,
		   char *err, size_t errlen);
/* If A, one of E, asks for any port, it becomes what it is in L; E is named by it. */
void listening_adopt(const struct listening *l, struct endpoint *e, struct addr *a);
/* Close what no worker has closed, and remove the file of a unix socket. */
void listening_close(struct listening *l);
void listening_close_all(struct listening *list);

/*
 * That of F on A, as configured; where F is NULL, or has none, that of another; or NULL.  None that
 * is leaving.
 */
struct listening *listening_find(struct listening *list, const struct forward *f,
				 const struct addr *a);

/* Let what L's sockets accept from now on be as FC says, as far as they fit. */
void listening_set_options(struct listening *l, const struct forward_conf *fc);
/* Can it be had from L's sockets, or does it take new ones? */
bool listening_fits(const struct listening *l, const struct forward_conf *fc);

/*
 * Of the workers' sockets, let new connections go to those of the first ACTIVE.  By one thread at a
 * time, and not while a worker stops.  Those that are leaving get none.
 */
void listening_steer(const struct listening *l, unsigned int active);

/*
 * Put all addresses of FC, which become those of F, before *LIST.  -errno: some may be open, ERR
 * names the address that is not.
 */
int listening_open_endpoint(const struct listening_maker *by, struct forward_conf *fc,
			    struct forward *f, unsigned int n, struct listening **list, char *err,
			    size_t errlen);

#endif
