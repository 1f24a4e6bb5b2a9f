/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_COMPLETION_H
#define CULVERT_COMPLETION_H

#include <stdbool.h>

/* Print the completions for SHELL: bash, zsh or fish.  False: it is none of them. */
bool completion_put(const char *shell);

#endif
