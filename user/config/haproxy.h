/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

struct foreign;

/* True if TEXT begins with a section of HAProxy. */
bool haproxy_is(const char *text);
/* Make lines in F of TEXT, which is changed.  NULL, or what prevents that. */
const char *haproxy_convert(struct foreign *f, char *text);
