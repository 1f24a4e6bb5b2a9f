/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RECONFIGURE_H
#define CULVERT_RECONFIGURE_H

#include <json-c/json.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "privileged_client.h"
#include "reload.h"

/*
 * SIGHUP, `culvert reload`: get the configuration file as it is now, and put it in force (reload.h)
 * or say why not.
 */
struct reconfigure {
	int argc; /* of `culvert run`: the command line counts over the file, as at the start */
	char **argv;
	const struct config *start;
	struct privileged *privileged; /* NULL: then there is no file, or no reading it again */
	struct reload reload;
	uint32_t generation;           /* of the configuration in force */
	const struct config *next;     /* that is about to be */
	struct listening_maker maker;
	uint64_t drain_ms;             /* see reload_drain() */

	pthread_mutex_t lock;          /* of what follows */
	uint64_t asked, finished;      /* reloads, since the start */
	bool ok;                       /* the last one */
	char error[1024];              /* "": it went well */
	struct reload_result result;
};

/* Before anybody asks: what is above `lock` has been set, but for reload.maker. */
void reconfigure_open(struct reconfigure *r);
void reconfigure_close(struct reconfigure *r);

/* Do it.  By the main thread.  Returns when it is done, or refused, and logged. */
void reconfigure_run(struct reconfigure *r);

/* Follow up what was removed.  By the main thread; returns when to call again, as reload_drain(). */
uint64_t reconfigure_drain(struct reconfigure *r);

/*
 * Somebody wants it: the number that `finished` reaches when it is done.  By any thread, which then
 * has to send SIGHUP to the main one.
 */
uint64_t reconfigure_ask(struct reconfigure *r);

/* How the last one went. */
struct json_object *reconfigure_json(struct reconfigure *r);

#endif
