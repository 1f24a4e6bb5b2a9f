// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: servers.c chooses a server.  When none of its addresses can be connected to,
 * or its part of connect-timeout is over, the next server is chosen, until all servers have been
 * tried.  No byte of the client's stream is read before a server is connected.
 *
 * The addresses of a server are tried as RFC 8305 ("Happy Eyeballs") says.  names.c has put them in
 * order.  The next attempt begins when one has failed, or HAPPY_DELAY_MS after the last one began,
 * whichever comes first.  Earlier attempts go on.  The first one that is connected wins, and the
 * others are reset.
 *
 * Most sessions have one attempt.  Its socket is in sides[UPSTREAM] from the beginning, so the
 * winner need not move.  All other attempts are its rivals.
 *
 * A session is nameless while no server has an address.  A nameless session asks again each
 * NAMELESS_MS, until a look-up has ended or connect-timeout is over.
 *
 * A session also becomes nameless when all servers have failed while a look-up may still find
 * another address of the last one.  Then the session tries all servers again, as often as they
 * fail, until that look-up has ended.
 *
 * Where all servers that could be chosen have their max-sessions, a session waits in a queue
 * (server_queue.c), without a server.  Its connect-timeout begins when it has one.  If its forward is
 * replaced meanwhile, it goes on with the new one, whose servers may have places.
 */
#include "relay/session_connect.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/socket_set.h"
#include "datapath/tcp.h"
#include "relay/handshake_options.h"
#include "relay/session_syn.h"
#include "relay/upstream_socket.h"

/* RFC 8305, section 8, "Connection Attempt Delay": recommended. */
#define HAPPY_DELAY_MS 250
/* Attempts of a session at a time, so that a name with many dead addresses does not take every
 * descriptor. */
#define AT_ONCE 8
/* An attempt is tried again after this, if no socket was in stock or a unix backlog was full. */
#define RETRY_MS 20
#define NAMELESS_MS 100
/*
 * While the upstream is silent for longer than this, the client is watched for RST.  Most upstreams
 * answer sooner, and then the client is given to epoll once, with the events of an open session.
 */
#define CONNECT_QUIET_MS 20

struct attempt {
	struct source source; /* fd -1: none.  Attempt 0 has sides[UPSTREAM] instead */
	struct session *session;
	uint16_t address; /* its index */
	uint16_t number;
};

/* Allocated apart from the session, which needs it only until it is OPEN. */
struct connecting {
	struct leftover leftover;
	uint64_t due_ms;        /* give up */
	uint64_t server_due_ms; /* give the server up */
	struct server **tried;  /* owned: those that failed.  Compare only: they may be freed */
	size_t n_tried;
	struct waiter *waiter; /* owned; NULL: it does not wait for a server's place */
	uint64_t seen;         /* the look-up that it waits for, see lookup_failed() */
	uint64_t began_ns;
	/* when the next attempt may begin, or be tried again if this machine has refused it */
	uint64_t next_ms;
	uint16_t first;   /* index of the address to try first; address 0 follows the last one */
	uint16_t begun;   /* attempts that have begun */
	uint16_t running; /* of them, those that have not ended */
	struct attempt attempts[AT_ONCE];
};
/* malloc(3) could put a session into a larger `connecting` that was freed, and waste the rest. */
_Static_assert(sizeof(struct connecting) < sizeof(struct session), "smaller than a session");

/* --- the socket of an attempt --- */

/* If no descriptor is left, idle pipes are closed, which frees some. */
static int get_socket(struct session *s, const struct addr *to)
{
	int fd = upstream_socket(s->forward, &s->client.sa, to);

	if (fd != -EMFILE && fd != -ENFILE)
		return fd;
	pool_trim(&s->worker->pool);
	return upstream_socket(s->forward, &s->client.sa, to);
}

/* Accepted sockets inherit their options from the listener. */
static void set_options(struct session *s, int fd)
{
	const struct forward_conf *fc = s->forward->conf;

	socket_set(fd, SOL_SOCKET, SO_OOBINLINE, 1); /* as tcp_set_session_options() */
	handshake_shape(s, fd);
	s->nodelay_due = fc->nodelay;
	s->probe_at_ms = fc->keepalive_ms ? s->born_ms + smaller(fc->keepalive_ms / 8, 1000) :
					    NEVER;
}

/*
 * If the client has sent bytes already, hold the ACK of the handshake with the upstream: it then
 * travels with those bytes, which saves a segment.  Otherwise the ACK is sent at once, because an
 * upstream that speaks first may wait for it.  A PROXY header takes the ACK along in any case.
 * Returns 0, or the errno of a client that is gone.
 */
static int spare_an_ack(const struct session *s, int fd)
{
	char c;
	ssize_t n = tcp_recv(s->sides[CLIENT].fd, &c, 1, MSG_PEEK);

	if (n < 0 && errno != EAGAIN)
		return errno;
	if (n > 0 || s->forward->conf->proxy_protocol & PROXY_SEND)
		tcp_hold_ack(fd);
	return 0;
}

/*
 * --- attempts: number 0 in sides[UPSTREAM], others beside it in a race ---
 *
 * Attempts are closed with RST: the upstream may answer just now, and FIN would mean an empty,
 * complete stream.
 */

static struct source *source_of(struct session *s, unsigned int i)
{
	return i ? &s->connecting->attempts[i].source : &s->sides[UPSTREAM];
}

struct session *session_of_rival(struct source *source, unsigned int *ret_attempt)
{
	struct attempt *a = container_of(source, struct attempt, source);

	*ret_attempt = a->number;
	return a->session;
}

/*
 * Attempt I has won: its socket becomes the session's.  0; or errno, and its socket stays where it
 * was.
 */
static int take_winner(struct session *s, unsigned int i)
{
	struct source *source = source_of(s, i);
	int fd = source->fd, r;

	s->upstream = s->connecting->attempts[i].address;
	if (!i)
		return 0;
	r = loop_watch(&s->worker->loop, source, 0, false);
	if (r)
		return -r;
	source->fd = -1;
	tcp_close(&s->worker->loop, source_of(s, 0), true);
	s->sides[UPSTREAM].fd = fd;
	return 0;
}

/* S is connected: note it for the server and in the counters. */
static void note_success(struct session *s)
{
	struct forward_stats *fs = forward_stats(s->forward, s->worker->index);
	uint64_t took_us = (clock_ns() - s->connecting->began_ns) / 1000;

	histogram_add(&fs->connects, took_us);
	servers_connected(&s->forward->servers, s->server, took_us / 1000, s->worker->loop.now_ms);
	handshake_connected(s);
	if (s->connecting->begun > 1)
		atomic_store_explicit(&s->server->first, s->upstream, memory_order_relaxed);
}

/* The index of the address for the next attempt. */
static uint16_t next_index(const struct session *s)
{
	return (uint16_t)((s->connecting->first + s->connecting->begun) % s->addrs->n);
}

/* Begin attempt I, with its address.  0: it is connected; EINPROGRESS; or another errno. */
static int begin_attempt(struct session *s, unsigned int i)
{
	struct addr a = session_address(s, s->connecting->attempts[i].address);
	struct source *source = source_of(s, i);
	int fd = get_socket(s, &a), error;

	if (fd < 0)
		return -fd;
	if (addr_is_inet(&a)) {
		set_options(s, fd);
		error = spare_an_ack(s, fd);
		if (error) {
			close(fd);
			session_reset(s, tcp_cause(CLIENT, error));
			return EINPROGRESS;
		}
	}
	source->fd = fd;
	error = upstream_connect(fd, &a);
	if (!error)
		return take_winner(s, i);
	if (error == EINPROGRESS && i) /* number 0 is watched with the session's sides */
		return -loop_watch(&s->worker->loop, source, EPOLLOUT, true) ?: EINPROGRESS;
	return error;
}

/* S, which has no place, goes on with the forward that has replaced its own. */
static void follow_forward(struct session *s)
{
	struct connecting *c = s->connecting;
	struct forward *before = s->forward;

	s->forward = forward_follow(before, &s->port_offset);
	if (s->forward == before)
		return;
	s->tcp = session_peer(s)->sa.sa_family != AF_UNIX &&
		 !upstreams_are_unix(&s->forward->conf->upstream);
	/* its names may have no address yet */
	c->seen = 0;
	c->due_ms = s->worker->loop.now_ms + s->forward->conf->connect_timeout_ms;
}

/* S waits for a place, since SINCE_MS.  -ENOSPC: MOST wait already. */
static int wait_for_place(struct session *s, uint64_t since_ms, unsigned int most)
{
	struct connecting *c = s->connecting;

	c->waiter = malloc(sizeof(*c->waiter));
	if (!c->waiter)
		return -ENOSPC;
	*c->waiter = (struct waiter){ .session = s,
				      .to = &s->worker->woken,
				      .since_ms = since_ms,
				      .id = s->id,
				      .due_ms = since_ms + s->forward->conf->queue_timeout_ms };
	if (queue_wait(&s->forward->totals->queue, c->waiter, most))
		return 0;
	free(c->waiter);
	c->waiter = NULL;
	return -ENOSPC;
}

/* S waits no more, if it has. */
static void leave_queue(struct session *s)
{
	struct connecting *c = s->connecting;

	if (!c->waiter)
		return;
	queue_leave(&s->forward->totals->queue, c->waiter);
	free(c->waiter);
	c->waiter = NULL;
}

static int pick_server(struct session *s, struct server **ret, struct addr_list **ret_list)
{
	struct connecting *c = s->connecting;

	return servers_pick(&s->forward->servers, &s->client, c->tried, c->n_tried, c->waiter,
			    &c->seen, s->worker->loop.now_ms, ret, ret_list);
}

/*
 * Give S a server that it has not tried.  Returns as servers_pick(); -EBUSY: S waits for a place;
 * -ENOSPC: too many wait.
 */
static int choose_server(struct session *s)
{
	struct connecting *c = s->connecting;
	uint64_t now = s->worker->loop.now_ms, left;
	struct server *server;
	struct addr_list *list;
	int n;

	if (c->waiter)
		follow_forward(s);
	n = c->n_tried ? 0 : session_syn_choice(s->worker, s->forward, &server, &list);
	n = n ?: pick_server(s, &server, &list);
	if (n == -EBUSY && !c->waiter) {
		follow_forward(s);
		n = wait_for_place(s, now, s->forward->conf->queue);
		/* a place that became free before S waited has woken nobody */
		n = n ?: pick_server(s, &server, &list);
	}
	if (n <= 0)
		return n;
	if (c->waiter)
		c->due_ms = now + s->forward->conf->connect_timeout_ms;
	leave_queue(s);
	left = c->due_ms > now ? c->due_ms - now : 0;
	if (s->server)
		server_leave(s->server);
	addr_list_put(s->addrs);
	s->server = server;
	s->addrs = list;
	c->first = atomic_load_explicit(&server->first, memory_order_relaxed) % list->n;
	c->begun = 0;
	c->next_ms = 0;
	/* share the time among the servers, but give each a fifth of connect-timeout at least */
	c->server_due_ms = now + smaller(left, larger(left / (unsigned int)n,
						      s->forward->conf->connect_timeout_ms / 5));
	return n;
}

/*
 * S's server has failed, with ERROR.  False: S gets no other server, or this machine is at fault.
 */
static bool next_server(struct session *s, int error)
{
	struct connecting *c = s->connecting;
	enum cause cause = upstream_cause(error);
	struct server **tried;
	bool may_move;
	int r;

	if (cause == CAUSE_NO_SOCKET ||
	    tcp_cause_of_shortage(error, CAUSE_INTERNAL) != CAUSE_INTERNAL)
		return false;
	may_move = servers_refused(&s->forward->servers, s->server, error, &c->seen,
				   s->worker->loop.now_ms);
	if (s->worker->loop.now_ms >= c->due_ms)
		return false;
	tried = realloc(c->tried, (c->n_tried + 1) * sizeof(struct server *));
	if (!tried)
		return false;
	c->tried = tried;
	c->tried[c->n_tried++] = s->server;
	r = choose_server(s);
	if (r < 0 && may_move) {
		c->n_tried = 0;
		r = 0;
	}
	if (r == -EBUSY) { /* it waits for any of them, and one that has refused may be back */
		c->n_tried = 0;
		r = 0;
	}
	if (!r) { /* a look-up may still find an address, or a server get a place */
		server_leave(s->server);
		addr_list_put(s->addrs);
		s->server = NULL;
		s->addrs = NULL;
	}
	return r >= 0;
}

/* Attempt I has failed with ERROR. */
static void fail_attempt(struct session *s, unsigned int i, int error)
{
	struct connecting *c = s->connecting;
	uint16_t index = c->attempts[i].address;
	struct addr a = session_address(s, index);
	char text[ADDR_STRLEN];

	tcp_close(&s->worker->loop, source_of(s, i), true);
	c->running--;
	c->next_ms = 0;
	if (index == atomic_load_explicit(&s->server->first, memory_order_relaxed))
		atomic_store_explicit(&s->server->first, 0, memory_order_relaxed);
	if (c->begun < s->addrs->n || c->running)
		return;
	if (next_server(s, error)) /* which logs a server that is set aside */
		return;
	log_cause(upstream_cause(error), LOG_WARNING,
		  "session %llu, forward %s: cannot connect to %s: %s%s", (unsigned long long)s->id,
		  forward_name(s->forward->conf), addr_format(&a.sa, a.len, text, sizeof(text)),
		  strerror(error), error_hint(HINT_CONNECT, error));
	session_reset(s, upstream_cause(error));
}

static bool may_begin(const struct session *s)
{
	return s->addrs && s->connecting->begun < s->addrs->n && s->connecting->running < AT_ONCE;
}

/* Begin the attempts that are due.  True: S is connected. */
static bool connect_more(struct session *s)
{
	uint64_t now = s->worker->loop.now_ms;

	while (!s->ending && may_begin(s) && now >= s->connecting->next_ms) {
		struct connecting *c = s->connecting;
		unsigned int i = 0;
		int error;

		while (source_of(s, i)->fd >= 0) /* there is a place, see may_begin() */
			i++;
		s->upstream = next_index(s);
		c->attempts[i].address = s->upstream;
		error = begin_attempt(s, i);
		if ((error == ENOSR || error == EAGAIN ||
		     (c->running && (error == EMFILE || error == ENFILE))) &&
		    now < c->server_due_ms) {
			tcp_close(&s->worker->loop, source_of(s, i), true);
			c->next_ms = now + RETRY_MS;
			break;
		}
		c->begun++;
		c->running++;
		c->next_ms = now + HAPPY_DELAY_MS;
		if (!error) {
			note_success(s);
			return true;
		}
		if (error != EINPROGRESS)
			fail_attempt(s, i, error);
	}
	return false;
}

bool session_connect_answered(struct session *s, unsigned int i, uint32_t events)
{
	int error = 0;

	if (events & (EPOLLERR | EPOLLHUP))
		error = tcp_take_error(source_of(s, i)->fd);
	error = error ?: take_winner(s, i);
	if (!error) {
		note_success(s);
		return true;
	}
	fail_attempt(s, i, error);
	return connect_more(s);
}

/* --- a name without an address --- */

static void give_up(struct session *s, enum cause cause, const char *what, const char *why)
{
	log_cause(cause, LOG_WARNING, "session %llu, forward %s: upstream %s has no %s%s",
		  (unsigned long long)s->id, forward_name(s->forward->conf),
		  s->forward->conf->upstream.text, what, why);
	session_reset(s, cause);
}

/* Connects if there is a server; S is reset if there will be none. */
static bool connect_named(struct session *s)
{
	char why[SERVER_NAME_LEN + SERVER_ERROR_LEN + 2];
	struct lookup_record record;
	int r = choose_server(s);

	if (r == -EBUSY && s->worker->loop.now_ms < s->connecting->waiter->due_ms)
		return false;
	if (r == -EBUSY) {
		give_up(s, CAUSE_QUEUE_TIMEOUT, "server with a place within queue-timeout", "");
	} else if (r == -ENOSPC) {
		give_up(s, CAUSE_QUEUE_FULL, "server with a place, and its queue is full", "");
	} else if (r == -EHOSTDOWN) {
		servers_why(&s->forward->servers, why, sizeof(why));
		give_up(s, CAUSE_NO_SERVER, "server that can be used: ", why);
	} else if (r < 0 || (!r && s->worker->loop.now_ms >= s->connecting->due_ms)) {
		lookup_record(servers_first_name(&s->forward->servers), &record);
		give_up(s, CAUSE_NO_ADDRESS, "address: ",
			record.why[0] ? record.why :
					"its look-up did not end within connect-timeout");
	}
	return r > 0 && connect_more(s);
}

/* --- beginning and end --- */

bool session_connect_begin(struct session *s, void (*on_rival)(struct source *, uint32_t events))
{
	s->connecting = calloc(1, sizeof(*s->connecting));
	if (!s->connecting)
		return session_reset(s, CAUSE_NO_MEMORY);
	for (uint16_t i = 0; i < AT_ONCE; i++)
		s->connecting->attempts[i] = (struct attempt){
			.source = { .handle = on_rival, .fd = -1 }, .session = s, .number = i
		};
	s->connecting->due_ms = s->worker->loop.now_ms + s->forward->conf->connect_timeout_ms;
	s->connecting->began_ns = clock_ns();
	return true;
}

uint64_t session_connect_waits(const struct session *s)
{
	bool waits = s->state == SESSION_CONNECTING && s->connecting && s->connecting->waiter;

	return waits ? s->connecting->waiter->since_ms : 0;
}

void session_connect_wait(struct session *s, uint64_t since_ms)
{
	uint64_t now = s->worker->loop.now_ms;

	/* the limit was applied when it began to wait */
	wait_for_place(s, smaller(since_ms, now), UINT_MAX);
}

/* s->connecting is freed after the batch, whose events may still point to its sources. */
void session_connect_end(struct session *s)
{
	struct connecting *c = s->connecting;

	if (!c)
		return;
	for (unsigned int i = 1; i < AT_ONCE; i++)
		tcp_close(&s->worker->loop, source_of(s, i), true);
	free(c->tried);
	leave_queue(s);
	worker_free_later(s->worker, &c->leftover);
	s->connecting = NULL;
}

/* --- time --- */

bool session_connect_is_quiet(const struct session *s)
{
	return s->worker->loop.now_ms < s->born_ms + CONNECT_QUIET_MS;
}

uint64_t session_connect_due(struct session *s)
{
	struct connecting *c = s->connecting;
	uint64_t due = s->addrs ? c->server_due_ms :
				  smaller(c->due_ms, s->worker->loop.now_ms + NAMELESS_MS);

	/* the first one also finds what nobody has told, such as another limit */
	if (c->waiter)
		due = queue_is_first(&s->forward->totals->queue, c->waiter) ?
			      smaller(c->waiter->due_ms, s->worker->loop.now_ms + NAMELESS_MS) :
			      c->waiter->due_ms;
	if (may_begin(s))
		due = smaller(due, c->next_ms);
	if (session_connect_is_quiet(s))
		due = smaller(due, s->born_ms + CONNECT_QUIET_MS);
	return due;
}

bool session_connect_timer(struct session *s)
{
	struct connecting *c = s->connecting;

	if (!s->addrs)
		return connect_named(s);
	if (s->worker->loop.now_ms < c->server_due_ms)
		return connect_more(s);
	/* the next session goes on where this one ends */
	atomic_store_explicit(&s->server->first, next_index(s), memory_order_relaxed);
	for (unsigned int i = 0; !s->ending && i < AT_ONCE; i++)
		if (s->addrs && source_of(s, i)->fd >= 0) {
			c->begun = (uint16_t)s->addrs->n;
			fail_attempt(s, i, ETIMEDOUT);
		}
	c->next_ms = 0; /* an attempt that was put off has a last try */
	return connect_more(s);
}
