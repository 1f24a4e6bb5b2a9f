/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_MAIN_LOOP_H
#define CULVERT_MAIN_LOOP_H

#include <stdbool.h>

#include "base/loop.h"
#include "daemon/privileged_client.h"
#include "daemon/reload.h"
#include "daemon/watchdog.h"
#include "relay/session_log.h"
#include "relay/names.h"
#include "relay/socket_stock.h"

/* What the main thread does while the others work: signals, what is due, names to look up, sockets. */
struct main_loop {
	struct loop loop; /* main_loop_open() sets the first part */
	struct source signals;
	struct timer look;
	int sig;          /* that is to end culvert; 0: none has come */
	const struct main_loop_end *end; /* NULL: culvert does not end yet */
	uint64_t look_again_ms, one_until_ms; /* of main_loop_run_out() */

	struct watchdog *watchdog; /* the caller sets the others before main_loop_run() */
	struct reload *reload;
	struct privileged *privileged;   /* NULL: none */
	struct session_log *session_log; /* NULL: none */
	struct names *names;             /* NULL: none */
	struct stock_keeper *keeper;     /* of sockets that need privileges; NULL: none */
};

/*
 * Block the signals that main_loop_run() takes, so that they wait for it, and ignore those that
 * nobody does.  Before there are threads: all of them inherit that.
 */
void main_loop_take_signals(void);

/* Make the loop, which nothing runs yet.  -errno. */
int main_loop_open(struct main_loop *m);
void main_loop_close(struct main_loop *m);

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
