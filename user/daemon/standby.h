/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "daemon/control_socket.h"
#include "daemon/service.h"
#include "datapath/route.h"

/*
 * A relay that another one takes the place of: what each tells the other (graft_record.h), by which
 * sessions at packet level survive the death of the whole machine.  docs/operations.md tells how to
 * set up a pair.
 */

#define STREAMS_MAX 4

struct exported;

/* That a session names, which may come and go. */
struct standby_address {
	struct graft_addr is;
	bool here, used;
	uint64_t gone_ms; /* it is not here any more, and is taken for gone then; or 0 */
};

/* An export or an import. */
struct stream {
	/* what is shown of it */
	_Atomic bool is_open, is_import;
	char name[64]; /* of an import, */
	uint32_t tag;  /* and its graft_tag(), or nearly */
	_Atomic uint64_t records;
	_Atomic uint64_t last_ms;   /* it took or told something then */
	_Atomic uint64_t synced_ms; /* 0: it is not in sync */
	_Atomic bool same_ports;    /* of an import: both relays connect from some ports */

	/* by its thread */
	struct standby *sb;
	const struct control *control;
	int fd;
	uint64_t *known;           /* a bit for each place, as held_at() has them: it was told of */
	struct exported *told;     /* by place; of an export */
	uint64_t after_ns, now_ns; /* now: of an export's look */
	size_t len;                /* of what is in the buffer */
	uint8_t *buffer;
};

struct standby {
	struct reload *reload; /* its thread follows addresses, and adopts */
	struct shared *shared;
	struct grafts *grafts;
	struct udp_grafts *udp;
	uint32_t n; /* slots, and as many of UDP */
	struct timer look;
	uint64_t revive_ms; /* when what has no sockets may get some, */
	bool revives;       /* and so it is now */
	_Atomic uint64_t adopted, refused;

	pthread_mutex_t lock; /* of what follows */
	struct stream streams[STREAMS_MAX];
	struct routes routes;
	_Atomic uint32_t moves;            /* of addresses */
	uint64_t cared_ms;                 /* see CARE_MS */
	uint64_t looked_ms;                /* at addresses */
	bool news;                         /* since then, or one of them leaves */
	unsigned int n_addresses;          /* at most N */
	struct standby_address *addresses; /* sorted */
};

/*
 * Begin with what a daemon before has left of other relays' sessions.  Before the thread of R, which
 * has grafts, is started.  -errno.  It lives as long as R.
 */
int standby_open(struct standby *sb, struct reload *r);
/* Addresses or routes have changed.  By any thread. */
void standby_news(struct standby *sb);
void standby_close(struct standby *sb);

/* At how many milliseconds of age `export` tells of a session, if the request does not say. */
#define STANDBY_AFTER_MS 2000

/*
 * Serve the client at FD until one of both ends that: tell of sessions that were grafted AFTER_MS
 * ago; or take in what is told, as NAME.  On a thread of C.
 */
void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms);
void standby_import(struct standby *sb, const struct control *c, int fd, const char *name);

/* Sessions of other relays that wait for their addresses. */
unsigned int standby_held(const struct standby *sb);
/* For `culvert status`. */
struct json_object *standby_json(struct standby *sb);
