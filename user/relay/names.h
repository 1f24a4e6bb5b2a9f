/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/loop.h"
#include "config/config.h"

/*
 * The addresses of a server, which may change if the server is a host name.
 *
 * The main thread looks names up with c-ares, in its event loop: at once, on a timer, and after
 * connects that failed.  The results are in struct lookup.  Workers take the addresses from there,
 * and never wait for a name server.
 */
struct names;

/* --- lists of addresses --- */

/*
 * A list never changes; a look-up replaces it as a whole.  A session takes a reference when it
 * begins to connect and keeps it to its end, so it never sees half of a change.
 */
struct addr_list {
	_Atomic unsigned int refs;
	size_t n;            /* 0: the name was never found */
	struct addr addrs[]; /* no address twice; in the order in which to try them */
};

/* A list with one reference.  NULL: no memory. */
struct addr_list *addr_list_new(const struct addr *addrs, size_t n);
struct addr_list *addr_list_get(struct addr_list *list);
void addr_list_put(struct addr_list *list); /* NULL is fine */

/* --- look-ups: where a server is --- */

#define LOOKUP_WHY_LEN 192

/* How the look-ups of a name have gone. */
struct lookup_record {
	uint64_t resolved_ms;     /* CLOCK_MONOTONIC: when the addresses were confirmed or replaced;
			       * at first, when lookup_open() was called */
	uint64_t lookups;         /* that have ended, since the start */
	uint64_t failures;        /* of them, those without an address */
	uint64_t ended_ms;        /* when the last one ended */
	char why[LOOKUP_WHY_LEN]; /* why the last one has failed; "": it has not */
};

struct lookup {
	const struct forward_conf *forward; /* its own listener is no valid result */
	const struct endpoint *conf;        /* a server of FORWARD; its n_addrs may be 0 */
	struct names *names;                /* looks the name up; NULL: no look-ups */

	pthread_mutex_t lock; /* of the next two */
	struct addr_list *list;
	struct lookup_record record;

	_Atomic bool wanted; /* a look-up as soon as possible */

	/* with the lock of names */
	LIST_ENTRY(lookup) in_names;
	uint64_t asked_ms; /* when the last look-up began */
	uint64_t due_ms;   /* when to begin the next */
	bool open;         /* one is under way */
};

/* Begin L with the addresses that CONF, a server of FC, has so far.  -ENOMEM. */
int lookup_open(struct lookup *l, const struct forward_conf *fc, const struct endpoint *conf,
		uint64_t now_ms);
/*
 * Give L the addresses of BEFORE and its record of look-ups.  Both have the same text, and nobody
 * uses L yet.  If L is a name and one of the addresses is its forward's own listener, L stays as it
 * is.
 */
void lookup_inherit(struct lookup *l, struct lookup *before);
/* Also ends the look-ups of L.  A struct of zeroes is fine. */
void lookup_close(struct lookup *l);

/* Take a reference to the current list, which may be empty. */
struct addr_list *lookup_get(struct lookup *l);

/*
 * All addresses of L have failed: ask for a look-up, if L is a name.  That look-up begins
 * LOOKUP_ASK_MS after the last one at the earliest.  True: no look-up has ended since the wait
 * began, so another address may yet be found.  The session may call this again until the result is
 * false.  False at once: the addresses are those of a look-up less than LOOKUP_ASK_MS before
 * NOW_MS, and so are taken as fresh.  A session whose server has no address passes NEVER as NOW_MS,
 * because an empty list is not fresh.  *SEEN is 0 at first, and then the time at which the wait
 * began: a session waits for one look-up only.  By any thread.
 */
#define LOOKUP_ASK_MS 1000
bool lookup_failed(struct lookup *l, uint64_t *seen, uint64_t now_ms);

void lookup_record(struct lookup *l, struct lookup_record *ret);

/*
 * A look-up has ended with the N addresses ADDRS, which are overwritten; or with none, because of
 * WHY.  The forward's own listener, addresses without a port, and repetitions are left out.  If no
 * address is left, the list stays as it is.  True if the set of addresses has changed, or the
 * reason of a failure is new.
 */
bool lookup_update(struct lookup *l, struct addr *addrs, size_t n, const char *why,
		   uint64_t now_ms);

/* --- looking names up --- */

/* True if C has a server that is a name. */
bool names_needed(const struct config *c);

/*
 * Read /etc/resolv.conf and /etc/hosts: to be called before the process is confined.  Look-ups run
 * in LOOP, on the thread of LOOP.  -errno; ERR says why.
 */
int names_open(struct loop *loop, struct names **ret, char *err, size_t errlen);
/*
 * Read both files again, from FDS, and close FDS.  Look all names up anew.  Only the name servers
 * of resolv.conf are taken.  By any thread.
 */
enum { NAMES_FILES = 2 };
extern const char *const names_files[NAMES_FILES]; /* /etc/hosts, /etc/resolv.conf */
void names_read_again(struct names *n, const int fds[NAMES_FILES]);

/*
 * Look L up from now on, if it is a name, until L is closed.  To be called before sessions use L.
 * The forward's addresses to listen at must be final, since the main thread reads them from now on.
 * N may be NULL.  By any thread.
 */
void names_add(struct names *n, struct lookup *l);

/* To be called after each batch of the loop: begin the look-ups that are due, or wanted. */
void names_after_batch(struct names *n);

/*
 * Look up C's names to listen at, by getaddrinfo(3): their addresses must be known before they can
 * be bound.  CONFINED: look-ups are impossible, so a name without an address is -EINVAL.  Two
 * forwards with the same address are -EINVAL, too.  Other results are those of endpoint_look_up().
 * Each failure is complained about.
 */
int names_find_listeners(struct config *c, bool confined);
