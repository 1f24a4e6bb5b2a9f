/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* Print the rows of scripts/completions. */
void completion_rows(void);
