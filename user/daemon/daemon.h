/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* `culvert run`: ARGV[0] is "run".  Returns the exit code. */
int daemon_run(int argc, char **argv);
