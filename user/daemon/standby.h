/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <pthread.h>
#include <stdint.h>

#include "daemon/service.h"
#include "relay/session_json.h"
#include "daemon/grafted.h"
#include "daemon/standby_addresses.h"
#include "datapath/graft/standby_record.h"

/*
 * A pair of relays: each exports its grafted sessions to the peer (standby_record.h), so that
 * sessions survive the death of the whole machine.  docs/operations.md says how to set up a pair.
 */

struct control;
struct standby;

#define CONDEMNED_MAX 1024 /* that an export may lag behind */
#define STREAMS_MAX 64     /* two for each other relay, as a rule */

/* The session of a place as an export has sent it last. */
struct exported {
	struct graft_tuple client;
	uint64_t id;
};

/* An export or an import. */
struct stream {
	/* other threads read these */
	_Atomic bool is_open, is_import;
	char name[64];   /* of an import */
	uint32_t origin; /* of an import: of the relay whose records come */
	_Atomic uint64_t records;
	_Atomic uint64_t last_ms;    /* of the last record that came, or was taken */
	_Atomic uint64_t synced_ms;  /* 0: the stream is not in sync */
	_Atomic bool same_ports;     /* of an import: local ports of both relays overlap */
	char lacks[RECORD_NAME_MAX]; /* of an import: a forward of the peer that is not here; "" */

	/* of the stream's own thread */
	struct standby *sb;
	const struct control *control;
	int fd;
	uint64_t *known;           /* a bit for each place of grafted.h: exported, or imported */
	struct exported *exported; /* of an export, by place */
	uint32_t *keys;            /* the same; each changes with the record of its place; 0: there
				    * is none.  By imports, too */
	unsigned int changes;      /* of the configuration, that an export has told */
	unsigned int key_changes;  /* of an export: `keys_changes` when it last compared keys */
	unsigned int idle_looks;   /* of an export: those at which no key had changed */
	uint64_t condemned;        /* how many of sb->condemned it has told */
	uint64_t after_ns, now_ns; /* of an export: least age of a session; time of the look */
	size_t len;                /* of the bytes in the buffer */
	uint8_t buffer[65536];
};

struct standby {
	struct service *service; /* its thread makes the looks */
	struct graft_table *grafts;
	struct standby_addresses addresses; /* has its own lock */
	_Atomic uint64_t adopted, refused;
	_Atomic uint64_t now_ms; /* when the last look began */

	/* of the thread that reloads */
	struct timer look;
	bool begun;         /* else LOOK ends with the last session without sockets */
	uint64_t revive_ms; /* when to try again to make sockets for sessions that lack them */
	bool revives;       /* this look tries that */
	uint64_t cared_ms;  /* see CARE_MS */
	uint64_t busy_ms;   /* the start, the last arrival, or the last move of an address */
	unsigned int idle_looks;
	bool orphans; /* some sessions may be orphans */

	uint32_t own;     /* as `tag` of a stream; 0: `relay` is not set */
	uint64_t *helped; /* owned: a bit for each place whose routes were looked up for help */
	uint32_t moves;   /* of addresses and routes, when these bits began */
	uint32_t address_moves;
	uint64_t wake_ms; /* when silent orphans are woken next */
	bool asked_again; /* see standby_ask_again() */
	uint32_t chance;  /* a random number */

	/* the relays of imports, and when each was heard last; streams write them */
	struct {
		_Atomic uint32_t tag;
		_Atomic uint64_t heard_ms;
	} relays[STREAMS_MAX];

	/* owned, by place, of the last look of an export; keyed: a bit for each that is not 0 */
	pthread_mutex_t keys_lock;
	uint32_t *keys;
	uint64_t *keyed, keys_ms;
	unsigned int keys_looks;
	unsigned int keys_changes; /* how many keys have changed so far */
	uint64_t *rests; /* a bit for each place whose key may wait: another relay has the session */

	/* the last sessions of other relays that `culvert kill` here has named; under `lock` */
	struct {
		struct graft_tuple client;
		uint64_t id;
		bool udp;
	} condemned[CONDEMNED_MAX];
	uint64_t n_condemned;

	/* owned: by slot, what other relays have seen of the session ID; see graft_merge() */
	struct heard {
		uint64_t id;
		struct graft_heard of[2][2];
	} * heard;

	/* streams, and sessions of peers, change under it; taken before addresses.lock */
	pthread_mutex_t lock;
	struct stream streams[STREAMS_MAX];
	_Atomic bool marked;        /* ports of forwards, at which the stack resets no connection */
	_Atomic uint64_t synced_ms; /* when an import was in sync for the first time */
	uint64_t opened_ms;
};

/*
 * Take over the imported sessions of the previous daemon.  On the main thread, before the thread of
 * R starts.  R has grafts, and outlives SB.  -errno.
 */
int standby_open(struct standby *sb, struct service *r);

/* Addresses or routes have changed.  By any thread. */
void standby_news(struct standby *sb);
/*
 * Begin to look for arrivals, moved addresses and expired sessions.  ARG is a struct standby.  On
 * the thread that reloads.
 */
void standby_begin_looks(void *arg);

/*
 * While an import is not in sync, and for a while after the start, the stack resets no connection at
 * ports of forwards: a packet there may be of a session that has not come yet.  Under the lock of
 * forwards, and that of streams.
 */
void standby_mark_ports(struct standby *sb);

/* May another export or import begin? */
bool standby_has_room(struct standby *sb);

/* Does another relay tell that it has H?  By any thread. */
bool standby_is_told(const struct standby *sb, const struct grafted *h);
/* The relay TAG of an import is heard.  On the thread of the import. */
void standby_hear(struct standby *sb, uint32_t tag);
/*
 * Call FN(ARG) for each session that no worker here has, and whose id modulo PIECES is PIECE.  Under the
 * lock of forwards.
 */
typedef void standby_visit_fn(void *arg, const struct session_view *v, const struct grafted *h);
void standby_visit(struct standby *sb, unsigned int piece, unsigned int pieces,
		   standby_visit_fn *fn, void *arg);
/* Let the relay that has H reset it; a session that no relay has ends here. */
void standby_condemn(struct standby *sb, const struct grafted *h);
/* For `culvert status`.  By any thread. */
struct json_object *standby_json(struct standby *sb);
