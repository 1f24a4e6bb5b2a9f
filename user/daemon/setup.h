/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SETUP_H
#define CULVERT_SETUP_H

#include "config/config.h"
#include "daemon/control.h"
#include "daemon/privileged.h"
#include "base/sandbox.h"
#include "probe/probe.h"
#include "relay/forward.h"
#include "relay/listener.h"
#include "relay/worker.h"

/* What culvert takes root for, and has got hold of when that is given up; before it has threads. */
struct setup {
	struct config config; /* the first seven are the caller's */
	int argc;             /* what it was started with */
	char **argv;
	int pid_file;         /* -1: none */
	struct loop *loop;    /* of the main thread */
	void (*name_news)(void *arg); /* see names_open() */
	void *name_news_arg;
	struct account account;
	struct privileged *privileged; /* NULL: none */
	struct probe_start probe;
	char kernel_reason[PROBE_WHY_LEN]; /* why the kernel side is not in use; "" if it is */
	struct listening *listening; /* list */
	/* what threads will work with: closed by who ends those, before setup_close() */
	struct shared shared; /* names, session log */
	struct forwards forwards;
	struct control *control;
};

/* All of it, and to give up root.  Returns the exit code, after a message if that is not 0. */
int setup_open(struct setup *s);
/* Also what is open after a mistake, or if setup_open() was not called. */
void setup_close(struct setup *s);

/*
 * Open /dev/null as 0, 1 and 2 where they are missing: they would become a socket or a map, and the
 * log would write into it.  -errno, after a message.
 */
int setup_reserve_streams(void);

#endif
