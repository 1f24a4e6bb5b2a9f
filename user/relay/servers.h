/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"
#include "config/config.h"
#include "graft_contract.h"
#include "relay/check_talk.h"
#include "relay/handed.h"
#include "relay/server_queue.h"
#include "relay/server_health.h"
#include "relay/names.h"

/*
 * The servers of a forward: which there are, how each fares, and which one gets the next session.
 *
 * A server is an item of the key `upstream`, or, with `each-address`, one address of a name.  A
 * server keeps its state when a reload replaces its forward by one with a server of that name.
 */

#define SERVER_NAME_LEN sizeof(((struct endpoint *)0)->text)
#define SERVERS_IN_USE_MAX 256 /* of a forward, with each address of its names */
#define SERVER_ERROR_LEN CHECK_WHY_LEN

struct server {
	_Atomic unsigned int refs;    /* sessions, forwards, a check */
	_Atomic unsigned int live;    /* sessions that are connected to it, or try to be */
	_Atomic uint32_t lost;        /* times that it has lost all sessions of UDP */
	_Atomic bool dead;            /* its sessions are to end: see on-down, on-backup */
	_Atomic bool answered;        /* it has answered a session of UDP */
	_Atomic uint64_t answered_ns; /* when it has answered a session from the SYN on, about */
	/* time of its first connect since its last answer; 0: owes none; written with the lock */
	_Atomic uint64_t owes_ms;
	/*
	 * The index of the address to begin with.  Either this address has connected when others
	 * failed or were silent: then new sessions need not wait for a dead family.  Or it is the
	 * first address that a session had no time to try.  The index stays when a look-up makes a
	 * new list, which mostly has the same addresses.  Writers: session_connect.c; for UDP
	 * udp/udp_server.c and servers_move_on().
	 */
	_Atomic uint16_t first;
	/* the handshakes of its connections of TCP at the time `seen_ms`; written by handshake_options.c */
	_Atomic uint16_t told_mss;  /* MSS that the relay offers unless shaped; 0: not known */
	_Atomic uint16_t takes_mss; /* its own MSS; 0: clients need no smaller one than usual */
	_Atomic uint8_t lacks;      /* enum shaped: options that it does not have */
	_Atomic uint64_t seen_ms;
	struct server_queue *queue; /* for a place here, or at others of its forward */
	char name[SERVER_NAME_LEN];

	/* with the lock of struct servers */
	struct health health;
	unsigned int weight;          /* by order of an operator, or its agent; 0: as configured */
	bool told_off;                /* health.order is "down" by its agent */
	uint64_t usual_ms;            /* duration of its last connect */
	uint64_t sessions, failures;  /* connects since the start */
	char error[SERVER_ERROR_LEN]; /* of the last connect or check that failed; "": none has */
	uint64_t error_ms;            /* when that was */
	char answer[CHECK_WHY_LEN];   /* of the last check; "": none has ended */
	uint64_t answer_ms;           /* when that was */
	char agent[CHECK_WHY_LEN];    /* the last line of its agent; "": none */
	uint64_t ask_ms;              /* when it is asked again, if it is silent */
	uint64_t moved_ms;            /* UDP: when servers_move_on() changed `first` last */
	uint64_t check_ms;            /* when the next check is due */
	struct graft_tuple way;       /* of a session by sockets, from way_ms on; 0: none */
	uint64_t way_ms;
	unsigned int prepared; /* choices that have no session yet */
	uint64_t asked_ms;     /* when a session by sockets was to show the way again */
};

/* Take a reference; drop one (NULL is fine). */
struct server *server_get(struct server *s);
void server_put(struct server *s);
/* The session that servers_pick() chose S for has ended, or goes to another server. */
void server_leave(struct server *s);

/* A server of one forward, in the order of the configuration. */
struct member {
	struct server *server; /* a reference */
	const struct server_conf *conf;
	struct place *place;
	struct addr_list *list; /* its addresses; a reference */
	int64_t turn;           /* see balance.h */
};

/* The weight of M's server.  With the lock. */
static inline unsigned int member_weight(const struct member *m)
{
	return m->server->weight ?: m->conf->weight;
}

/* A server as configured, and the look-ups of its name. */
struct place {
	struct lookup lookup;
	uint64_t seen;               /* the last look-up that its members are made of */
	uint64_t sessions, failures; /* of all its members, also of those that are gone */
};

struct servers {
	const struct forward_conf *conf;
	pthread_mutex_t *lock; /* of the rest, and of each server; shared with the forward before */
	struct server_queue *queue; /* for a place at any of them */
	struct place *places;       /* owned, by server of conf */
	struct member *members;
	size_t n;
};

/*
 * BEFORE: the servers of the forward that is replaced, or NULL.  LOCK and QUEUE outlive both.
 * -ENOMEM.
 * Call servers_close() in any case.
 */
int servers_open(struct servers *ss, const struct forward_conf *fc, struct servers *before,
		 pthread_mutex_t *lock, struct server_queue *queue, uint64_t now_ms);
/* Close SS, which no session uses.  A struct of zeroes is fine. */
void servers_close(struct servers *ss);
/* See names_add(). */
void servers_add_names(struct servers *ss, struct names *names);

/*
 * Choose a server for a session of CLIENT, other than the N servers TRIED.  Returns how many there
 * were to choose from; *RET is the server, to be given to server_leave(), and *RET_LIST its
 * addresses, to be given to addr_list_put().  0: a look-up of a name has not ended; see
 * lookup_failed(), also for SEEN.  -ENOENT: only names without an address are left, and look-ups
 * have failed; -EHOSTDOWN: no server is left that may have a session.  -EBUSY: none that may has a place,
 * or others wait before WAITER, which waits; NULL: it does not, and may begin to.  By any thread.
 */
int servers_pick(struct servers *ss, const union client_addr *client, struct server *const *tried,
		 size_t n, const struct waiter *waiter, uint64_t *seen, uint64_t now_ms,
		 struct server **ret, struct addr_list **ret_list);
/* All addresses of S have failed, the last one with errno ERROR.  Returns as lookup_failed(). */
bool servers_refused(struct servers *ss, struct server *s, int error, uint64_t *seen,
		     uint64_t now_ms);
/*
 * UDP: the address of S with the index AT is silent, or has REFUSED.  Ask for a look-up.  Begin
 * with the next address if this one has refused, or if S has owed an answer for ASK_AGAIN_MS.
 * True: S begins with another address now.
 */
bool servers_move_on(struct servers *ss, const struct server *s, uint16_t at, bool refused,
		     uint64_t now_ms);
/* A connect to S has succeeded after TOOK_MS. */
void servers_connected(struct servers *ss, struct server *s, uint64_t took_ms, uint64_t now_ms);
/*
 * A check of S has ended: 0, or an errno.  WHY: what the answer was.  True: S has another state, or a
 * server is dead from now on.
 */
bool servers_checked(struct servers *ss, struct server *s, int error, const char *why,
		     uint64_t now_ms);
/*
 * The agent of S has said A in LINE.  True: as of servers_checked().  Orders and weights in a line that
 * the agent repeats do not count: an operator may have said something else since.
 */
bool servers_told(struct servers *ss, struct server *s, const struct check_advice *a,
		  const char *line, uint64_t now_ms);

/* Follow changes of names: to be called with the lock, before members are looked at. */
void servers_refresh(struct servers *ss);

/* Write to BUF why no server may have a session: the error of one, or an order of an operator. */
void servers_why(struct servers *ss, char *buf, size_t size);

/* The server that has ADDR, with a reference and counted as live; or NULL. */
struct server *servers_find(struct servers *ss, const struct addr *addr);

/*
 * --- choices for sessions from the SYN on, before there is a client ---
 *
 * A choice counts as a session when further choices are made.  The choice alone does not ask the
 * server, so the server owes no answer and is not tried by it.
 */

/*
 * Choose a server, to be given to one of the functions below.  *RET_WAY: the way to it; without
 * remote port if the next session has to find the way by sockets.  NULL: all sessions go by sockets.
 */
struct server *servers_prepare(struct servers *ss, uint64_t now_ms, struct graft_tuple *ret_way);
/* No session has S. */
void servers_unprepare(struct servers *ss, struct server *s, uint64_t now_ms);
/* A session by sockets has S: as servers_pick().  0: S may have no session now, and is given back. */
int servers_pick_prepared(struct servers *ss, struct server *s, uint64_t now_ms,
			  struct addr_list **ret_list);
/* A session from the SYN on has S, which has answered after TOOK_MS. */
void servers_begun(struct servers *ss, struct server *s, uint64_t took_ms, uint64_t now_ms);
/* S owes an answer since SINCE_MS.  True: for so long that other servers come first. */
bool servers_silent(struct servers *ss, struct server *s, uint64_t since_ms, uint64_t now_ms);
/* A session by sockets has shown the way WAY to S; NULL: no way is known now. */
void servers_learn(struct servers *ss, struct server *s, const struct graft_tuple *way,
		   uint64_t now_ms);

/*
 * Give the server NAME an order, and a weight (0: the configured one); NULL: that stays.  Returns a
 * reference to the server; NULL: there is no such server.
 */
struct server *servers_order(struct servers *ss, const char *name, const enum server_order *order,
			     const unsigned int *weight);

/* The first name among the servers as configured, or NULL. */
struct lookup *servers_first_name(struct servers *ss);

/* Health and orders of all servers of SS, which the forward OF has, go to B, or come from there. */
void servers_hand_over(struct servers *ss, uint32_t of, struct bundle *b);
void servers_take_over(struct servers *ss, const struct record *from);
