// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_connect.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_needed.h"
#include "base/advice.h"
#include "datapath/tcp.h"
#include "config/config.h"
#include "relay/session_flow.h"
#include "relay/session_header.h"
#include "relay/session_name.h"
#include "relay/upstream_socket.h"

/*
 * A connect that could not even begin (no descriptor, full unix backlog) is tried again this soon.
 */
#define RETRY_MS 20
/*
 * While the upstream is silent for longer than this, the client is watched for RST.  Most upstreams
 * answer sooner, and then the client is given to epoll once, with what is really wanted of it.
 */
#define CONNECT_QUIET_MS 20

SYSCALLS_NEEDED(
	SYSCALL(close),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_ERROR)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_DEFER_ACCEPT)));

static enum cause connect_cause(int error)
{
	switch (error) {
	case ECONNREFUSED:
	case ENOENT:
		return CAUSE_CONNECT_REFUSED;
	case ETIMEDOUT:
		return CAUSE_CONNECT_TIMEOUT;
	case UPSTREAM_SOCKET_LACKS:
		return CAUSE_NO_SOCKET;
	case EMFILE:
	case ENFILE:
		return CAUSE_NO_DESCRIPTOR;
	case ENOMEM:
	case ENOBUFS:
		return CAUSE_NO_MEMORY;
	case ENETUNREACH:
	case EHOSTUNREACH:
		return CAUSE_CONNECT_UNREACHABLE;
	default:
		return CAUSE_CONNECT_FAILED;
	}
}

/* Accepted sockets inherit theirs from the listener. */
static void set_options(struct session *s, int fd)
{
	const struct forward_conf *fc = forward_of(s);
	int r = tcp_set_session_options(fd, false, fc->keepalive_s);

	s->nodelay_due = fc->nodelay;
	if (r)
		log_limited(LOG_WARNING, "session %llu: no keepalive for the upstream: %s",
			    (unsigned long long)s->id, strerror(-r));
}

/*
 * A client that has spoken already will have its bytes sent as soon as the upstream answers, so the
 * ACK of the handshake can travel with them: one segment less.  tcp_rcv_synsent_state_process()
 * holds it back, for 200 ms at most, when it finds TCP_DEFER_ACCEPT on a socket that connects.
 * Where the upstream speaks first this must not be done: it would wait for that ACK.  An upstream
 * that is sent a PROXY header gets the ACK with that, whoever speaks first.  Returns 0, or the
 * errno of a client that is gone.
 */
static int spare_an_ack(const struct session *s, int fd)
{
	int seconds = 1;
	char c;
	ssize_t n = tcp_peek(s->sides[CLIENT].fd, &c, 1, 0);

	if (n < 0 && errno != EAGAIN)
		return errno;
	if (n > 0 || forward_of(s)->proxy_protocol & PROXY_SEND)
		setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds));
	return 0;
}

/* --- attempts: number 0 in sides[UPSTREAM], others beside it in a race --- */

/* One that runs beside the first. */
struct attempt {
	struct source source; /* fd -1: none */
	struct session *session;
	uint64_t due_ms;
	uint16_t address;
};

#define RIVALS (HAPPY_AT_ONCE - 1)

struct connect_race {
	struct attempt rivals[RIVALS];
};

static unsigned int n_places(const struct session *s)
{
	return s->connecting->race ? HAPPY_AT_ONCE : 1;
}

static struct source *source_of(struct session *s, unsigned int i)
{
	return i ? &s->connecting->race->rivals[i - 1].source : &s->sides[UPSTREAM];
}

static uint64_t *due_of(struct session *s, unsigned int i)
{
	return i ? &s->connecting->race->rivals[i - 1].due_ms : &s->connecting->due_ms;
}

static uint16_t *address_of(struct session *s, unsigned int i)
{
	return i ? &s->connecting->race->rivals[i - 1].address : &s->upstream;
}

/* Number 0 may also wait for a descriptor, or, when it has won, for memory to send its header. */
static bool is_running(const struct session *s, unsigned int i)
{
	return i ? s->connecting->race->rivals[i - 1].source.fd >= 0 :
		   s->sides[UPSTREAM].fd >= 0 || s->connecting->retry_ms;
}

static void on_rival(struct source *source, uint32_t events)
{
	struct attempt *a = (struct attempt *)((char *)source - offsetof(struct attempt, source));
	struct session *s = a->session;

	session_connect_answered(s, 1 + (unsigned int)(a - s->connecting->race->rivals), events);
	session_update(s);
}

/*
 * A place for one more; RIVALS + 1 at most are asked for.  Number 0 while it is free, so a session
 * has a race only if attempts overlap.  -1: no memory.
 */
static int free_place(struct session *s)
{
	unsigned int i = 0;

	if (!is_running(s, 0))
		return 0;
	if (!s->connecting->race) {
		s->connecting->race = calloc(1, sizeof(*s->connecting->race));
		if (!s->connecting->race)
			return -1;
		for (unsigned int k = 0; k < RIVALS; k++)
			s->connecting->race->rivals[k] = (struct attempt){
				.source = { .handle = on_rival, .fd = -1 }, .session = s
			};
	}
	while (is_running(s, i))
		i++;
	return (int)i;
}

/*
 * With RST, if it is connected already: it may answer just now, and a FIN would tell it of an empty
 * stream that was complete.
 */
static void close_attempt(struct session *s, unsigned int i)
{
	struct source *source = source_of(s, i);

	if (!i)
		s->connecting->retry_ms = s->header_out = 0;
	if (source->fd < 0)
		return;
	session_arm_reset(source->fd);
	source->registered = false; /* close(2) takes it out of epoll: see close_side() in session.c */
	close(source->fd);
	source->fd = -1;
}

/* Give up all attempts but number 0. */
static void end_race(struct session *s)
{
	if (!s->connecting->race)
		return;
	for (unsigned int i = 1; i < HAPPY_AT_ONCE; i++)
		close_attempt(s, i);
}

int session_connect_expect(struct session *s)
{
	s->connecting = calloc(1, sizeof(*s->connecting));
	return s->connecting ? 0 : -ENOMEM;
}

void session_connect_forget(struct session *s)
{
	free(s->connecting);
	s->connecting = NULL;
}

/* Events of this batch may still point to its sources: it is freed when the batch is over. */
void session_connect_end(struct session *s)
{
	struct connecting *c = s->connecting;

	if (!c)
		return;
	session_name_forget(s);
	end_race(s);
	c->next = s->worker->connected;
	s->worker->connected = c;
	s->connecting = NULL;
}

void session_connect_reap(struct worker *w)
{
	while (w->connected) {
		struct connecting *c = w->connected;

		w->connected = c->next;
		free(c->race);
		free(c);
	}
}

/* Attempt I has won: its socket becomes the session's.  0, or -errno: it stays what it was. */
static int take_winner(struct session *s, unsigned int i)
{
	struct source *source = source_of(s, i);
	int fd = source->fd, r;

	if (!i)
		return 0;
	r = loop_watch(&s->worker->loop, source, 0, false);
	if (r)
		return r;
	s->upstream = *address_of(s, i);
	source->fd = -1;
	close_attempt(s, 0);
	s->sides[UPSTREAM].fd = fd;
	return 0;
}

/* ERROR: what is lacking here; no word of the upstream. */
static void retry_later(struct session *s, int error)
{
	count_add(&s->worker->stats.errors[connect_cause(error)], 1);
	s->connecting->retry_ms = s->worker->loop.now_ms + RETRY_MS;
	s->connecting->lacks = error;
}

/* Most clients have spoken by now: to look at once saves a round through epoll. */
static void connected(struct session *s)
{
	s->connecting->retry_ms = 0;
	end_race(s);
	happy_won(&s->connecting->happy);
	if (s->connecting->happy.begun > 1)
		upstream_prefer(&s->forward->upstream, &s->addrs->addrs[s->upstream],
				s->worker->loop.now_ms);
	if (!session_header_send(s)) {
		if (s->state == SESSION_CONNECTING)
			retry_later(s, ENOMEM);
		return;
	}
	session_connect_end(s);
	session_set_state(s, SESSION_OPEN);
	session_flows_start(s);
	if (s->state == SESSION_OPEN)
		session_flow_run(s, CLIENT, false);
}

static int open_socket(struct session *s, const struct addr *a)
{
	return upstream_socket(forward_of(s), s->forward->stock, &s->client.sa, a);
}

/*
 * A socket for an attempt: descriptor or -errno; -EAGAIN: not now.  The spare descriptor and
 * another try are for the only attempt of a session: a rival gives way.  AGAIN: this is another
 * try.
 */
static int attempt_socket(struct session *s, bool again, const struct addr *a)
{
	bool alone = s->connecting->happy.running == 1, full;
	uint64_t now = s->worker->loop.now_ms;
	int fd = open_socket(s, a);

	if ((fd == -EMFILE || fd == -ENFILE) && alone && worker_spend_spare(s->worker))
		fd = open_socket(s, a);
	full = fd == -EMFILE || fd == -ENFILE;
	if (fd >= 0 || (!full && fd != -EAGAIN && fd != -ENOMEM && fd != -ENOBUFS))
		return fd;
	/* idle pipes are the only descriptors that can be spared */
	if (fd != -EAGAIN)
		pool_trim(&s->worker->pool);
	if (alone || again)
		retry_later(s, fd == -EAGAIN ? UPSTREAM_SOCKET_LACKS : -fd);
	else
		happy_put_back(&s->connecting->happy, fd == -EAGAIN ? now + RETRY_MS : UINT64_MAX);
	return -EAGAIN;
}

/*
 * Begin attempt I with its address.  0: under way, done, or to be tried again; else errno.
 */
static int attempt_begin(struct session *s, unsigned int i)
{
	const struct addr *a = &s->addrs->addrs[*address_of(s, i)];
	struct source *side = source_of(s, i);
	bool again = !i && s->connecting->retry_ms;
	int fd, r, error;

	if (!i)
		s->connecting->retry_ms = s->connecting->lacks = 0;
	fd = attempt_socket(s, again, a);
	if (fd < 0)
		return fd == -EAGAIN ? 0 : -fd;
	if (addr_is_inet(a)) {
		set_options(s, fd);
		r = spare_an_ack(s, fd);
		if (r) {
			close(fd);
			session_reset(s, session_cause(CLIENT, r));
			return 0;
		}
	}
	side->fd = fd;
	error = upstream_socket_connect(fd, a);
	if (!error) {
		r = take_winner(s, i);
		if (!r)
			connected(s);
		return -r;
	}
	if (error == EINPROGRESS)
		/* number 0 is watched by session_update() */
		return i ? -loop_watch(&s->worker->loop, side, EPOLLOUT, true) : 0;
	if (error == EAGAIN && !addr_is_inet(a)) { /* the listener's backlog is full */
		close_attempt(s, i);
		s->connecting->retry_ms = s->worker->loop.now_ms + RETRY_MS;
		return 0;
	}
	return error;
}

/* Attempt I has failed with ERROR. */
static void attempt_failed(struct session *s, unsigned int i, int error)
{
	const struct addr *a = &s->addrs->addrs[*address_of(s, i)];
	char text[ADDR_STRLEN];

	close_attempt(s, i);
	happy_failed(&s->connecting->happy);
	upstream_avoid(&s->forward->upstream, a);
	log_limited(LOG_WARNING, "session %llu, forward %s: cannot connect to %s: %s%s",
		    (unsigned long long)s->id, forward_name(forward_of(s)),
		    addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text)),
		    upstream_socket_error(error), advice_connect(error));
	if (!happy_is_over(&s->connecting->happy))
		return;
	s->upstream = *address_of(s, i); /* for the session log */
	upstream_failed(&s->forward->upstream, s->worker->loop.now_ms);
	session_reset(s, connect_cause(error));
}

/* Begin what is due. */
static void connect_more(struct session *s)
{
	uint64_t now = s->worker->loop.now_ms;
	unsigned int address;

	while (s->state == SESSION_CONNECTING && happy_next(&s->connecting->happy, now, &address)) {
		int i = free_place(s), error;

		happy_begin(&s->connecting->happy, now);
		if (i < 0) {
			happy_put_back(&s->connecting->happy, UINT64_MAX);
			return;
		}
		*address_of(s, (unsigned int)i) = (uint16_t)address;
		*due_of(s, (unsigned int)i) = now + forward_of(s)->connect_timeout_ms;
		error = attempt_begin(s, (unsigned int)i);
		if (error)
			attempt_failed(s, (unsigned int)i, error);
	}
}

void session_connect_answered(struct session *s, unsigned int i, uint32_t events)
{
	socklen_t len = sizeof(int);
	int error = 0;

	if (s->state != SESSION_CONNECTING)
		return;
	if (events & (EPOLLERR | EPOLLHUP) &&
	    getsockopt(source_of(s, i)->fd, SOL_SOCKET, SO_ERROR, &error, &len))
		error = errno;
	error = error ?: -take_winner(s, i);
	if (!error) {
		connected(s);
		return;
	}
	attempt_failed(s, i, error);
	connect_more(s);
}

/* --- beginning --- */

/* At once, if the upstream's name has addresses. */
static void begin(struct session *s)
{
	if (!session_name_found(s))
		return;
	happy_open(&s->connecting->happy, s->addrs->n,
		   upstream_first(&s->forward->upstream, s->addrs, s->worker->loop.now_ms));
	connect_more(s);
}

void session_connect(struct session *s)
{
	s->connecting->due_ms = s->worker->loop.now_ms + forward_of(s)->connect_timeout_ms;
	session_name_expect(s);
	begin(s);
}

static void look_again(struct session *s)
{
	begin(s);
	session_update(s);
}

void session_connect_news(struct worker *w)
{
	session_name_news(w, look_again);
}

/* --- time --- */

bool session_connect_is_quiet(const struct session *s)
{
	return s->worker->loop.now_ms < s->born_ms + CONNECT_QUIET_MS;
}

uint64_t session_connect_due(struct session *s)
{
	struct connecting *c = s->connecting;
	uint64_t due = session_is_nameless(s) ? c->due_ms : happy_due(&c->happy);

	for (unsigned int i = 0; i < n_places(s); i++)
		if (is_running(s, i) && *due_of(s, i) < due)
			due = *due_of(s, i);
	if (c->retry_ms && c->retry_ms < due)
		due = c->retry_ms;
	if (session_connect_is_quiet(s) && s->born_ms + CONNECT_QUIET_MS < due)
		due = s->born_ms + CONNECT_QUIET_MS;
	return due;
}

void session_connect_timer(struct session *s)
{
	uint64_t now = s->worker->loop.now_ms;
	int error;

	if (session_is_nameless(s)) {
		if (now >= s->connecting->due_ms)
			session_name_give_up(s);
		return;
	}
	for (unsigned int i = 0; s->state == SESSION_CONNECTING && i < n_places(s); i++)
		if (is_running(s, i) && now >= *due_of(s, i))
			attempt_failed(s, i, (!i && s->connecting->lacks) ?
						     s->connecting->lacks : ETIMEDOUT);
	if (s->state == SESSION_CONNECTING && s->connecting->retry_ms &&
	    now >= s->connecting->retry_ms) {
		if (s->sides[UPSTREAM].fd >= 0) {
			connected(s);
			return;
		}
		error = attempt_begin(s, 0);
		if (error)
			attempt_failed(s, 0, error);
	}
	connect_more(s);
}
