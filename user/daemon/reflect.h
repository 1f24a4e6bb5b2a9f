/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * `culvert reflect`: imports from all relays of a fleet, and exports to all.  Forwards nothing, and needs
 * no privilege.  Returns the exit code, after a signal.
 */
int reflect_run(int argc, char **argv);
