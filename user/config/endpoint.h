/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/addr.h"

/* An endpoint as written, and its addresses (several for a host name). */
struct endpoint {
	char text[ADDR_STRLEN + 128]; /* as written, for messages and `culvert status`; with
				       * blanks between several addresses */
	struct addr *addrs;           /* owned; freed by endpoint_close() */
	size_t n_addrs;       /* 0: a host name before its look-up; no address is there twice */
	in_port_t named_port; /* as written; the first of a range */
	unsigned int n_ports; /* of the range, else 1; 0: addresses with different ports */
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
 * "/udp" or "/tcp" may follow the port; without it the argument UDP decides.
 *
 * For a host name, RET gets the port and no address: no name server is asked.  Returns NULL; or
 * the fault, and then RET needs no endpoint_close().
 */
const char *endpoint_parse(const char *text, bool passive, bool udp, struct endpoint *ret);

/*
 * Add TEXT, an address to listen at, to E, which may be zeroed.  All addresses of E have one
 * protocol.  A host name is alone in E, because its addresses come later.  NULL, or the fault.
 */
const char *endpoint_add_listen(const char *text, struct endpoint *e);

/*
 * Look up the addresses of the host name E by getaddrinfo(3), which may block.  -ENOENT: it is not
 * found; -EAGAIN: no name server has answered, or there is no memory, and it may be found later.
 * Then ERR (ERRLEN bytes) holds one line that says so, without the name.
 */
int endpoint_look_up(struct endpoint *e, bool passive, char *err, size_t errlen);

/*
 * Read services(5) now, for the names of ports: a daemon that is confined can open no file any
 * more.  Without this call the first name of a port reads the file.
 */
void endpoint_keep_services(void);

/* Give E the addresses of FROM as well. */
void endpoint_copy_addrs(struct endpoint *e, const struct endpoint *from);

/* Release what endpoint_parse() allocated.  A zeroed object is fine. */
void endpoint_close(struct endpoint *e);

/* True if E is a unix socket, which is its only address then. */
bool endpoint_is_unix(const struct endpoint *e);

/* A server that a forward leads to. */
struct server_conf {
	struct endpoint at;
	unsigned int weight;       /* its share of the sessions, relative to those of the others */
	bool backup;               /* used only while no other server can be */
	unsigned int max_sessions; /* at a time; 0: no limit */
	in_port_t check_port;      /* where it is checked, in host order; 0: as the forward says */
};

#define SERVERS_MAX 64 /* of a forward, as written */
#define SERVER_WEIGHT_MAX 100
#define UPSTREAM_SEPARATORS " \t," /* between words */

/* An upstream as written: one server, or several. */
struct upstream {
	const char *text;            /* as written; not owned */
	struct server_conf *servers; /* owned; freed by upstreams_close() */
	size_t n;                    /* at least 1 after upstreams_parse() */
	bool limited;                /* a server has max-sessions */
};

/*
 * Parse TEXT, which must live as long as RET: addresses as of endpoint_parse(), separated by blanks
 * or commas.  "weight=N", "max-sessions=N", "check-port=N" and "backup" may follow each address.  No
 * server may be given twice.  UDP: the listener is of UDP.  Servers have the protocol of the listener, whether or not it is written
 * behind their ports.  All servers are unix sockets, or none is, since a session is prepared for
 * one kind before its server is chosen.  All servers have equally many ports.
 *
 * Returns 0, or -EINVAL; then ERR (ERRLEN bytes) has the fault in one line, and RET needs no
 * upstreams_close().
 */
int upstreams_parse(const char *text, bool udp, struct upstream *ret, char *err, size_t errlen);

/* Release what upstreams_parse() allocated.  A zeroed object is fine. */
void upstreams_close(struct upstream *u);

/* True if all servers are unix sockets. */
bool upstreams_are_unix(const struct upstream *u);
