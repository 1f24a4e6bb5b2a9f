/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/control_requests.h"

/*
 * The client side of the control socket, for the commands that are one request.  ARGV[0] is the
 * name of a command of control_requests.h; the other words are its own.  Prints text for people, or
 * the daemon's JSON with --json.  Returns the exit code.
 */
int client_run(int argc, char **argv);

/* The client's own options, which are no keys of a request. */
enum { OWN_JSON, OWN_CONTROL, OWN_CONFIG, OWN_HELP, OWNS };
extern const struct request_key_def client_options[OWNS];

/* A line of a help about one option. */
void client_print_option(const struct request_key_def *def);

/* --- for client_run() and its tests, and for top.c --- */

/* The words of a command line, parsed. */
struct client_words {
	const char *own[OWNS];       /* values of these options, "" of a flag; NULL: not given */
	const char *control;         /* path of the socket */
	char *named;                 /* path of the socket in the file of --config; owned */
	struct json_object *request; /* owned */
	const char *line;            /* the same as text, without a newline; NULL with --help */
};

/*
 * Parse the words after ARGV[0], which is C's name.  A mistake is printed as one line on stderr,
 * and gives -EINVAL, or -errno of open(2) for the file of --config.  RET may always be given to
 * client_words_close().
 */
int client_words_parse(const struct command *c, int argc, char **argv, struct client_words *ret);
void client_words_close(struct client_words *w);

/*
 * Send the request LINE, of less than CONTROL_REQUEST_MAX - 1 bytes, to the daemon at CONTROL.
 * Returns 0, or the exit code after a complaint: no answer has come within some seconds, or the
 * answer is an error.  RET: the answer, an object; the caller releases it in any case.
 */
int client_ask(const char *control, const char *line, struct json_object **ret);
