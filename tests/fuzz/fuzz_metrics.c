// SPDX-License-Identifier: BSD-2-Clause
/*
 * Requests for metrics (user/daemon/metrics.c).  A second parser agrees which ask for them.
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
	bool wanted = !strncmp(text, "GET ", 4) && strcspn(text + 4, " ?\r") == 8 &&
		      !strncmp(text + 4, "/metrics", 8);

	must(metrics_asked(text) == wanted, "asked: %d", !wanted);
	free(text);
	return 0;
}
