/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_H
#define CULVERT_CLIENT_H

/*
 * The client side of the control socket.  ARGV[0] is the name of a command of command.h; the other
 * words are its own.  Prints text for people, or the daemon's JSON with --json.  Returns the exit
 * code.
 */
int client_run(int argc, char **argv);

#endif
