/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PRIVILEGED_RULES_H
#define CULVERT_PRIVILEGED_RULES_H

#include <stddef.h>

#include "daemon/privileged.h"

/* What the privileged process may be asked for.  No system calls. */

/* Those that it keeps; one without forwards is none. */
struct privileged_known {
	struct config configs[2];
	const char *log; /* path of the session log; NULL: none, or none that can be opened anew */
};

/*
 * May the daemon have what the LEN bytes at Q ask for?  0; -EPERM: the configuration does not allow
 * it; -EBADMSG: culvert itself would never ask so.  Of the latter two RET_WHY tells what is wrong.
 * RET_C: the configuration that is meant, if any.
 */
int privileged_judge(const struct privileged_request *q, size_t len,
		     const struct privileged_known *k, const struct config **ret_c,
		     const char **ret_why);

#endif
