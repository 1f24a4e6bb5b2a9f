/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_OPTION_HELP_H
#define CULVERT_OPTION_HELP_H

/* The options of the table (option.h) as lines of the help. */

/* Those of the command line. */
void options_help(void);
/* Those of [forward NAME]. */
void options_help_forward(void);

#endif
