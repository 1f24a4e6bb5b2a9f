/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CHECK_H
#define CULVERT_CHECK_H

/*
 * `culvert check FILE`: what config_parse() says of it, and its host names.  Returns the exit code.
 */
int config_check(int argc, char **argv);
void config_check_help(void);

#endif
