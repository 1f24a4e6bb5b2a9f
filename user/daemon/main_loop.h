/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_MAIN_LOOP_H
#define CULVERT_MAIN_LOOP_H

#include <stdbool.h>

#include "daemon/privileged_client.h"
#include "daemon/reconfigure.h"
#include "daemon/session_log.h"
#include "relay/watchdog.h"

/* What the main thread does while the others work: it waits for signals, and for what is due. */
struct main_loop {
	struct watchdog *watchdog;
	struct reconfigure *reconfigure;
	struct privileged *privileged;   /* NULL: none */
	struct session_log *session_log; /* NULL: none */
};

/*
 * Block the signals that main_loop_run() takes, so that they wait for it, and ignore those that
 * nobody does.  Before there are threads: all of them inherit that.
 */
void main_loop_take_signals(void);

/* Returns the signal that is to end culvert. */
int main_loop_run(struct main_loop *m);

/* The end, which takes its time. */
struct main_loop_end {
	bool (*is_over)(void *arg);
	void (*hurry)(void *arg, int sig); /* a further signal to end culvert */
	void *arg;
};

/* Until E is over. */
void main_loop_run_out(struct main_loop *m, const struct main_loop_end *e);

#endif
