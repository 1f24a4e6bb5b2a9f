/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RINETD_PATTERN_H
#define CULVERT_RINETD_PATTERN_H

#include <stdbool.h>

#include "config/rule_set.h"

/*
 * What follows `allow` and `deny` in a rinetd.conf.  rinetd writes a client's address as text and
 * compares it with the pattern: "?" is any one character, "*" any number of them.  Here a pattern
 * becomes the addresses whose text it matches, exactly, so that the daemon compares bits.
 */

struct rinetd_pattern {
	struct rule_set inet;   /* IPv4 clients as their text is "192.0.2.7" */
	struct rule_set mapped; /* the same as "::ffff:192.0.2.7": of a listener at "::" */
	struct rule_set inet6;
	bool inet6_unclear;     /* whom else it matches depends on how an address is abbreviated;
				 * INET6 is empty */
};

/*
 * TEXT as rinetd has it, or an address with prefix or mask, which rinetd has not.  -EINVAL: a
 * character that no pattern has; -ENOENT: no client's address looks like this; -E2BIG: it would
 * take too many rules; -ENOMEM.  RET may always be given to rinetd_pattern_close().
 */
int rinetd_pattern_parse(const char *text, struct rinetd_pattern *ret);
void rinetd_pattern_close(struct rinetd_pattern *p);

#endif
