/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

/*
 * Orders of `culvert upstream` that change which servers a forward has.  The servers follow from the
 * file and the orders, so an order stays when the file is read again.
 */
struct upstream_order {
	char *forward; /* all three are owned */
	char *server;  /* as written */
	char *words;   /* behind it, as in `upstream`; NULL: the server is removed */
};

struct upstream_orders {
	struct upstream_order *list; /* owned */
	size_t n;
};

/* True: there is an order about SERVER of FORWARD. */
bool orders_have(const struct upstream_orders *os, const char *forward, const char *server);
/* The fault of SERVER and WORDS, which are to be added; or NULL. */
const char *orders_fault(const char *server, const char *words);
/* Give an order, in place of one about the same server.  WORDS: NULL: the server is removed. */
void orders_give(struct upstream_orders *os, const char *forward, const char *server,
		 const char *words);
/* Take the order about SERVER of FORWARD back, if there is one. */
void orders_take_back(struct upstream_orders *os, const char *forward, const char *server);
void orders_copy(struct upstream_orders *os, const struct upstream_orders *from);
void orders_close(struct upstream_orders *os);

/*
 * Change C, which config_read() has made, by OS.  If the orders of a forward do not fit any more, OS
 * loses them, after a complaint; then -EINVAL.
 */
int orders_apply(struct upstream_orders *os, struct config *c);
