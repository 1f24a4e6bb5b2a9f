/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config/endpoint.h"

/* A server that a forward leads to. */
struct server_conf {
	struct endpoint at;
	unsigned int weight; /* its share of the sessions, relative to those of the others */
	bool backup;         /* used only while no other server can be */
};

#define SERVERS_MAX 64 /* of a forward, as written */
#define SERVER_WEIGHT_MAX 100

/* What a user wrote as an upstream: one server, or several. */
struct upstream {
	const char *text;            /* as written; not owned */
	struct server_conf *servers; /* owned; freed by upstreams_close() */
	size_t n;                    /* at least 1 after upstreams_parse() */
};

/*
 * Parse TEXT, which must live as long as RET: addresses as of endpoint_parse_offline(), separated
 * by blanks or commas; behind each may stand "weight=N" and "backup".  No server is given
 * twice.  Unix sockets and others do not mix, since a session is prepared for one kind before its
 * server is chosen; nor do ranges of ports of different lengths.
 *
 * Returns 0, or -EINVAL; then ERR (ERRLEN bytes) holds one line that says what is wrong, and RET
 * needs no upstreams_close().
 */
int upstreams_parse(const char *text, struct upstream *ret, char *err, size_t errlen);

/* Release what upstreams_parse() allocated.  A zeroed object is fine. */
void upstreams_close(struct upstream *u);

/* True if all servers are unix sockets. */
bool upstreams_are_unix(const struct upstream *u);
