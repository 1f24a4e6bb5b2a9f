/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_NEEDS_H
#define CULVERT_NEEDS_H

#include <stdint.h>

#include "config/config.h"

/* What a configuration needs of the machine when all its sessions run.  No system calls here. */

struct needs {
	unsigned long sockets;     /* descriptors without which there are not so many sessions */
	unsigned long descriptors; /* ... and with which all may be spliced both ways */
	uint64_t memory;           /* bytes of the sessions, the least they take: idle, in user and
				    * kernel space */
};

struct needs needs_of(const struct config *c);

/* Say in BUF that LIMIT descriptors are too few for C.  Return BUF. */
#define NEEDS_TEXT_LEN 256
const char *needs_say_descriptors(const struct config *c, unsigned long limit, char *buf);

/* Sessions that FC may have at once. */
unsigned int needs_sessions(const struct config *c, const struct forward_conf *fc);

#endif
