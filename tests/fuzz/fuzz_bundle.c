// SPDX-License-Identifier: BSD-2-Clause
/*
 * Bundles (user/base/bundle.c) from the daemon before this one, which has no privileges: all records,
 * and those that are sessions.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "relay/session_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bundle b = { .len = size, .n_fds = 4, .bytes = exact_copy(data, size) };
	struct record r;
	size_t bytes = 0, fds = 0;

	b.fds = calloc(b.n_fds, sizeof(*b.fds));
	while (bundle_get(&b, &r)) {
		struct session_record *s = session_record_read(NULL, &r);
		bool admitted;

		bytes += r.size + r.n_more;
		fds += r.n_fds;
		must(bytes <= size && fds <= b.n_fds, "%zu bytes, %zu descriptors", bytes, fds);
		if (s)
			session_record_client(s, &admitted);
		free(s);
	}
	free(b.bytes);
	free(b.fds);
	return 0;
}
