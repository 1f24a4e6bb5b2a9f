/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdio.h>

/*
 * Write to TO, a line for each place, the hooks of netfilter that see no packet of a grafted
 * session.  Nothing is written if there are none.  If they cannot be listed, a line says why: that
 * needs CAP_NET_ADMIN, and Linux 5.14 with CONFIG_NETFILTER_NETLINK_HOOK.  Returns whether there are
 * hooks that `set-up = auto` heeds on all interfaces, or -errno.
 */
int check_hooks_write(FILE *to);
