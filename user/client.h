/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_H
#define CULVERT_CLIENT_H

/*
 * The client side of the control socket: `culvert sessions` and `culvert status`.  Each takes its
 * own arguments (ARGV[0] is the subcommand), prints a table, or the daemon's JSON with --json, and
 * returns the exit code.
 */
int client_sessions(int argc, char **argv);
int client_status(int argc, char **argv);

void client_sessions_help(void);
void client_status_help(void);

#endif
