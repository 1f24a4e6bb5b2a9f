/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdio.h>

#include "config/config.h"

/*
 * The commands that read a configuration file and start nothing: `culvert check FILE...` prints
 * mistakes, also those between the files of a fleet; `culvert convert FILE` prints it as a file with
 * sections.  They return the exit code.
 */
int check_run(int argc, char **argv);
int convert_run(int argc, char **argv);

/* Write C, which was read from FILE, to TO as a file with sections. */
void convert_write(FILE *to, const char *file, const struct config *c);

/* Descriptors that a configuration needs when all its sessions run.  No system calls. */

#define SOCKETS_EACH 2UL /* of a session */

struct needs {
	unsigned long sockets;     /* descriptors for max-sessions sessions */
	unsigned long descriptors; /* the same, if all are spliced both ways */
};

struct needs check_needs(const struct config *c);
