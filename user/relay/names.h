/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_NAMES_H
#define CULVERT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "daemon/sandbox.h"
#include "relay/names_question.h"
#include "relay/upstream.h"

/*
 * Keeps the addresses of upstreams that are names up to date: a thread with an event loop of its
 * own asks the resolver (resolver.h) at once, on a timer and after failures to connect, and stores
 * what it finds in the upstream, where sessions take it from.  Workers never wait for it.
 */
struct names;

/* True if C, or what its file may say later, needs any of this. */
bool names_needed(const struct config *c);

/*
 * Start the resolver, as account A.  To be called before there are threads, and while there is the
 * privilege to become A.  -errno; ERR says why.
 */
int names_open(const struct account *a, enum filter_mode filter, struct names **ret, char *err,
	       size_t errlen);
/*
 * Start the thread.  TELL(ARG) is called by it after a look-up that somebody has waited for, see
 * upstream_await().
 */
typedef void names_tell_fn(void *arg);
int names_start(struct names *n, names_tell_fn *tell, void *arg);
/* End the thread, so that TELL is not called any more.  One that was never started is fine. */
void names_stop(struct names *n);
/* End all of it.  When no worker runs any more; upstreams may be closed later. */
void names_close(struct names *n);

/*
 * Look U up from now on, if it is a name, until U is closed or names_remove() is called; then its
 * addresses stay as they are.  At once, if it has none.  To be told before sessions use U, and not
 * by two threads at a time.  -ENOMEM, or what loop_call() returns.  N may be NULL.
 */
int names_add(struct names *n, struct upstream *u);
void names_remove(struct names *n, struct upstream *u);

/* For the watchdog: how often the thread has been through its loop, and how to make it do so. */
_Atomic uint64_t *names_turns(struct names *n);
void names_wake(void *names);

/*
 * Look up COUNT names that cannot be done without, all at the same time, and wait for the answers,
 * NAMES_PATIENCE_S at most (less than systemd waits for a daemon that is to stop): so not by a
 * worker.  All are done then; those without an answer have the error -EAGAIN.
 */
#define NAMES_PATIENCE_S 10
void names_look_up_all(struct names *n, struct question *questions, size_t count);

/*
 * The same, as endpoint_parse() does it: for a daemon that is confined, and reads its configuration
 * again.  ARG is the struct names, to fit endpoint_look_up_by().
 */
int names_look_up(void *arg, const char *text, bool passive, struct endpoint *ret, char *err,
		  size_t errlen);

/* Whoever waits for one of these, or asks later, is told -ECANCELED at once. */
void names_give_up(struct names *n);

/* False if the resolver's processes are gone; the addresses known stay in use. */
bool names_have_resolver(struct names *n);

#endif
