/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon.h"
#include "peer.h"

/* The forwards that the daemon of the rows serves; addresses in cases_run.c. */
enum via {
	VIA_PLAIN,
	VIA_IPV6,
	VIA_MAPPED, /* IPv4, in IPv6 form */
	VIA_UNIX_UPSTREAM,
	VIA_UNIX_LISTENER,
	VIA_REFUSED,
	VIA_BLACKHOLE,
	VIA_UNREACHABLE,
	N_VIAS,
};

#define CASES_CONNECT_TIMEOUT "0.5" /* seconds, of the daemon of the rows */
#define OWN_LISTEN "127.0.0.1:9200" /* of a daemon that one row starts for itself */
#define PLAIN_UPSTREAM "127.0.0.1:9100"

/* One engine under test. */
struct cases {
	const char *culvert; /* --culvert, or NULL */
	const char *engine;
	const char *probe; /* --probe, or NULL */
	struct daemon *d;
	bool kernel;       /* status: kernel.available */
	uint64_t sessions; /* key of the patterns: every session has bytes of its own */
	char why[1600];    /* of the row that fails */
};

/*
 * A row: two scripts (see peer_script(); without SERVER the upstream does nothing), or a function
 * that returns 0 or -1 and the reason in c->why.  Every row runs on every engine.
 */
struct row {
	const char *name;
	const char *what;
	enum via via;
	const char *client, *server;
	int (*run)(struct cases *c);
	int timeout_ms;    /* how long nothing may move; 0: PATIENCE_MS */
	const char *error; /* the cause that the daemon must have counted */
	bool ipv6;         /* needed, though VIA is another */
};

/* Listeners of the upstream side, once per program.  Exits with a message on failure. */
void cases_listen(void);

/* Start the daemon of the rows.  As daemon_start(). */
int cases_start(struct cases *c);

/* Start one with its own options (NULL-terminated); only OWN_LISTEN -> UPSTREAM. */
int cases_start_own(struct cases *c, const char *const *options, const char *upstream,
		    struct daemon **ret);

/* Prepare the two ends of a session; LISTEN is what the client connects to. */
void cases_pair(struct cases *c, const char *listen, enum via upstream, const char *client_script,
		const char *server_script, struct peer *client, struct peer *server);

/* Run one session through a forward. */
int cases_session(struct cases *c, enum via via, const char *client_script,
		  const char *server_script, int timeout_ms);

/* Close what waits at the upstream side; cases_idle() does it, too. */
void cases_drain(void);

/* Wait until D holds nothing. */
int cases_idle(struct cases *c, struct daemon *d);

const char *cases_listen_addr(enum via via);
int cases_listener(enum via via);

/* Set c->why; always returns -1. */
int cases_fail(struct cases *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Rows with a function, in cases_more.c. */
int case_connect_late(struct cases *c);
int case_reset_unaccepted(struct cases *c);
int case_all_at_once(struct cases *c);
