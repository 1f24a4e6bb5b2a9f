/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

/* strace(1), attached to another process: it sees system calls, or what they read. */
struct debugger {
	pid_t pid;
	const char *text;
	FILE *out;
};

/*
 * Attach to all threads of PID, and look for TEXT in what each recv(2) and read(2) of them brings.
 * TEXT NULL: count their system calls, but those that wait for events.  -errno.
 */
int debugger_start(pid_t pid, const char *text, struct debugger *ret);

/*
 * Calls that have ended since the last time somebody asked: those that have read TEXT, or all.  A
 * thread waits at each call until it has been looked at, so what it has passed on was looked at
 * before.
 */
unsigned int debugger_calls(struct debugger *d);

/* Detach; the threads run on. */
void debugger_stop(struct debugger *d);
