/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "daemon/privileged.h"
#include "relay/forward.h"
#include "relay/listener.h"
#include "relay/marked_sockets.h"
#include "relay/threads.h"

/*
 * What culvert forwards, and how that changes: `culvert reload` and SIGHUP put the configuration
 * file in force as it is now, or say why not; `culvert drain` closes one forward's sockets;
 * sessions of forwards that are removed or drain end when their time is over.
 */

/* Why nothing changes after reload_stop(). */
#define RELOAD_STOPPING "culvert is stopping, and its forwards change no more"

struct reload_result {
	unsigned int added, changed, removed, kept; /* forwards */
	char error[1024];                           /* why nothing has changed; "": it has */
};

struct reload {
	/* set by the caller */
	int argc; /* of `culvert run`: the command line counts over the file, as at the start */
	char **argv;
	struct config *start; /* what only a new start can change is as it says */
	struct shared *shared;
	struct privileged *privileged; /* NULL: there is none */
	struct socket_keeper keeper;   /* asks it, see marked_sockets.h */
	struct threads threads;

	/*
	 * The thread that makes all changes, which may wait for another process.  It may go through
	 * the lists of forwards and addresses; to change them takes forwards.lock too.
	 */
	pthread_t thread;
	struct loop loop;
	struct timer look; /* something is due */
	struct forwards forwards;
	struct listening *listening; /* list of all addresses */
	bool took;                   /* the file that was read last is in force */
	bool started;

	pthread_mutex_t lock; /* of what follows */
	bool stop;
	uint64_t asked, finished; /* reloads, since the start */
	struct reload_result last;
};

/* Begin with no forwards.  -errno; call reload_close() in any case. */
int reload_open(struct reload *r);
/*
 * Make the forwards of the configuration of the start, and open their addresses, which this process
 * can still do itself.  -errno, after a complaint.
 */
int reload_first(struct reload *r);
/* Start the thread.  -errno. */
int reload_start(struct reload *r);
/*
 * End the thread, before the workers end: from here on nothing changes, and whoever asks is told.
 * A change that is under way is waited for.  One that was never started is fine.
 */
void reload_stop(struct reload *r);
/* When nobody asks any more, and no worker runs: forwards and addresses are closed, too. */
void reload_close(struct reload *r);

/*
 * Ask for a reload: the number that `finished` reaches when it is done, or 0: culvert is stopping.
 * By any thread; waits for nothing.
 */
uint64_t reload_ask(struct reload *r);

/*
 * Let the active forward NAME take no more sessions, and reset those that are left at DUE_MS, which
 * may be NEVER; or (UNDO) take sessions again.  -ENOENT: there is none; -EBUSY: a reload is under
 * way; -ESHUTDOWN: culvert is stopping; or another -errno; all after a complaint.
 */
int reload_drain(struct reload *r, const char *name, bool undo, uint64_t due_ms);

/* How the last reload went. */
struct json_object *reload_json(struct reload *r);
