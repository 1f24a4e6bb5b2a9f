/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ADVICE_H
#define CULVERT_ADVICE_H

enum advice_about {
	ADVICE_LISTEN = 1,
	ADVICE_CONNECT = 2,
	ADVICE_RESOURCES = 4, /* a thread, a process, what a worker needs beside its thread */
	ADVICE_LOG_FILE = 8,
};

/*
 * What an operator can do about ERROR, an errno of what is named, for the end of a log line: " (...)",
 * or "" where the error says all there is to say.
 */
const char *advice(enum advice_about about, int error);

#endif
