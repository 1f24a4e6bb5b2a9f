// SPDX-License-Identifier: BSD-2-Clause
/*
 * The sink: each process has its own SO_REUSEPORT socket for every address, over which the kernel
 * spreads the connections.  All sockets are made before the first process, so a failure is known at
 * once, and no connection can meet a socket that nobody serves.
 */
#include "sink.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "datagram.h"
#include "peer.h"
#include "team.h"

#define BACKLOG 4096     /* or net.core.somaxconn */
#define ACCEPTS 64       /* per event */
#define BUFFER (1 << 20) /* of datagrams */
#define TICK_MS 100

struct sink_listener {
	struct source source;
	struct sink *sink;
};

struct sink_job {
	const struct options *o;
	int *fds; /* processes x addresses */
	size_t n_addresses;
	struct sink_tally *tallies; /* one a process, shared */
};

/* --- a process --- */

static void listen_again(struct sink *s, bool on)
{
	for (size_t i = 0; i < s->n_listeners; i++)
		loop_watch(&s->loop, &s->listeners[i].source, EPOLLIN, on);
}

/* Out of descriptors or memory.  Readiness would come at once, again and again. */
static void pause_accepting(struct sink *s, int error)
{
	if (!s->tally->pauses++)
		bench_say("sink: %u connections, cannot accept more for now: %s", s->n_peers,
			  strerror(error));
	s->full = true;
	listen_again(s, false);
}

static bool is_shortage(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
	       error == ENOSPC;
}

static void handle_listener(struct source *source, uint32_t events)
{
	struct sink *s = container_of(source, struct sink_listener, source)->sink;

	(void)events;
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int r = fd < 0 ? -errno : peer_open(s, fd);

		if (r == -EAGAIN)
			return;
		if (r && is_shortage(-r)) {
			pause_accepting(s, -r);
			return;
		}
		/* otherwise it is the connection that has failed: the next one */
	}
}

static void handle_datagrams(struct source *source, uint32_t events)
{
	(void)events;
	datagram_serve(source->fd, container_of(source, struct sink_listener, source)->sink->tally);
}

static void tick(struct timer *t)
{
	struct sink *s = container_of(t, struct sink, tick);

	if (s->full)
		listen_again(s, true);
	s->full = false;
	peer_expire(s, clock_ns());
	timer_set(&s->loop, &s->tick, s->loop.now_ms + TICK_MS);
}

static void hear_parent(struct source *source, uint32_t events)
{
	struct sink *s = container_of(source, struct sink, control);
	struct order o;

	(void)events;
	if (order_receive(source->fd, &o) != -EAGAIN)
		s->loop.stop = true;
}

static void after_batch(void *arg)
{
	peer_free_dead(arg);
}

static int sink_open(struct sink *s, const struct sink_job *job, unsigned int index, int control)
{
	int r;

	*s = (struct sink){
		.tally = &job->tallies[index],
		.tick = { .fire = tick },
		.control = { .handle = hear_parent, .fd = control },
	};
	peer_lists_open(s);
	s->buffer = malloc(PROTOCOL_TAIL + PATTERN_PIECE);
	s->listeners = calloc(job->n_addresses, sizeof(*s->listeners));
	r = loop_open(&s->loop, after_batch, s);
	if (r)
		return r;
	if (!s->buffer || !s->listeners)
		return -ENOMEM;
	for (size_t i = 0; i < job->n_addresses && !r; i++, s->n_listeners++) {
		struct sink_listener *l = &s->listeners[i];

		l->sink = s;
		l->source.fd = job->fds[index * job->n_addresses + i];
		l->source.handle = job->o->udp ? handle_datagrams : handle_listener;
		r = loop_watch(&s->loop, &l->source, EPOLLIN, true);
	}
	timer_set(&s->loop, &s->tick, s->loop.now_ms + TICK_MS);
	return r ?: loop_watch(&s->loop, &s->control, EPOLLIN, true);
}

static void sink_close(struct sink *s)
{
	peer_close_all(s);
	for (size_t i = 0; i < s->n_listeners; i++)
		close(s->listeners[i].source.fd);
	loop_close(&s->loop);
	free(s->listeners);
	free(s->buffer);
	close(s->control.fd);
}

static int sink_work(unsigned int index, int control, void *arg)
{
	const struct order ready = { .kind = ORDER_READY };
	const struct sink_job *job = arg;
	struct sink s;
	int r;

	for (size_t i = 0; i < job->o->processes * job->n_addresses; i++)
		if (i / job->n_addresses != index)
			close(job->fds[i]);
	r = sink_open(&s, job, index, control);
	if (!r) {
		order_send(control, &ready);
		r = loop_run(&s.loop);
	}
	if (r)
		bench_say("sink, process %u: %s", index + 1, strerror(-r));
	sink_close(&s);
	return r ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}

/* --- the parent --- */

/* SHARED: other processes of this sink will bind the same address; a stranger's must be refused. */
static int open_listener(const struct addr *a, bool shared, bool udp)
{
	const int one = 1, type = udp ? SOCK_DGRAM : SOCK_STREAM, buffer = BUFFER;
	int fd = socket(a->ss.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	if (udp) {
		setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one));
		setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	}
	if (shared)
		setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	/* accepted sockets inherit it */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (a->ss.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)&a->ss, a->len) || (!udp && listen(fd, BACKLOG))) {
		r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

/* The sockets of all processes for address A, number I.  A port that the kernel picks is one. */
static int open_address(struct sink_job *job, struct addr a, size_t i)
{
	char text[ADDR_STRLEN];

	for (unsigned int process = 0; process < job->o->processes; process++) {
		int fd = open_listener(&a, job->o->processes > 1, job->o->udp);

		if (fd < 0) {
			addr_format((struct sockaddr *)&a.ss, a.len, text, sizeof(text));
			bench_say("cannot listen on %s: %s", text, strerror(-fd));
			return fd;
		}
		job->fds[process * job->n_addresses + i] = fd;
		if (getsockname(fd, (struct sockaddr *)&a.ss, &a.len))
			return -errno;
	}
	addr_format((struct sockaddr *)&a.ss, a.len, text, sizeof(text));
	bench_say("listening on %s", text);
	return 0;
}

static int open_addresses(struct sink_job *job)
{
	const struct endpoints *e = &job->o->listen;
	size_t next = 0;
	int r = 0;

	for (size_t i = 0; i < e->n; i++)
		job->n_addresses += e->list[i].n_addrs;
	job->fds = calloc(job->n_addresses * job->o->processes ?: 1, sizeof(*job->fds));
	if (!job->fds)
		return -ENOMEM;
	for (size_t i = 0; i < e->n && !r; i++)
		for (size_t k = 0; k < e->list[i].n_addrs && !r; k++)
			r = open_address(job, e->list[i].addrs[k], next++);
	return r;
}

/* Until a signal, or until a process has ended by itself. */
static void attend(struct team *t, unsigned int processes)
{
	const struct order o = { .kind = ORDER_STOP };
	unsigned int ready = 0;
	int number;

	while (t->running == processes) {
		enum team_event event = team_next(t, &number);

		if (event == TEAM_SIGNAL)
			break;
		if (event == TEAM_READY && ++ready == processes)
			bench_say("ready");
	}
	if (t->running < processes)
		t->died = true;
	team_tell(t, &o);
	while (t->running && team_next(t, &number) != TEAM_SIGNAL)
		; /* a second signal does not wait */
}

static int serve(struct sink_job *job)
{
	unsigned int n = job->o->processes;
	struct sink_tally sum = { 0 };
	struct team team;
	bool died;
	int r;

	job->tallies = team_memory(n, sizeof(*job->tallies));
	if (!job->tallies)
		return -ENOMEM;
	r = team_start(&team, n, sink_work, job);
	if (!r) {
		for (size_t i = 0; i < n * job->n_addresses; i++)
			close(job->fds[i]);
		attend(&team, n);
		died = team.died;
		team_close(&team);
		for (unsigned int i = 0; i < n; i++)
			sink_tally_add(&sum, &job->tallies[i]);
		report_sink(&sum);
		r = died ? -ECHILD : 0;
	}
	munmap(job->tallies, n * sizeof(*job->tallies));
	return r;
}

int sink_run(const struct options *o)
{
	struct sink_job job = { .o = o };
	int r;

	raise_descriptor_limit();
	r = open_addresses(&job);
	if (!r) {
		r = serve(&job);
		if (r == -ECHILD)
			bench_say("sink: a process has died");
		else if (r)
			bench_say("sink: %s", strerror(-r));
	}
	free(job.fds);
	return r ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}
