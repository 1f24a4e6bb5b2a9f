/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* Which sanitizers this was compiled with: gcc defines macros, clang has features. */

#if defined(__has_feature)
#define BUILT_WITH(feature) __has_feature(feature)
#else
#define BUILT_WITH(feature) 0
#endif

#if defined(__SANITIZE_THREAD__) || BUILT_WITH(thread_sanitizer)
#define BUILT_WITH_TSAN 1
#else
#define BUILT_WITH_TSAN 0
#endif

/* What stands behind -fsanitize=, or NULL. */
#if defined(__SANITIZE_ADDRESS__) || BUILT_WITH(address_sanitizer)
#define BUILT_WITH_SANITIZER "address"
#elif BUILT_WITH_TSAN
#define BUILT_WITH_SANITIZER "thread"
#elif BUILT_WITH(memory_sanitizer)
#define BUILT_WITH_SANITIZER "memory"
#else
#define BUILT_WITH_SANITIZER NULL
#endif
