/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_NO_MEMORY_H
#define CULVERT_TESTS_NO_MEMORY_H

/*
 * malloc() and its kin, which fail when a test wants it, whoever calls: the libraries as well.  To
 * be included once in a program; include after cmocka.h.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

static _Atomic bool no_memory_on, no_memory_all;
static _Atomic long no_memory_left; /* calls that succeed first */

/* From here on call number N, from 0, fails; with ALL also those after it. */
static inline void no_memory_begin(long n, bool all)
{
	no_memory_left = n;
	no_memory_all = all;
	no_memory_on = true;
}

/* True: one has failed. */
static inline bool no_memory_end(void)
{
	no_memory_on = false;
	return no_memory_left < 0;
}

/* Called before a sanitizer is ready for what it adds. */
#define NO_MEMORY_EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

NO_MEMORY_EARLY
static bool no_memory_strikes(void)
{
	long n;

	if (!atomic_load_explicit(&no_memory_on, memory_order_relaxed))
		return false;
	n = atomic_fetch_sub(&no_memory_left, 1);
	if (n > 0 || (n < 0 && !no_memory_all))
		return false;
	errno = ENOMEM;
	return true;
}

/* The next one of that name: that of the C library, or of a sanitizer. */
#define NO_MEMORY_REAL(name)                                                                       \
	static __typeof__(&(name)) real;                                                           \
	if (!real)                                                                                 \
		real = (__typeof__(&(name)))dlsym(RTLD_NEXT, #name);

NO_MEMORY_EARLY
void *malloc(size_t size)
{
	NO_MEMORY_REAL(malloc)

	return no_memory_strikes() ? NULL : real(size);
}

NO_MEMORY_EARLY
void *calloc(size_t n, size_t size)
{
	NO_MEMORY_REAL(calloc)

	return no_memory_strikes() ? NULL : real(n, size);
}

NO_MEMORY_EARLY
void *realloc(void *block, size_t size)
{
	NO_MEMORY_REAL(realloc)

	return no_memory_strikes() ? NULL : real(block, size);
}

#endif
