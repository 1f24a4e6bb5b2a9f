/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_NAMES_H
#define CULVERT_NAMES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"
#include "config/config.h"

/*
 * Where forwards lead to: the addresses of an upstream, which may change when it is a host name.
 *
 * The main thread looks names up with c-ares, in its event loop: at once, on a timer, and after
 * connects that failed.  It stores what it finds in the upstream.  Workers take the addresses from
 * there, and never wait for a name server.
 */
struct names;

/* --- lists of addresses --- */

/*
 * A list never changes; a look-up replaces it as a whole.  A session takes a reference when it
 * begins to connect and keeps it to its end, so it never sees half of a change.
 */
struct addr_list {
	_Atomic unsigned int refs;
	size_t n;            /* 0: of a name that was never found */
	struct addr addrs[]; /* no address twice; in the order in which to try them */
};

void addr_list_put(struct addr_list *list); /* NULL is fine */

/* Write "192.0.2.1:80, [2001:db8::1]:80 and 3 more"; returns BUF. */
#define ADDR_LIST_STRLEN (5 * ADDR_STRLEN)
const char *addr_list_format(const struct addr_list *list, char *buf, size_t size);

/* --- upstreams --- */

#define LOOKUP_WHY_LEN 192

/* How the look-ups of a name have gone. */
struct lookup_record {
	uint64_t resolved_ms; /* CLOCK_MONOTONIC: when the addresses were confirmed or replaced;
			       * when the upstream was opened, while there is none */
	uint64_t lookups;     /* that have ended, since the start */
	uint64_t failures;    /* of them, those without an address */
	char why[LOOKUP_WHY_LEN]; /* why the last one has failed; "": it has not */
};

struct upstream {
	const struct endpoint *conf;   /* of the forward; a name may have no address there */
	const struct endpoint *listen; /* of the same forward: what an upstream must not be */
	unsigned int interval_ms;      /* between two look-ups */
	struct names *names;           /* who looks it up; NULL: nobody */

	pthread_mutex_t lock; /* of the next five */
	struct addr_list *list;
	struct lookup_record record;
	bool awaited;             /* a session waits for the end of a look-up */
	struct addr preferred;    /* see upstream_first() */
	uint64_t prefer_until_ms; /* 0: none is preferred */

	_Atomic bool wanted;        /* a look-up as soon as possible */
	_Atomic uint64_t wanted_ms; /* when a failed connect last asked for one */
};

/* CONF is numbers, or a name whose addresses may be known.  -ENOMEM. */
int upstream_open(struct upstream *u, const struct endpoint *conf, const struct endpoint *listen,
		  unsigned int interval_ms, uint64_t now_ms);
/* Also ends its look-ups.  An upstream of zeroes is fine. */
void upstream_close(struct upstream *u);

/* Take a reference to the current list, which may be empty. */
struct addr_list *upstream_get(struct upstream *u);

/*
 * The index of the address to begin with.  One that connected after those before it had failed, or
 * were silent, is preferred for a while, so that not every session waits for a dead family anew.
 * upstream_avoid(): A has failed; it is preferred no longer.
 */
#define UPSTREAM_PREFER_MS 60000
size_t upstream_first(struct upstream *u, const struct addr_list *list, uint64_t now_ms);
void upstream_prefer(struct upstream *u, const struct addr *a, uint64_t now_ms);
void upstream_avoid(struct upstream *u, const struct addr *a);

/*
 * upstream_get() for a session that begins to connect: 1, and a list that is not empty.  0: there
 * is no address yet and a look-up has been asked for; when it has ended, the workers are woken
 * (names_open()) and call this again.  -ENOENT: a look-up has ended without an address, or nobody
 * looks it up.  *SEEN is 0 at the first call, and left alone from then on.  By any thread.
 */
int upstream_await(struct upstream *u, uint64_t *seen, struct addr_list **ret);

/*
 * No address of it could be connected to: ask for a look-up, if it is a name, at most once in
 * UPSTREAM_ASK_MS.  By any thread.
 */
#define UPSTREAM_ASK_MS 1000
void upstream_failed(struct upstream *u, uint64_t now_ms);

void upstream_record(struct upstream *u, struct lookup_record *ret);

/*
 * Store the N addresses ADDRS that a look-up has found.  Left out are the forward's own listener,
 * what has no port, and repetitions; the order in ADDRS is lost.  If none is left, or there is no memory, the list stays as it is, and the
 * look-up has failed.  Returns 1 if the set of addresses has changed, 0 if not, or -errno.
 */
int upstream_found(struct upstream *u, struct addr *addrs, size_t n, uint64_t now_ms);
/* A look-up has failed: the addresses stay.  True if it had not failed for this reason before. */
bool upstream_not_found(struct upstream *u, const char *why);

/* --- looking names up --- */

/* True if C, or what its file may say later, needs any of this. */
bool names_needed(const struct config *c);

typedef void names_tell_fn(void *arg);

/*
 * Read /etc/resolv.conf and /etc/hosts: to be called before the process is confined.  What follows
 * happens in LOOP, by the thread that runs it.  TELL(ARG) is called by that thread when a look-up
 * has ended that a session waits for.  -errno; ERR says why.
 */
int names_open(struct loop *loop, names_tell_fn *tell, void *arg, struct names **ret, char *err,
	       size_t errlen);
/* When no worker runs any more; upstreams may be closed later.  NULL is fine. */
void names_close(struct names *n);

/*
 * Look U up from now on, if it is a name, until U is closed.  To be called before sessions use U.
 * N may be NULL.  By any thread.  -ENOMEM.
 */
int names_add(struct names *n, struct upstream *u);

/* To be called after each batch of the loop: begin the look-ups that other threads want. */
void names_after_batch(struct names *n);

/*
 * Wait until a look-up of U, which names_add() was told of, has ended, MS at most.  Not by the
 * thread of the loop.  -ETIMEDOUT; -ECANCELED: culvert is about to stop, see names_give_up().
 */
int names_wait(struct names *n, struct upstream *u, unsigned int ms);
/* Who waits, or begins to wait later, is sent away. */
void names_give_up(struct names *n);

/*
 * Find the addresses of C's names to listen at, which must be known before they can be bound.  N:
 * for a process that is confined; waits for NAMES_PATIENCE_S at most, less than systemd gives a
 * daemon to stop.  NULL: ask getaddrinfo(3).  -EINVAL: two forwards have the same address; ERR names
 * the forward.
 */
#define NAMES_PATIENCE_S 10
int names_find_listeners(struct names *n, struct config *c, char *err, size_t errlen);

#endif
