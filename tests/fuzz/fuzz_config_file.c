// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration file (user/config/file.c, read.c, option.c): any bytes.  Each mistake is said in
 * a line that names the file and a line of it.  What is taken is within bounds, has a forward for
 * each header, and is the same when `culvert convert` (user/daemon/check.c) has written it.
 */
#include <string.h>

#include "config_model.h"
#include "fuzz.h"

/* Count the lines that begin a section: behind a byte order mark and blanks. */
static size_t count_headers(const uint8_t *data, size_t size, size_t *ret_global)
{
	size_t n = 0, at = size >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0;

	*ret_global = 0;
	while (at < size) {
		const uint8_t *line = data + at, *end = memchr(line, '\n', size - at);
		size_t len = end ? (size_t)(end - line) : size - at;

		at += len + 1;
		for (; len && memchr(" \t", *line, 2); len--)
			line++;
		n += len && *line == '[';
		*ret_global += len >= 9 && !memcmp(line, "[culvert]", 9);
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;
	int r = model_parse(data, size, &c);

	if (r) {
		model_must_be_mistake(r, data, size);
	} else if (!c.is_rinetd) {
		size_t global, n = count_headers(data, size, &global);

		must(!said()[0], "taken, but: %s", said());
		must(n == c.n_forwards + global, "%zu headers, %zu forwards", n, c.n_forwards);
		model_must_be_sane(&c);
		model_must_convert(&c);
	}
	config_close(&c);
	return 0;
}
