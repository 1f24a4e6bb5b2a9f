/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_CONVERT_H
#define CULVERT_CONFIG_CONVERT_H

#include <stdio.h>

#include "config/config_text.h"

/* Write TEXT, which FILE says, to TO as a file with sections; notes become comments. */
void config_convert_write(FILE *to, const char *file, const struct config_text *text);

/* `culvert convert FILE`.  Returns the exit code. */
int config_convert(int argc, char **argv);
void config_convert_help(void);

#endif
