// SPDX-License-Identifier: BSD-2-Clause
/*
 * The sink: each process has its own SO_REUSEPORT socket for every address, over which the kernel
 * spreads the connections.  All sockets are made before the first process, so a failure is known at
 * once, and no connection can meet a socket that nobody serves.
 */
#include "sink.h"

#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "datagram.h"
#include "peer.h"
#include "team.h"

#define BACKLOG 4096     /* or net.core.somaxconn */
#define ACCEPTS 64       /* per event */
#define BUFFER (1 << 20) /* of datagrams */

/* --- a process --- */

static void handle_listener(struct source *source, uint32_t events)
{
	struct sink *s = container_of(source, struct sink_listener, source)->sink;

	(void)events;
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int r = fd < 0 ? -errno : peer_open(s, fd);

		if (r == -EAGAIN)
			return;
		if (r && r != -ECONNABORTED) { /* out of descriptors or memory */
			s->error = r;
			s->loop.stop = true;
			return;
		}
	}
}

static void handle_datagrams(struct source *source, uint32_t events)
{
	(void)events;
	datagram_serve(source->fd, container_of(source, struct sink_listener, source)->sink->tally);
}

/* Ends by itself only if something fails. */
static int sink_work(unsigned int index, void *arg)
{
	struct sink *s = arg;
	size_t n = s->o->n_addresses;
	int r = loop_open(&s->loop, peer_free_closed, s);

	s->tally += index;
	for (size_t i = 0; i < n && !r; i++)
		r = loop_watch(&s->loop, &s->listeners[index * n + i].source, EPOLLIN, true);
	r = r ?: loop_run(&s->loop);
	warnx("sink, process %u: %s", index + 1, strerror(-(r ?: s->error)));
	return EXIT_CODE_FAILURE;
}

/* --- the parent --- */

/*
 * SHARED: other processes of this sink will bind the same address.  Else no two sockets may share
 * the address, so bind(2) fails if another program has it.
 */
static int open_listener(const struct addr *a, bool shared, bool udp)
{
	const int one = 1, type = udp ? SOCK_DGRAM : SOCK_STREAM, buffer = BUFFER;
	int fd = socket(a->ss.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
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
		close(fd);
		return -1;
	}
	return fd;
}

/* The sockets of all processes for address I.  All have the port that the kernel picks. */
static int open_address(struct sink *s, size_t i)
{
	bool udp = s->o->udp;
	struct addr a = s->o->addresses[i];
	char text[ADDR_STRLEN];

	for (unsigned int process = 0; process < s->o->processes; process++) {
		int fd = open_listener(&a, s->o->processes > 1, udp);

		if (fd < 0 || getsockname(fd, (struct sockaddr *)&a.ss, &a.len)) {
			warn("cannot listen on %s",
			     addr_format((struct sockaddr *)&a.ss, a.len, text, sizeof(text)));
			return -1;
		}
		s->listeners[process * s->o->n_addresses + i] = (struct sink_listener){
			.source = { .fd = fd, .handle = udp ? handle_datagrams : handle_listener },
			.sink = s,
		};
	}
	warnx("listening on %s", addr_format((struct sockaddr *)&a.ss, a.len, text, sizeof(text)));
	return 0;
}

int sink_run(const struct options *o)
{
	static struct sink s;
	struct sink_tally sum = { 0 };
	struct team team;
	int number, r;

	raise_descriptor_limit();
	s.o = o;
	s.listeners = calloc(o->processes * o->n_addresses, sizeof(*s.listeners));
	s.tally = team_memory(o->processes, sizeof(*s.tally));
	if (!s.listeners || !s.tally) {
		warnx("out of memory");
		return EXIT_CODE_FAILURE;
	}
	for (size_t i = 0; i < o->n_addresses; i++)
		if (open_address(&s, i))
			return EXIT_CODE_FAILURE;
	r = team_start(&team, o->processes, sink_work, &s);
	if (r) {
		warnx("sink: %s", strerror(-r));
		return EXIT_CODE_FAILURE;
	}
	warnx("ready");
	do
		number = team_next(&team);
	while (number == SIGCHLD && team.running == team.n);
	team_close(&team);
	for (unsigned int i = 0; i < o->processes; i++)
		sink_tally_add(&sum, &s.tally[i]);
	report_sink(&sum);
	if (number == SIGCHLD)
		warnx("sink: a process has died");
	return number == SIGCHLD ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}
