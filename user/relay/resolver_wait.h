/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RESOLVER_WAIT_H
#define CULVERT_RESOLVER_WAIT_H

#include <stddef.h>

#include "relay/names_question.h"

/*
 * Look-ups by whoever has nothing else to do meanwhile: the daemon before it has threads, and
 * `culvert check`.
 *
 * Ask the resolver at FD the N questions, all at the same time, and wait for the answers,
 * PATIENCE_MS at most.  All are done then: those without an answer have failed with -EAGAIN, and
 * RESOLVER_SILENT; or with -EINTR, if a signal is pending that ends culvert.  Nobody else may read
 * from FD.
 */
#define RESOLVER_SILENT "no name server, or whatever else is asked, has answered in time"
void resolver_wait(int fd, struct question *questions, size_t n, unsigned int patience_ms);

#endif
