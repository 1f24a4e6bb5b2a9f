/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/addr.h"

/* What a user wrote, and the addresses it stands for (several for a host name). */
struct endpoint {
	char text[ADDR_STRLEN + 128]; /* as written, for messages and `culvert status`; of several
				       * addresses to listen at with blanks between */
	struct addr *addrs;           /* owned; freed by endpoint_close() */
	size_t n_addrs;       /* 0 only of a host name that was not looked up; no address twice */
	in_port_t named_port; /* as written; the first of a range */
	unsigned int n_ports; /* of the range, else 1; 0: not all addresses have the same */
	bool named;           /* the host is a name: it may have other addresses later */
	bool udp;
};

/*
 * Parse TEXT: "1.2.3.4:80", "[::1]:80", "[fe80::1%eth0]:80", "host:80", "host:http", "unix:/path"
 * ("unix:@name" is an abstract socket).  PASSIVE: the addresses are for bind(); then an empty host
 * (":80", "*:80") means every local address (one of each family, so the IPv6 socket needs
 * IPV6_V6ONLY), and port 0 is allowed.
 *
 * A range of ports, "host:8000-8099", gives an address for each if PASSIVE; else for the first.
 * "/udp" or "/tcp" may follow the port; without it UDP says what is meant.
 *
 * Nobody is asked for a host: a host name gives no address, only its port.  NULL; or what is wrong,
 * and RET needs no endpoint_close().
 */
const char *endpoint_parse(const char *text, bool passive, bool udp, struct endpoint *ret);

/*
 * Add the addresses of TEXT, to listen at, to E, which may be zeroed.  All have one protocol.  A
 * host name can only be alone there, since its addresses come later.  NULL, or what is wrong.
 */
const char *endpoint_add_listen(const char *text, struct endpoint *e);

/*
 * Give E, a host name without addresses, all that it has now, by getaddrinfo(3), which may block.
 * -ENOENT: it is not found; -EAGAIN: no name server has answered, or there is no memory, and it may
 * be found later.  Then ERR (ERRLEN bytes) holds one line that says so, without the name.
 */
int endpoint_look_up(struct endpoint *e, bool passive, char *err, size_t errlen);

/*
 * Read services(5) now, for the names of ports: a daemon that is confined can open no file any
 * more.  Without this call it is read when the first name is looked up.
 */
void endpoint_keep_services(void);

/* Give E the addresses of FROM as well. */
void endpoint_copy_addrs(struct endpoint *e, const struct endpoint *from);

/* Release what endpoint_parse() allocated.  A zeroed object is fine. */
void endpoint_close(struct endpoint *e);

/* A unix socket, which is the only address then; a host name never is one. */
bool endpoint_is_unix(const struct endpoint *e);

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
 * Parse TEXT, which must live as long as RET: addresses as of endpoint_parse(), separated
 * by blanks or commas; behind each may stand "weight=N" and "backup".  No server is given twice.
 * UDP: the protocol of the listener, which all servers have, whether they say so or not.
 * Unix sockets and others do not mix, since a session is prepared for one kind before its server is
 * chosen; nor do ranges of ports of different lengths.
 *
 * Returns 0, or -EINVAL; then ERR (ERRLEN bytes) holds one line that says what is wrong, and RET
 * needs no upstreams_close().
 */
int upstreams_parse(const char *text, bool udp, struct upstream *ret, char *err, size_t errlen);

/* Release what upstreams_parse() allocated.  A zeroed object is fine. */
void upstreams_close(struct upstream *u);

/* True if all servers are unix sockets. */
bool upstreams_are_unix(const struct upstream *u);
