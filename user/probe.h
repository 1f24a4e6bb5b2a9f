/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_H
#define CULVERT_PROBE_H

/*
 * `culvert probe`: tries, on loopback sockets of its own, each kernel behaviour that the sockmap
 * carrier relies on, with the real verdict program and the real hand-over code.  ARGV[0] is "probe".
 * Returns the exit code: 0 when all hold, 3 when one does not.
 */
int probe_run(int argc, char **argv);
void probe_help(void);

#endif
