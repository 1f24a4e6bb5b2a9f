/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_UPSTREAM_H
#define CULVERT_CONFIG_UPSTREAM_H

#include "config/config_text.h"

/*
 * Can connections to the upstream of FC have what is asked for: source, interface, mark,
 * transparent?  T is what it was made from.  If not, prints one line and returns -EINVAL.  What a
 * unix socket inherits of them is not for it, and is taken off.
 */
int config_check_upstream(const struct config *c, struct forward_conf *fc,
			  const struct forward_text *t);

#endif
