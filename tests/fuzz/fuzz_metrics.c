// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests for metrics (user/daemon/metrics.c).  No end of one is read beyond.
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

	if (metrics_asked(text))
		must(!strncmp(text, "GET /metrics", 12), "a path");
	free(text);
	return 0;
}
