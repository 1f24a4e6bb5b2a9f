/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RECONFIGURE_H
#define CULVERT_RECONFIGURE_H

#include <json-c/json.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/privileged_client.h"
#include "daemon/reload.h"

/* Why what is asked for after reconfigure_stop() is not done. */
#define RECONFIGURE_STOPPING "culvert is stopping, and its forwards change no more"

/*
 * SIGHUP, `culvert reload`: get the configuration file as it is now, and put it in force (reload.h)
 * or say why not.  A thread of its own does it, since names may have to be looked up.
 */
struct reconfigure {
	int argc; /* of `culvert run`: the command line counts over the file, as at the start */
	char **argv;
	const struct config *start;
	struct privileged *privileged; /* NULL: then there is no file, or no reading it again */
	struct names *names;           /* NULL: no names can be looked up */
	struct reload reload;
	uint32_t generation;           /* of the configuration in force */
	const struct config *next;     /* that is about to be */
	struct listening_maker maker;

	pthread_t thread;
	bool started, opened;

	pthread_mutex_t lock;          /* of what follows */
	pthread_cond_t change;         /* somebody asks, or it is to stop */
	bool stop;
	bool look;                     /* at what is due */
	uint64_t asked, finished;      /* reloads, since the start */
	bool ok;                       /* the last one */
	char error[1024];              /* "": it went well */
	struct reload_result result;
};

/* Start the thread: what is above it has been set, but for reload.maker.  -errno. */
int reconfigure_open(struct reconfigure *r);
/*
 * End the thread, before the workers end: from here on nothing changes, and whoever asks is told.
 * A reload that waits for a name server is waited for, as long as names_look_up() says.  One that
 * was never opened is fine.
 */
void reconfigure_stop(struct reconfigure *r);
/* When nobody asks any more. */
void reconfigure_close(struct reconfigure *r);

/*
 * Somebody wants it: the number that `finished` reaches when it is done, or 0: it will not be,
 * since culvert is stopping.  By any thread; waits for nothing.
 */
uint64_t reconfigure_ask(struct reconfigure *r);

/*
 * `culvert drain`, by the control thread: the active forward NAME takes no more sessions, and what
 * it has left at DUE_MS is reset (UINT64_MAX: nothing is); or (UNDO) it takes them again.  0;
 * -ENOENT: there is none; -EBUSY: a reload is under way; -ESHUTDOWN: culvert is stopping; or
 * another -errno, and ERR says what is wrong.
 */
int reconfigure_drain(struct reconfigure *r, const char *name, bool undo, uint64_t due_ms,
		      char *err, size_t errlen);

/* Can sockets be had that listen, for a reload, or to undo a drain?  By any thread. */
bool reconfigure_may_listen(const struct reconfigure *r);

/* How the last one went. */
struct json_object *reconfigure_json(struct reconfigure *r);

#endif
