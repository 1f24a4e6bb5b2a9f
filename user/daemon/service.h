/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "config/orders.h"
#include "daemon/privileged_client.h"
#include "relay/forward.h"
#include "relay/listener.h"
#include "relay/marked_sockets.h"
#include "relay/threads.h"

/*
 * The service that culvert runs: workers, forwards, the addresses that these listen at, the
 * privileged process; and the thread that reloads, which alone makes changes of all that (change_forwards.h).
 */

struct reload_result {
	unsigned int added, changed, removed, kept; /* forwards */
	char error[1024];                           /* why nothing has changed; "": success */
};

struct service {
	/* set by the caller */
	int argc; /* of `culvert run`: in a reload, too, the command line overrides the file */
	char **argv;
	struct config *start; /* in force for options that only a new start can change */
	struct shared *shared;
	struct loop *main;             /* of the main thread */
	struct privileged *privileged; /* NULL: there is none */
	struct socket_keeper keeper;   /* asks the privileged process, see marked_sockets.h */
	struct threads threads;

	/*
	 * The thread that reloads may wait for another process.  It reads the lists of forwards and
	 * addresses without a lock, and changes them under forwards.lock.
	 */
	pthread_t thread;
	struct loop loop;
	struct timer due;      /* of a deadline, see drain_end_due() */
	struct timer *sockets; /* looks for sessions without sockets (standby.c); NULL: nobody does */
	struct forwards forwards;
	struct listening_list listening; /* all addresses */
	bool in_force;                   /* the file that was read last is in force */
	char *text;                      /* owned: of the file in force; NULL: there is none */
	struct upstream_orders orders;   /* written under forwards.lock */
	_Atomic unsigned int changes;    /* of the configuration; written under forwards.lock */
	bool hands_over;                 /* a daemon has asked for all; under forwards.lock */
	bool started;

	pthread_mutex_t lock; /* of the next members */
	bool stop;
	uint64_t asked, finished; /* reloads, since the start */
	struct reload_result last;
};

/* Begin with no forwards.  -errno. */
int service_open(struct service *sv);
/* Start the thread.  -errno. */
int service_start(struct service *sv);
/*
 * End the thread, before the workers end: nothing changes afterwards.  A change that is under way
 * is waited for.  A thread that was never started is fine.
 */
void service_stop(struct service *sv);

/* --- reload --- */

/*
 * `culvert reload` and SIGHUP put the configuration file in force as it is now, or say why not.
 */

/*
 * Ask for a reload.  Returns its number, which `finished` reaches when the reload is done; 0:
 * culvert is stopping.  By any thread; waits for nothing.
 */
uint64_t reload_ask(struct service *sv);
/* How the last reload went.  By any thread. */
struct json_object *reload_json(struct service *sv);

enum reload_order {
	RELOAD_ADD,
	RELOAD_REMOVE,
	RELOAD_TAKE_BACK,
};

/*
 * Add SERVER, with WORDS behind it, to the forward NAME; remove SERVER; or take such an order back.
 * The file is not read again.  By a control thread, which waits for the thread that reloads.  Returns
 * 1; or 0: there is no order to take back.  -ENOENT: no active forward is NAME; -ETIMEDOUT: a reload
 * is under way; or another -errno; WHY says why.
 */
#define RELOAD_WHY_LEN 640
int reload_order(struct service *sv, const char *name, enum reload_order order, const char *server,
		 const char *words, char why[RELOAD_WHY_LEN]);
