/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

/* True of UTF-8 as RFC 3629 has it, and so of ASCII: what JSON may hold. */
bool text_is_utf8(const char *text);
