/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

enum hint_about {
	HINT_LISTEN = 1,
	HINT_CONNECT = 2,
	HINT_RESOURCES = 4, /* a thread, a process, what a worker needs beside its thread */
	HINT_LOG_FILE = 8,
};

/*
 * What an operator can do about ERROR, an errno of what is named, for the end of a log line: " (...)",
 * or "" where the error says all there is to say.
 */
const char *error_hint(enum hint_about about, int error);
