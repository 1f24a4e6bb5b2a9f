/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* `culvert top`: a live view of a daemon, on a terminal.  Returns the exit code. */
int top_run(int argc, char **argv);
