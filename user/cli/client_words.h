/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_WORDS_H
#define CULVERT_CLIENT_WORDS_H

#include <stdbool.h>

struct command;
struct json_object;

/* What a client of the control socket was told on its command line. */
struct client_words {
	const char *control; /* path of the socket */
	const char *config;  /* file that names it; NULL: none is given */
	char *named;         /* what that file says; owned */
	bool json, help;
	struct json_object *request; /* owned; NULL with HELP */
	const char *line;            /* the same as text, without a newline; part of REQUEST */
};

/*
 * Understand the words behind ARGV[0], which is C's name.  What is wrong is printed as one line on
 * stderr, and gives -EINVAL, or what open(2) says of --config; -ENOMEM.  RET may always be given to
 * client_words_close().
 */
int client_words_parse(const struct command *c, int argc, char **argv, struct client_words *ret);
void client_words_close(struct client_words *w);

void client_words_help(const struct command *c);

#endif
