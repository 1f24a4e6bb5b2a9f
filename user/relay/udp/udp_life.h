/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/handed.h"
#include "relay/session_json.h"
#include "relay/udp/udp_session.h"

/* The life of sessions of UDP, and the requests of a worker to its sessions. */

/* Room for the sessions of W; pages are taken as they are needed. */
void udp_worker_open(struct worker *w);

/* --- for the socket of clients --- */

/*
 * Begin the session of CLIENT to DESTINATION, by US, with the addresses of M.  The caller has
 * counted the session in.  Returns CAUSE_NONE, or the cause for which there is no session.
 */
enum cause udp_session_open(struct udp_listen_socket *us, const struct graft_tuple *tuple,
			    const struct udp_message *m, const union client_addr *client,
			    const union client_addr *destination, struct udp_session **ret);
/* M comes from the client of S, by US. */
void udp_session_take(struct udp_session *s, struct udp_listen_socket *us,
		      const struct udp_message *m);
/* A step has returned: carry out its mark.  False: S has ended. */
bool udp_settle(struct udp_session *s);

/* --- for the worker, on its thread --- */

/* As worker_visit_sessions(). */
void udp_sessions_visit(struct worker *w, uint64_t piece, uint64_t pieces, session_visit_fn *fn,
			void *arg);
/* As worker_follow_engines(), but no session needs time for it. */
void udp_sessions_follow_engines(struct worker *w);
/*
 * The worker stops: leave grafted sessions to the next daemon, and end the others unless an answer
 * is owed.
 */
void udp_sessions_leave_behind(struct worker *w);
/*
 * There is news: a session ends if its server is lost.  So does a session whose address has left
 * this machine, if another relay knows the session; its slot becomes STANDBY.
 */
void udp_sessions_follow_news(struct worker *w);

/*
 * Make the flow of SLOT a session of F and W.  The caller has counted the session in.  -ENOENT: W
 * has no socket to which the client sends; other -errno: no socket can be made.
 */
int udp_session_adopt(struct worker *w, struct forward *f, uint32_t slot);

/* As the functions of relay/session_life.h for a hand-over; any worker can be W of the last one. */
void udp_sessions_hand_over(struct worker *w, struct bundle *b);
void udp_sessions_give_away(struct worker *w);
int udp_session_take_over(struct worker *w, struct forward *f, const struct record *from);

/* --- udp_listener.c: sockets to which clients send; one stays while old sessions use it --- */

/*
 * W begins to serve F by the socket FD, which is bound to A.  The module owns FD from now on, and
 * no other worker reads from it.  NULL: no memory, which is logged.
 */
struct udp_listen_socket *udp_listener_start(struct worker *w, struct forward *f,
					     const struct addr *a, int fd);
/* US gets no new sessions from now on, and may be freed. */
void udp_listener_end(struct udp_listen_socket *us);
