/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BUILT_WITH_H
#define CULVERT_BUILT_WITH_H

/* Which sanitizers this was compiled with: gcc defines macros, clang has features. */

#if defined(__has_feature)
#define BUILT_WITH(feature) __has_feature(feature)
#else
#define BUILT_WITH(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || BUILT_WITH(address_sanitizer)
#define BUILT_WITH_ASAN 1
#else
#define BUILT_WITH_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__) || BUILT_WITH(thread_sanitizer)
#define BUILT_WITH_TSAN 1
#else
#define BUILT_WITH_TSAN 0
#endif

#if BUILT_WITH(memory_sanitizer)
#define BUILT_WITH_MSAN 1
#else
#define BUILT_WITH_MSAN 0
#endif

#endif
