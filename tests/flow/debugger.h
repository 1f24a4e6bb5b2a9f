/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_DEBUGGER_H
#define CULVERT_TEST_DEBUGGER_H

#include <stdbool.h>
#include <sys/types.h>

/* A process attached to another one by ptrace(2), as strace: it sees system calls, or what they read. */
struct debugger {
	pid_t pid;
	int seen; /* a byte comes out of here each time */
};

/*
 * Attach to all threads of PID, and look for TEXT in what each recv(2) and read(2) of them brings.
 * TEXT NULL: count their system calls, but those that wait for events.  -errno.
 */
int debugger_start(pid_t pid, const char *text, struct debugger *ret);

/*
 * Has it been seen since the last time somebody asked?  A thread waits at each call until it has
 * been looked at, so what it has passed on was looked at before.
 */
bool debugger_has_seen(struct debugger *d);

/* How many calls have begun since the last time somebody asked. */
unsigned int debugger_calls(struct debugger *d);

/* Detach; the threads run on. */
void debugger_stop(struct debugger *d);

#endif
