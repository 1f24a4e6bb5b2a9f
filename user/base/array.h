/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "base/log.h"

/*
 * P, which malloc(3) or its kin has returned.  End the program if that is NULL.  This is for texts
 * and settings; what a session needs must do without memory.
 */
__attribute__((returns_nonnull)) static inline void *allocated(void *p)
{
	if (!p) {
		log_keep_complaint(NULL, 0); /* print it, whoever keeps complaints now */
		_exit(log_complain(EXIT_CODE_FAILURE, "out of memory"));
	}
	return p;
}

/*
 * Make room for one more than the N elements of SIZE bytes at P (NULL for 0), all of which came in
 * this way: the room doubles when it is used up.  Like allocated() if there is no memory.
 */
__attribute__((returns_nonnull)) static inline void *array_grow(void *p, size_t n, size_t size)
{
	return n & (n - 1) ? p : allocated(realloc(p, (n ? 2 * n : 1) * size));
}
