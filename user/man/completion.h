/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_COMPLETION_H
#define CULVERT_COMPLETION_H

/* Print the rows of scripts/completions. */
void completion_rows(void);

#endif
