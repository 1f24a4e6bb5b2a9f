/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_UPSTREAM_H
#define CULVERT_UPSTREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/endpoint.h"

/*
 * Where a forward leads to now: the addresses of its upstream, which may change when that is a
 * name.  A name has none at first: nobody waits for a name server before it is needed.
 *
 * A list of addresses never changes; it is replaced as a whole.  A session takes a reference when
 * it begins to connect and keeps it to its end, so it never sees half of a change, and what it
 * shows stays true.  Taking one is a lock held for a few instructions, once a session; whoever
 * replaces the list has made the new one before.  (An atomic pointer alone would not do: between
 * loading it and counting, the last reference may go.)
 */
struct addr_list {
	_Atomic unsigned int refs;
	_Atomic uint64_t preferred; /* see addr_list_first() */
	size_t n;                   /* 0: of a name that was never found */
	struct addr addrs[];        /* in the order of happy_sort() */
};

/* A list with one reference, or NULL: no memory. */
struct addr_list *addr_list_new(const struct addr *addrs, size_t n);
void addr_list_put(struct addr_list *list); /* NULL is fine */

/*
 * Which address to begin with: the one that connected after those before it had failed or were
 * silent, for as long as ADDR_PREFER_MS; so not every session waits for a dead family anew.
 */
#define ADDR_PREFER_MS 60000
size_t addr_list_first(struct addr_list *list, uint64_t now_ms);
void addr_list_prefer(struct addr_list *list, size_t index, uint64_t now_ms);
/* It has failed. */
void addr_list_forget(struct addr_list *list);

/* "192.0.2.1:80, [2001:db8::1]:80 and 3 more"; returns BUF. */
#define ADDR_LIST_STRLEN (5 * ADDR_STRLEN)
const char *addr_list_format(const struct addr_list *list, char *buf, size_t size);

#define LOOKUP_WHY_LEN 192

/* How the name's look-ups have gone. */
struct lookup_record {
	uint64_t resolved_ms; /* CLOCK_MONOTONIC: the addresses were confirmed or replaced; while
			       * there is none: it was opened */
	uint64_t lookups;     /* answered, since the start */
	uint64_t failures;    /* of them, those without an address; and those never answered */
	char why[LOOKUP_WHY_LEN]; /* the last one has failed; "": it has not */
};

typedef void upstream_ask_fn(void *arg);

struct upstream {
	const struct endpoint *conf;   /* of the forward; the addresses are those of the start, and
					* of a name there may be none */
	const struct endpoint *listen; /* of the same: what an upstream must not be */
	unsigned int interval_ms;      /* between two look-ups */

	pthread_mutex_t lock; /* of the next three */
	struct addr_list *list;
	struct lookup_record record;
	bool awaited; /* somebody waits for the end of a look-up */

	_Atomic(upstream_ask_fn *) ask; /* wakes who looks up; NULL: nobody does */
	void (*forget)(void *arg, struct upstream *u); /* to be told before it is closed */
	void *arg;
	_Atomic bool wanted;         /* a look-up, as soon as may be */
	_Atomic uint64_t wanted_ms;  /* when that was last said */
};

/* CONF is a name, which may have addresses already, or not.  -ENOMEM. */
int upstream_open(struct upstream *u, const struct endpoint *conf, const struct endpoint *listen,
		  unsigned int interval_ms, uint64_t now_ms);
/* Whoever looks it up is told before.  Fine if it never was opened. */
void upstream_close(struct upstream *u);

/* A reference to the current list, which may be empty. */
struct addr_list *upstream_get(struct upstream *u);

/* No address of it was ever found. */
bool upstream_is_unknown(struct upstream *u);

/*
 * upstream_get() for a session that begins to connect: 1, and a list that is not empty.  0: there
 * is no address yet, a look-up has been asked for, and when one has ended, whoever looks it up sees
 * to it that this is called again (upstream_awaited()).  -ENOENT: one has ended without an address,
 * or nobody looks it up.  *SEEN is 0 at the first call, and left alone from then on.  By any
 * thread.
 */
int upstream_await(struct upstream *u, uint64_t *seen, struct addr_list **ret);
/* A look-up has ended: does anybody wait for that?  It is not said again. */
bool upstream_awaited(struct upstream *u);

/*
 * A look-up has found the N addresses of ADDRS.  Those that must not be, because they are the
 * forward's own listener, or have another port than the configuration says, are left out; if none
 * is left, or for want of memory, all stays as it is, and it counts as a failure.  Returns 1 if the
 * set of addresses has changed, 0 if not, or -errno.
 */
int upstream_found(struct upstream *u, const struct addr *addrs, size_t n, uint64_t now_ms);
/* A look-up has failed: the addresses stay.  True if it had not failed, or not for this reason. */
bool upstream_not_found(struct upstream *u, const char *why);
void upstream_record(struct upstream *u, struct lookup_record *ret);

/*
 * No address of it could be connected to: ask for a look-up, if it is a name, at most once in
 * UPSTREAM_ASK_MS.  By any thread.
 */
#define UPSTREAM_ASK_MS 1000
void upstream_failed(struct upstream *u, uint64_t now_ms);

#endif
