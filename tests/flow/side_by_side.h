/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>

#define SIDE_BY_SIDE_MAX 16

/*
 * Run PART(0) ... PART(n - 1), each in a process of its own, beside the others: for tests that wait
 * more than they compute.  A part returns an exit code, and begins with env_enter(): none shares a
 * network or a directory with another.  What a part has to say comes in one piece, in their order.
 *
 * Where env_slow() says that everything takes longer, they run one after the other.
 *
 * Returns the last code that is a failure; else EXIT_SKIP if a part was skipped, or 0.
 */
int side_by_side(size_t n, int (*part)(size_t i));
