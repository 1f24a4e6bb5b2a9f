/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* Set by the Makefile's SAN. */

#ifndef BUILT_WITH_SANITIZER
#define BUILT_WITH_SANITIZER NULL /* else a string, the value of -fsanitize= */
#endif

#ifndef BUILT_WITH_TSAN
#define BUILT_WITH_TSAN 0
#endif
