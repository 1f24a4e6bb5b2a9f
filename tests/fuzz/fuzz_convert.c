// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration of HAProxy and nginx (user/config/haproxy.c, nginx.c): any bytes.  What is
 * written is without a mistake for the reader of culvert.conf.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/convert.h"
#include "config_model.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size), *written = NULL;
	size_t len = 0;
	struct config c;
	FILE *to;
	int r;

	if (!text)
		abort();
	if (convert_is(text)) {
		to = open_memstream(&written, &len);
		if (!to)
			abort();
		said_clear();
		r = convert_text(to, "f", text);
		fclose(to);
		must(r < 0 || !*said(), "a message: %s", said());
		if (r >= 0) {
			r = model_parse((const uint8_t *)written, len, &c);
			must(!r && c.n_forwards, "%s\n%s", said(), written);
			config_close(&c);
		}
		free(written);
	}
	free(text);
	return 0;
}
