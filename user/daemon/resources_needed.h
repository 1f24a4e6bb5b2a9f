/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "config/config.h"

/* Descriptors that a configuration needs when all its sessions run.  No system calls. */

struct needs {
	unsigned long sockets;     /* descriptors without which there are not so many sessions */
	unsigned long descriptors; /* ... and with which all may be spliced both ways */
};

struct needs needs_of(const struct config *c);

/* What is said of too few: the limit, max_sessions, sockets, descriptors. */
#define FEW_DESCRIPTORS "only %lu descriptors: %u sessions need %lu, and %lu to splice both ways: " \
	"raise RLIMIT_NOFILE or lower --max-sessions"
