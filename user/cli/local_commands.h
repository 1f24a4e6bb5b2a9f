/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_requests.h"

/* A command that is not one request to a daemon; the others are in daemon/control_requests.h. */
struct local_command {
	const char *name;
	const char *summary;
	int (*run)(int argc, char **argv);
	/* its options, the last one without a name; NULL: those of option_table */
	const struct request_key_def *options;
	const char *word;   /* the name of a word that is no option; NULL: there is none */
	const char *about;  /* for the help; NULL: HELP prints all of it */
	void (*help)(void); /* prints more help behind ABOUT; NULL: there is no more */
};

extern const struct local_command local_commands[]; /* the last one has no name */

void local_command_help(const struct local_command *c);
