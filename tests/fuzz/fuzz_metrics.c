// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests for metrics (user/daemon/metrics.c).  A second parser agrees which ask for them.
 *
 * An input is the head of a request, without the empty line.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/metrics.h"
#include "fuzz.h"

/* The path from AT on is all of PATH. */
static bool is(const char *at, const char *path)
{
	size_t len = strlen(path);

	return !strncmp(at, path, len) && strchr(" ?\r", at[len]); /* also the end */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size), *at = strchr(text, ' ');
	bool known = at && (at == text + 3 || at == text + 4) &&
		     (!strncmp(text, "GET ", 4) || !strncmp(text, "HEAD ", 5));
	enum metrics_asked wanted = !known                    ? ASKED_NOTHING :
				    is(at + 1, "/metrics")    ? ASKED_METRICS :
				    is(at + 1, "/state.json") ? ASKED_STATE :
				    is(at + 1, "/")           ? ASKED_PAGE :
								ASKED_NOTHING;

	must(metrics_asked(text) == wanted ||
		     (wanted >= ASKED_STATE && strcasestr(text, "\r\nHost:") &&
		      metrics_asked(text) == ASKED_BY_NAME),
	     "asked: %d", wanted);
	free(text);
	return 0;
}
