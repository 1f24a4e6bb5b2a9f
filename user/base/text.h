/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

/* True if TEXT is UTF-8 (RFC 3629), as JSON needs.  ASCII is UTF-8. */
bool text_is_utf8(const char *text);
