/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* The configuration of another forwarder, HAProxy or nginx, as a culvert.conf. */

/* True if TEXT is a file of HAProxy or nginx. */
bool convert_is(const char *text);

/*
 * Write TEXT, which is changed, to TO as a culvert.conf that has no mistake.  What has no equal
 * becomes a comment with FILE, its name, and the line.  0: all has an equal; 1: not all; -EINVAL,
 * after a complaint: it cannot be read, or no forward is left.
 */
int convert_text(FILE *to, const char *file, char *text);
