/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "base/log.h"

/*
 * Return P, the value of malloc(3) or the like.  End the program if P is NULL.  This is for texts
 * and settings; a session must not end the daemon for lack of memory.
 */
__attribute__((returns_nonnull)) static inline void *allocated(void *p)
{
	if (!p) {
		log_keep_complaint(NULL, 0); /* print it, even if this thread keeps complaints */
		_exit(log_complain(EXIT_CODE_FAILURE, "out of memory"));
	}
	return p;
}

/*
 * Make room for one more element in the array P of N elements of SIZE bytes (P is NULL if N is 0).
 * Each element must have been added in this way, because the room doubles at each power of two.
 * Without memory the program ends.
 */
__attribute__((returns_nonnull)) static inline void *array_grow(void *p, size_t n, size_t size)
{
	return n & (n - 1) ? p : allocated(realloc(p, (n ? 2 * n : 1) * size));
}
