/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_DAEMON_H
#define CULVERT_DAEMON_H

/* `culvert run`: ARGV[0] is "run".  Returns the exit code. */
int daemon_run(int argc, char **argv);

#endif
