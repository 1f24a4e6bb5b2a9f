// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration of rinetd and oi (user/config/rinetd.c, acl.c): any bytes.  What is taken is
 * within bounds, and the same when `culvert convert` has written it.  tests/flow/replace_rinetd.py
 * compares who may connect with rinetd itself.
 */
#include "config_model.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;
	int r = model_parse(data, size, &c);

	if (r) {
		model_must_be_mistake(r, data, size);
	} else if (c.is_rinetd) {
		model_must_be_sane(&c);
		model_must_convert(&c);
	}
	config_close(&c);
	return 0;
}
