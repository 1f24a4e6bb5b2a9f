// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests for metrics (user/daemon/metrics.c).  Any of them gets a status; what it asks for is what
 * a parser finds that goes line by line.
 *
 * An input is the head of a request, without the empty line.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/metrics.h"
#include "fuzz.h"

/* Does the first Accept name OpenMetrics? */
static bool wants_open(char *lines)
{
	char *line;

	while ((line = strstr(lines, "\r\n"))) {
		lines = line + 2;
		if (strncasecmp(lines, "accept:", 7) != 0)
			continue;
		lines[strcspn(lines, "\r")] = '\0';
		return strstr(lines, "application/openmetrics-text");
	}
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size);
	struct metrics_request asked;
	const char *status = metrics_parse(text, &asked);
	bool good = !strcmp(status, "200 OK");

	must(strlen(status) > 4 && strchr("24", *status), "status %s", status);
	must(good || !asked.page, "%s with a page", status);
	must(!asked.head || !strncmp(text, "HEAD", 4), "only the head");
	if (good) {
		size_t at = asked.head ? 4 : 3;

		must(asked.head || !strncmp(text, "GET", 3), "a method");
		at += strspn(text + at, " \t\n\v\f\r");
		must(!strncmp(text + at, asked.page ? "/metrics" : "/", asked.page ? 8 : 1), "a path");
		must(asked.open_metrics == wants_open(text), "a type");
	}
	free(text);
	return 0;
}
