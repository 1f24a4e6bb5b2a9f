/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session_view.h"
#include "relay/worker.h"

/*
 * Sessions of UDP: a flow of datagrams between one client and one server.  A worker has those of
 * the clients that udp_worker() gives it; no other thread touches them.
 */
struct udp_session;

/* --- what a worker asks of its sessions, on its thread --- */

/* Call FN with each of them, and a view of it, after the counters have what packet programs did. */
typedef void udp_visit_fn(void *arg, const struct session_view *v);
void udp_sessions_visit(struct worker *w, udp_visit_fn *fn, void *arg);
/* As session_end_some(). */
unsigned int udp_sessions_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
				   enum cause cause);
/* As session_follow_engines(), but nothing is left to wait for. */
void udp_sessions_follow_engines(struct worker *w);
