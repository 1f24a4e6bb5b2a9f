/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <sys/types.h>

/* Another process, or a thread of it, held right before a system call that it is about to make. */

/* The threads of PID, MOST at the most. */
size_t hold_threads(pid_t pid, pid_t *tids, size_t most);
/* A thread of PID that waits in call NR; 0: none does. */
pid_t hold_find(pid_t pid, long nr);
/* From here on it is held.  0 or -errno. */
int hold_begin(pid_t pid);
/*
 * Let PID, which is held, go on until it is about to make call NR, the next one if it is held
 * before that already.  0, -ETIMEDOUT after TIMEOUT_MS, or -errno.
 */
int hold_before(pid_t pid, long nr, int timeout_ms);
/* Let it go on, for good. */
void hold_end(pid_t pid);
