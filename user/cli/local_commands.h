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
	const char *word;   /* for the usage: the word that is no option; NULL: there is none */
	const char *about;  /* text of the help; NULL: HELP prints the whole help */
	void (*help)(void); /* prints the help after ABOUT and the options; or NULL */
};

extern const struct local_command local_commands[]; /* the last one has no name */

void local_command_help(const struct local_command *c);
