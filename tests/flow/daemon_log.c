// SPDX-License-Identifier: BSD-2-Clause
#include "daemon_log.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"

bool daemon_log_has(struct daemon *d, const char *text, int timeout_ms)
{
	int64_t deadline = now_ms() + timeout_ms;

	for (;;) {
		char *log = daemon_stderr(d);
		bool there = log && strstr(log, text);

		free(log);
		if (there || now_ms() >= deadline)
			return there;
		poll(NULL, 0, 5);
	}
}

pid_t daemon_privileged(struct daemon *d)
{
	static const char said[] = "the privileged process is ";
	char *log = daemon_stderr(d), *at = log ? strstr(log, said) : NULL;
	pid_t pid = at ? (pid_t)strtol(at + strlen(said), NULL, 10) : -1;

	free(log);
	return pid;
}
