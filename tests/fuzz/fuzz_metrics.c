// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests for metrics (user/daemon/metrics.c).  Any of them gets a status.
 *
 * An input is the head of a request, without the empty line.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/metrics.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size);
	const char *status = metrics_parse(text);

	must(strlen(status) > 4 && strchr("24", *status), "status %s", status);
	if (!strcmp(status, METRICS_PAGE)) {
		must(!strncmp(text, "GET", 3), "a method");
		must(!strncmp(text + 3 + strspn(text + 3, " \t\n\v\f\r"), "/metrics", 8), "a path");
	}
	free(text);
	return 0;
}
