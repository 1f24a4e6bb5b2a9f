/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* What the Makefile's SAN says. */

#ifndef BUILT_WITH_SANITIZER
#define BUILT_WITH_SANITIZER NULL /* else a string: what stands behind -fsanitize= */
#endif

#ifndef BUILT_WITH_TSAN
#define BUILT_WITH_TSAN 0
#endif
