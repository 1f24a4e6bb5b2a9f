/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_CHECK_H
#define CULVERT_CONFIG_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

struct forward_text;

/*
 * What must hold between values that are right one by one.  No system calls: of the addresses of
 * this machine only those of loopback are known, and symbolic links are not followed.
 *
 * A function that returns an int prints one line about a mistake, with its place, and returns
 * -EINVAL.
 */

/* Check forward number N of C, made from T, by itself and beside those before it. */
int check_forward(struct config *c, size_t n, const struct forward_text *t);

/*
 * Describe what forbids the addresses of forward number N: an earlier forward takes the same
 * connections, or its upstream is its own listener.  Returns NULL if nothing does, else BUF, of
 * CHECK_WHY_LEN bytes; *RET_LISTEN: the listener is wrong, else the upstream.
 */
#define CHECK_WHY_LEN (sizeof(((struct endpoint *)0)->text) + 128)
const char *check_addresses(const struct config *c, size_t n, bool *ret_listen, char *buf);

/* Check all forwards of C in this way, once host names have addresses.  -EINVAL; ERR says why. */
int check_all_addresses(const struct config *c, char *err, size_t errlen);

/* True if the upstream of FC is its own listener. */
bool check_feeds_itself(const struct forward_conf *fc);

/* Complain about the listener of T, or its upstream.  Returns ERROR. */
int forward_say_wrong(int error, const struct forward_text *t, bool listen, const char *why);

#endif
