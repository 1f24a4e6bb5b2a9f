/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_DAEMON_LOG_H
#define CULVERT_TEST_DAEMON_LOG_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon.h"

/* What a running daemon has said on stderr. */

/* Is TEXT there, or does it come within TIMEOUT_MS? */
bool daemon_log_has(struct daemon *d, const char *text, int timeout_ms);

/* PID of its privileged process, by what it has logged at the start; -1: it has none. */
pid_t daemon_privileged(struct daemon *d);

#endif
