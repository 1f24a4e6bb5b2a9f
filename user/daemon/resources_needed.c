// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/resources_needed.h"

#include "relay/marked_sockets.h"

/* A session has two sockets, and two pipes while both its directions hold spliced bytes. */
#define SOCKETS_EACH 2UL
#define DESCRIPTORS_EACH (SOCKETS_EACH + 2 * 2)
/*
 * Beside those of sessions and forwards: maps, epoll, logs, the control socket's clients, forwards
 * that a reload adds; and idle pipes.
 */
#define OWN_DESCRIPTORS 256
#define SPARE_DESCRIPTORS 1024

struct needs needs_of(const struct config *c)
{
	unsigned long forwards = 0;

	for (size_t i = 0; i < c->n_forwards; i++)
		forwards += c->forwards[i].listen.n_addrs * c->workers +
			    2UL * MARKED_SOCKETS * forward_needs_privileges(&c->forwards[i]);
	return (struct needs){
		.sockets = SOCKETS_EACH * c->max_sessions + forwards + OWN_DESCRIPTORS,
		.descriptors = DESCRIPTORS_EACH * c->max_sessions + forwards + SPARE_DESCRIPTORS,
	};
}
