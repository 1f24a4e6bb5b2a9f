/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ADVICE_H
#define CULVERT_ADVICE_H

#include "stats.h"

/*
 * What an operator can do about an error, for the end of a log line: " (...)", or "" where the
 * error says all there is to say.  ERROR is an errno.
 */
const char *advice_listen(int error);
const char *advice_connect(int error);
const char *advice_threads(int error);
/* Why nobody is accepted for now. */
const char *advice_pause(enum cause cause);

#endif
