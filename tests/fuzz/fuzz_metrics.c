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
	bool page, head;
	const char *status = metrics_parse(text, &page, &head);
	bool good = !strcmp(status, "200 OK");

	must(strlen(status) > 4 && strchr("24", *status), "status %s", status);
	must(good || !page, "%s with a page", status);
	must(!head || !strncmp(text, "HEAD", 4), "only the head");
	if (good) {
		size_t at = head ? 4 : 3;

		must(head || !strncmp(text, "GET", 3), "a method");
		at += strspn(text + at, " \t\n\v\f\r");
		must(!strncmp(text + at, page ? "/metrics" : "/", page ? 8 : 1), "a path");
	}
	free(text);
	return 0;
}
