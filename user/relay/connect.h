/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONNECT_H
#define CULVERT_CONNECT_H

#include "relay/session.h"

/*
 * From the accepted client to the connected upstream: the state CONNECTING.
 * session_connect(), _answered() and _timer() may open the session or end it: look at s->state
 * afterwards.
 */

#define UPSTREAM_SOCKET_TYPE (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

struct connecting; /* what a session needs until it is OPEN */

/*
 * Find out from which ports the kernel connects.  Once, before there are threads, since a daemon
 * that is confined cannot.
 */
void connect_learn_ports(void);

/* How many those are: as many connections may lead from one address to an address and port. */
unsigned int connect_ports(void);

/*
 * A non-blocking socket that can be connected to TO, with F's mark, interface and source.  CLIENT:
 * where it comes from if F is transparent; NULL: from this machine.  -errno.  By any thread.
 */
int upstream_socket(const struct forward *f, const struct sockaddr *client, const struct addr *to);
/* As connect(2), but a socket that would meet itself is refused: 0 or errno. */
int upstream_connect(int fd, const struct addr *to);

/* The cause to count for errno ERROR of a connect. */
enum cause connect_cause(int error);

/* S will connect: it gets s->connecting.  -ENOMEM. */
int session_connect_expect(struct session *s);

/* Begin with the first address, as soon as there is one. */
void session_connect(struct session *s);
/* epoll has reported EVENTS on the socket of attempt I; 0 is that of sides[UPSTREAM]. */
void session_connect_answered(struct session *s, unsigned int i, uint32_t events);
/* Time has passed: give up, begin with the next address, or try again. */
void session_connect_timer(struct session *s);

/* When to call session_connect_timer(), or to compute anew what to wait for. */
uint64_t session_connect_due(struct session *s);
/* True at first: the client need not be watched yet. */
bool session_connect_is_quiet(const struct session *s);

/* The session is open, or ends: give up all attempts but that of sides[UPSTREAM]. */
void session_connect_end(struct session *s);
/*
 * After a batch of events: if look-ups have ended (shared->name_news), those of W's sessions that
 * wait for one begin to connect, or end.
 */
void session_connect_news(struct worker *w);
/* Free what was given up during the batch. */
void session_connect_reap(struct worker *w);

#endif
