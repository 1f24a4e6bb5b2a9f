/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "graft_contract.h"
#include "datapath/graft/standby_record.h"
#include "datapath/bpf_ring.h"

/*
 * The carrier graft: the packet programs (bpf/graft.bpf.c) join both connections of a session, and
 * the daemon does not see their packets any more.  include/graft_contract.h has the states.
 * Mechanism only: session_graft.c decides.
 */
struct graft_table;
struct clsact;

struct graft_limits {
	unsigned int slots;   /* sessions grafted at a time, those that are ending included */
	unsigned int workers; /* one ring buffer each */
	const char *pins;     /* folder on a BPF file system, where maps and links outlive the
			       * daemon; NULL: none.  The folder and its parent become UID's; one
			       * daemon at a time uses the folder */
	uid_t uid;
	unsigned int syn_slots; /* beside `slots`: sessions from the SYN on at a time */
	uint16_t syn_port;      /* the first of as many local ports, which nobody else uses */
	bool on_loopback;       /* attach to the loopback device alone */
	/*
	 * Another daemon may use the folder, and will give it up.  graft_table_open() only loads the
	 * programs, and graft_table_begin() does the rest.
	 */
	bool takes_over;
};

/*
 * Load the programs and attach them to all interfaces that are up and have an address.  Needs root.
 * -errno: ERR says why no session can be grafted.
 */
int graft_table_open(const struct graft_limits *limits, struct graft_table **ret, char *err,
		     size_t errlen);
/* Before graft_table_begin(): a session by sockets has SLOT, which is RETURNED. */
void graft_table_keep(struct graft_table *gs, uint32_t slot);
/* The other daemon has given up.  Needs root.  -errno: ERR says why nothing is grafted. */
int graft_table_begin(struct graft_table *gs, char *err, size_t errlen);
/* A number of the folder of GS, alike in two daemons that share it; 0: there is no folder. */
uint64_t graft_table_pins(const struct graft_table *gs);
/* After a begin: what daemons of other layouts have left is of no use any more. */
void graft_table_remove_others(const struct graft_table *gs);
/* Give the folder up: another daemon may use it. */
void graft_table_give_up(const struct graft_table *gs);
/*
 * Attach to new interfaces, which needs CAP_NET_ADMIN (graft_attach.h), or TCX; forget those that
 * are gone.  Nothing is grafted any more on an interface where others decide about packets as
 * well.  By one thread.  Returns the number of interfaces that have changed; -errno: the programs
 * are at none.
 */
int graft_table_follow_interfaces(struct graft_table *gs);
/*
 * True: call graft_table_follow_interfaces(): somebody has detached programs, or a frozen socket
 * gets packets by an interface without programs.  By the same thread, twice a second or so.
 */
bool graft_table_miss_programs(struct graft_table *gs);
/*
 * Detach and unpin, which needs the same privilege.  KEEP: only if no session is grafted.  NULL is
 * fine.
 */
void graft_table_close(struct graft_table *gs, bool keep);
/* Skip the next free slot, which a child that was forked just now takes from its own queue. */
void graft_table_skip_slot(struct graft_table *gs);
/* The filters of clsact, for a process with CAP_NET_ADMIN (graft_attach.h); NULL: TCX is used. */
struct clsact *graft_table_clsact(struct graft_table *gs);

/* True if sessions that are grafted go on after the daemon has ended. */
bool graft_table_survive(const struct graft_table *gs);
/* Sessions whose packets are translated; of UDP, too. */
unsigned int graft_table_live(const struct graft_table *gs);

/*
 * Set *AT to the next slot, from *AT on, of which graft_carries() is true.  At the start these are
 * the sessions that a daemon before this one has left: each has to be given to a worker, or back
 * (graft_put()).  False: there is none.
 */
bool graft_next(const struct graft_table *gs, uint32_t *at);
/* The slots that are not free (bits.h), and behind them those of UDP. */
const uint64_t *graft_table_used(const struct graft_table *gs);
/*
 * Make sockets, owned by UID, for the sessions that a daemon before this one has left, as far as
 * there are descriptors.  Needs root.  graft_take_sockets() makes them the caller's, by side; -1:
 * no socket.
 */
void graft_table_revive(struct graft_table *gs, uid_t uid);
void graft_take_sockets(struct graft_table *gs, uint32_t slot, int ret[2]);
/* Close SLOT's sockets with RST, if nobody took them.  False: there are none. */
bool graft_close_sockets(struct graft_table *gs, uint32_t slot);
/* Close with RST all sockets not taken: of sessions that were not adopted, or have returned. */
void graft_table_close_sockets(struct graft_table *gs);

/*
 * Translated packets go the way of the session's sockets, as it was seen last.  When ways may have
 * changed, each socket is asked: the socket sends a probe, and the packet programs see the probe's
 * way.
 */
enum graft_change { GRAFT_CHANGE_NONE, GRAFT_CHANGE_ROUTES, GRAFT_CHANGE_POLICIES };
/* What has changed in this network namespace since the last call.  By one thread. */
enum graft_change graft_table_find_changes(struct graft_table *gs);
/* All ways may have changed.  Old ways go on until the sockets answer, but not after POLICIES. */
void graft_table_doubt_ways(struct graft_table *gs, enum graft_change change);

enum graft_doubt {
	GRAFT_DOUBT_NONE,
	GRAFT_DOUBT_ASK,     /* the caller has to ask both sockets, now */
	GRAFT_DOUBT_ASKED,   /* reset both sockets' keepalive to the configured one */
	GRAFT_DOUBT_UNUSED,  /* as ASKED; and no session may be grafted on their interface now */
	GRAFT_DOUBT_REFUSED, /* as ASKED; and a route or a rule forbids their packets */
	GRAFT_DOUBT_LOST,    /* a socket has a way that cannot be followed: reset the session */
};
/*
 * ACTIVE, RETURNING: the next step about the ways of SLOT, which is the caller's.  NONE for a
 * second after the first ASK of a change: TCP may take so long to probe.
 */
enum graft_doubt graft_doubt(struct graft_table *gs, uint32_t slot);
/* True: since the last call graft_doubt() has returned a step, so it has to be called again. */
bool graft_table_are_doubtful(struct graft_table *gs);
/* The session is back at its sockets.  True: reset their keepalive, as for ASKED. */
bool graft_forget_doubt(struct graft_table *gs, uint32_t slot);
/* How often the sockets were asked without an answer. */
unsigned int graft_asked(const struct graft_table *gs, uint32_t slot);

void graft_tuple_set(struct graft_tuple *t, const struct sockaddr *remote,
		     const struct sockaddr *local);
/*
 * Offer a session of which the caller holds no byte.  Q gets the operation and the slot; the caller
 * sets all else.  GRAFT_NO_SLOT if no slot is free.  The session goes on at its sockets until a
 * packet makes it ACTIVE.
 */
enum graft_refusal graft_try(struct graft_table *gs, struct graft_request *q);
/* The same with the session of SLOT, which is RETURNED; Q says whether it may be far. */
enum graft_refusal graft_try_again(struct graft_table *gs, uint32_t slot, struct graft_request *q);
/*
 * Change the handshake of FD, which is not connected yet; or, if FD listens, of all connections
 * that arrive there.  -errno.
 */
int graft_shape(struct graft_table *gs, int fd, const struct graft_shape *shape);
/* The shape of FD, with the answer of the remote end; zeroes if there is none. */
void graft_shape_of(struct graft_table *gs, int fd, struct graft_shape *ret);
/* A number in place of NAME, for the kernel's maps: another daemon computes the same. */
uint32_t graft_tag(const char *name);

/* In the words of operators. */
const char *graft_refusal_name(enum graft_refusal r);

/* The state as it is now; LOCKED counts as OFFERED, LOCKED_2 as RETURNING. */
static inline enum graft_state graft_state_of(const struct graft_head *h)
{
	uint32_t state = __atomic_load_n(&h->state, __ATOMIC_ACQUIRE) & GRAFT_STATE_MASK;

	if (state == GRAFT_LOCKED)
		return GRAFT_OFFERED;
	if (state == GRAFT_TAKEN) /* for less than a microsecond */
		return GRAFT_SYN_SENT;
	return state == GRAFT_LOCKED_2 ? GRAFT_RETURNING : (enum graft_state)state;
}

static inline bool graft_state_carries(enum graft_state state)
{
	return state == GRAFT_ACTIVE || state == GRAFT_RETURNING || state == GRAFT_DONE;
}

enum graft_state graft_state(const struct graft_table *gs, uint32_t slot);
/* Packets of the session are translated, or were until its end: its sockets see none. */
bool graft_carries(const struct graft_table *gs, uint32_t slot);
/* The entry of SLOT.  Its worker may write `counted` and `shaped`. */
volatile struct graft_entry *graft_of(const struct graft_table *gs, uint32_t slot);

/* OFFERED: take the offer back: FREE, or RETURNED again.  False: packets are translated already. */
bool graft_withdraw(struct graft_table *gs, uint32_t slot);
/* OFFERED: let the senders of a stream that is never quiet run dry, for GRAFT_HOLD_MS from now. */
void graft_hold(struct graft_table *gs, uint32_t slot);
/* ACTIVE becomes RETURNING (BACK), or RETURNING becomes ACTIVE.  False: it is in neither state. */
bool graft_return(struct graft_table *gs, uint32_t slot, bool back);
/*
 * ACTIVE, RETURNING or DONE: the caller closes the sockets with RST (SO_LINGER), which resets the
 * ends.  The stack answers late packets.
 */
void graft_kill(struct graft_table *gs, uint32_t slot);

/* Bytes that the end of side DIR has sent while grafted; the other may not have got all. */
uint64_t graft_bytes(const struct graft_table *gs, uint32_t slot, unsigned int dir);

/*
 * Give the slot back.  The sockets are closed, or will be, with RST (SO_LINGER) unless the session
 * is RETURNED.  Late packets are translated until another session needs the slot.
 */
void graft_put(struct graft_table *gs, uint32_t slot);

unsigned int graft_table_total(const struct graft_table *gs);

/*
 * Sessions from the SYN on.  The daemon prepares slots, each with a server, and SYNs take them out
 * of a stock in their order.  graft_syn.c has these functions; the caller locks each stock.
 */

/* The number of slots for them, which are the first ones. */
uint32_t graft_table_syn_slots(const struct graft_table *gs);
struct graft_stock *graft_stock(const struct graft_table *gs, unsigned int i);
/* The local port of SLOT, in network byte order. */
uint16_t graft_syn_port(const struct graft_table *gs, uint32_t slot);
/*
 * Prepare a slot for session ID of the forward with TAG, to the remote end of SERVER, from the local
 * address of SERVER.  NEAR_US: as in struct graft_request.  NO_SLOT: none is free now.
 */
uint32_t graft_syn_prepare(struct graft_table *gs, const struct graft_tuple *server, uint64_t id,
			   uint32_t tag, uint32_t near_us);
/* SYNs may take SLOT from now on. */
void graft_syn_push(struct graft_stock *k, uint32_t slot);
/* How many slots K has. */
uint32_t graft_syn_left(const struct graft_stock *k);
/* The position that the next SYN takes. */
uint32_t graft_syn_first(const struct graft_stock *k);
/* Take back the slot that the next SYN would take, for graft_put(); NO_SLOT: there is none. */
uint32_t graft_syn_take(struct graft_table *gs, struct graft_stock *k);
/* SYN_SENT becomes GAVE_UP, ANSWERED becomes DONE.  False: SLOT is in neither state any more. */
bool graft_syn_expire(struct graft_table *gs, uint32_t slot);
/* WORKER looks for sessions from the SYN on by itself: no event wakes it for a new one. */
bool graft_syn_awake(struct graft_table *gs, unsigned int worker, bool awake);
/* Clients and servers have to prove themselves anew. */
void graft_syn_forget_proofs(struct graft_table *gs);
/* The next SYN of CLIENT goes to the listener. */
void graft_syn_forget_client(const struct graft_table *gs, const struct graft_tuple *client);
/* For views.  Half-open sessions are not sessions yet. */
uint64_t graft_syn_past(const struct graft_table *gs, enum graft_past why);
/* In how many places netfilter would see the packets of a session by sockets. */
unsigned int graft_syn_hooks(const struct graft_table *gs);
uint64_t graft_syn_half_open(const struct graft_table *gs);
const char *graft_past_name(enum graft_past why);

/*
 * Sessions that several relays know (daemon/standby.c).  One relay carries a session at a time: the
 * one with the client's destination address.  graft_standby.c has these functions.
 */

/*
 * ADDRESS is on this machine, or not any more.  Packets for STANDBY sessions of ADDRESS are
 * translated while ADDRESS is here.  False: no memory.
 */
bool graft_table_set_address(struct graft_table *gs, const struct graft_addr *address, bool here);
/*
 * GRAFT_PORT_* by port in network byte order; the caller writes them.  If the stack does not know a
 * connection with such a port, the stack's reset for it is dropped.
 */
uint8_t *graft_table_unsynced_ports(const struct graft_table *gs);
/*
 * Packets on way W leave by IFINDEX, with the kernel's route; IFINDEX 0: none leaves.  Once the
 * session has a socket, the socket is asked for its way.
 */
void graft_table_set_way(const struct graft_table *gs, struct graft_way *w, uint32_t ifindex,
			 uint32_t mtu);
/*
 * Enter E as STANDBY, in place of STANDBY sessions with its tuples.  The caller sets all fields
 * that mean the same on each relay before the call, and `source` after it.  -EEXIST: a session here
 * has both tuples; -EADDRINUSE: another session, or a socket, has one of them; -ENOSPC.
 */
int graft_import(struct graft_table *gs, struct graft_entry *e, uint32_t *ret_slot);
/* The slot of the session of TCP, or UDP, with TUPLE, STANDBY or at work; or NO_SLOT. */
uint32_t graft_find(struct graft_table *gs, bool udp, const struct graft_tuple *tuple);
/* Take out the session of SLOT.  False: it is not STANDBY. */
bool graft_drop(struct graft_table *gs, uint32_t slot);
/* STANDBY becomes ACTIVE, as if a packet had come. */
void graft_wake(struct graft_table *gs, uint32_t slot);
/* No worker has the session, which came from another relay, or was left by another daemon. */
bool graft_is_orphan(const struct graft_table *gs, uint32_t slot);
/* The session came from another relay, and no packet of it has come here since. */
bool graft_is_unheard(const struct graft_table *gs, uint32_t slot);
/* FDS, sockets for a session that is about to be adopted, become GS's. */
void graft_give_sockets(struct graft_table *gs, uint32_t slot, const int fds[2]);
/* graft_give_sockets() was called, perhaps with -1, and the sockets were not taken yet. */
bool graft_has_sockets(struct graft_table *gs, uint32_t slot);
/* Any session is without sockets. */
bool graft_any_is_bare(const struct graft_table *gs);
/* The session of SLOT, which a worker has without sockets, needs them at once. */
void graft_want_sockets(struct graft_table *gs, uint32_t slot);
/* A worker has the session, without sockets.  *RET_WAITS: its bulk, or its end, waits for them. */
bool graft_is_bare(const struct graft_table *gs, uint32_t slot, bool *ret_waits);
/* Has another relay been told of the session, which lives? */
bool graft_is_told(const struct graft_table *gs, uint32_t slot);
/* Is ADDRESS here, as graft_table_set_address() was told last? */
bool graft_table_has_address(const struct graft_table *gs,
			     const volatile struct graft_addr *address);
/* Values of alone_ms.  An odd value is the time since which no peer exports the session. */
#define ALONE_NEVER 0U   /* a peer exports the session */
#define ALONE_EXPIRED 2U /* the next look takes the session out */
/*
 * The client's destination address is gone, or another relay has the session: SLOT becomes STANDBY,
 * without a worker.  ALONE_MS: an ALONE_* value.  False: the session has ended.
 */
bool graft_part(struct graft_table *gs, uint32_t slot, uint32_t alone_ms);
/* Set RET to both ends of SLOT, as packets here have shown them, believed or not. */
void graft_hear(const struct graft_table *gs, uint32_t slot, struct graft_heard ret[2]);
/* NEW has come; H is what is known of that end, all 0 at first.  A NEW that is far earlier is ignored. */
void graft_heard_note(struct graft_heard *h, const struct graft_heard *new);
/*
 * Packets of the session in SLOT go by other relays: let what was HEARD count as seen here, so far as
 * both ends say the same.  HEARD: by side; [1] was seen elsewhere, [0] is kept for the next call.
 * True: the session is DONE now.
 */
bool graft_merge(struct graft_table *gs, uint32_t slot, struct graft_heard heard[2][2]);
/*
 * The session in SLOT has ended by another relay: by FINs, or by a reset of side RESET (-1: none).
 * True: the session is DONE now.
 */
bool graft_finish(struct graft_table *gs, uint32_t slot, int reset);

/* The table of UDP's flows, with as many slots.  NULL for NULL. */
struct udp_table;
struct udp_table *graft_table_udp(const struct graft_table *gs);

/* Of struct graft_event. */
const struct bpf_rings *graft_rings(const struct graft_table *gs);
