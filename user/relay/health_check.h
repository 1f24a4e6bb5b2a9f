/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/loop.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * Checks of servers, for forwards that ask for them (`check`): a TCP connection that is reset as
 * soon as the server has accepted it, or questions and answers (check_talk.h).  Everything happens
 * on the main thread, so no worker waits for a check.
 */
struct checks;

/* LOOP is the main thread's. */
struct checks *checks_open(struct loop *loop, struct forwards *forwards, struct shared *shared);

/* The forwards have changed.  By any thread. */
void checks_wake(struct checks *c);

/* To be called after each batch of the loop: begin the checks that are due, and end late ones. */
void checks_after_batch(struct checks *c);
