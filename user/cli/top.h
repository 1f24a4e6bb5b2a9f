/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TOP_H
#define CULVERT_TOP_H

/* `culvert top`: a live view of a daemon, on a terminal.  Returns the exit code. */
int top_run(int argc, char **argv);

#endif
