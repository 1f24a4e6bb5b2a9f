/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ADVICE_H
#define CULVERT_ADVICE_H

/*
 * What an operator can do about an error, for the end of a log line: " (...)", or "" where the
 * error says all there is to say.  ERROR is an errno.
 */
const char *advice_listen(int error);
const char *advice_connect(int error);
/* pthread_create(3), fork(2), what a worker needs beside its thread. */
const char *advice_thread(int error);
const char *advice_process(int error);
const char *advice_workers(int error);

#endif
