/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * Sessions that begin in the kernel (`set-up`).  A forward has a stock of prepared slots, each with
 * the server that the next SYN gets.  The packet programs take a slot for a SYN, and the session
 * gets an object when it has ended, or has lived for SYN_YOUNG_MS.
 */
struct syn;

/* session_begun(): the session of SLOT, which is counted in at SERVER, gets an object.  -ENOMEM. */
typedef int syn_begin_fn(struct worker *w, struct forward *f, const union client_addr *client,
			 uint32_t slot, struct server *server);

/* NULL: no session begins in the kernel. */
struct syn *session_syn_open(struct shared *shared, syn_begin_fn *begin);
void session_syn_close(struct syn *y);

/* Why the sessions of F begin at sockets; NULL: they may begin in the kernel. */
const char *session_syn_hindrance(const struct shared *shared, const struct forward *f);
/* The same for FC; NO_SYN: as in struct shared; HOOKS: netfilter has some. */
const char *session_syn_refusal(const struct forward_conf *fc, const char *no_syn, bool grafts,
				bool hooks);

/* A listener of F begins: the stock of F, for session_syn_leave() at its end; NULL: none. */
struct syn_stock *session_syn_listen(const struct shared *shared, struct forward *f);
void session_syn_leave(const struct shared *shared, struct syn_stock *k);
/* The stock of F for its listeners' shape, plus 1; 0: none. */
uint16_t session_syn_stock(const struct shared *shared, const struct forward *f);

/* The session S by sockets has shown the way to its server: TUPLE is that of the server's side. */
void session_syn_learn(const struct session *s, const struct graft_tuple *tuple);

/*
 * The next choice for F, for a session by sockets: as servers_pick().  0: there is none, and *RET
 * may be wrong.
 */
int session_syn_choice(struct worker *w, struct forward *f, struct server **ret,
		       struct addr_list **ret_list);
/* LIMIT refuses a session of F: take back a prepared slot.  False: there is none. */
bool session_syn_give_way(const struct shared *shared, struct forward *f, enum cause limit);
/* The servers of F have other orders: make the choices anew. */
void session_syn_order(const struct shared *shared, const struct forward *f);

/* After each batch: prepare as many slots as SYNs have taken. */
void session_syn_fill(struct worker *w);
/* SLOT has no object: its session ID has begun, or has ended. */
void session_syn_event(struct worker *w, uint32_t slot, uint64_t id);
/* Events may have been lost: sweep soon. */
void session_syn_follow_news(struct worker *w);
/*
 * Give objects to sessions of W that have lived for a while; ALL: to all sessions.  Expire half-open
 * ones.
 */
void session_syn_sweep(struct worker *w, bool all);
void session_syn_on_sweep(struct timer *t);

/* Slots that wait for SYNs. */
unsigned int session_syn_prepared(const struct shared *shared);
/* Sessions of all forwards, or of F.  Prepared slots count as sessions elsewhere, but not here. */
unsigned int session_syn_live(const struct shared *shared);
unsigned int session_syn_forward_live(const struct shared *shared, const struct forward *f);
