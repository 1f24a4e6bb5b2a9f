/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RINETD_PATTERN6_H
#define CULVERT_RINETD_PATTERN6_H

#include <stdbool.h>

#include "config/rule_set.h"

/*
 * The IPv6 addresses whose text the pattern TEXT matches (no "**" in it, and none but characters of
 * patterns), for rinetd_pattern_parse().  *RET_UNCLEAR: that depends on how addresses are
 * abbreviated, and SET is left alone.  The zone of a link-local address ("%eth0") does not count,
 * and ::/96, whose text ends as that of an IPv4 address, is matched as other addresses are.
 */
int rinetd_pattern6(const char *text, struct rule_set *set, bool *ret_unclear);

#endif
