/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ARRAY_H
#define CULVERT_ARRAY_H

#include <stddef.h>
#include <stdlib.h>

/*
 * Room for one more than the N elements of SIZE bytes at P (NULL for 0), all of which came in this
 * way: it grows by doubling.  NULL: no memory, and P is as it was.
 */
static inline void *array_grow(void *p, size_t n, size_t size)
{
	return n & (n - 1) ? p : realloc(p, (n ? 2 * n : 1) * size);
}

#endif
