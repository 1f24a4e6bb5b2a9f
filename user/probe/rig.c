// SPDX-License-Identifier: BSD-2-Clause
/* A session and both its peers: sockets, flows and streams of known bytes; see rig.h. */
#include "probe/rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"

/* Where stream DOWN begins: bytes that come back are wrong bytes. */
#define DOWN_OFFSET 20011
#define SMALL_BUFFER (16 * 1024)
#define WIDE_BUFFER (4 * 1024 * 1024) /* or as far as rmem_max and wmem_max allow */
#define HALT_MS 5
/* A firewall may swallow what goes over loopback. */
#define CONNECT_S 4

/* --- streams of known bytes --- */

/* The first call is rig_connect()'s, before there is a second thread. */
const unsigned char *rig_pattern(uint64_t off)
{
	static unsigned char table[2 * RIG_PATTERN];
	static bool ready;
	uint32_t x = 2463534242U;

	if (ready)
		return table + off % RIG_PATTERN;
	for (size_t i = 0; i < RIG_PATTERN; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		table[i] = table[RIG_PATTERN + i] = (unsigned char)(x >> 11);
	}
	ready = true;
	return table + off % RIG_PATTERN;
}

ssize_t rig_send(int fd, uint64_t off, size_t len)
{
	size_t done = 0;

	while (done < len) {
		size_t want = len - done < RIG_PATTERN ? len - done : RIG_PATTERN;
		ssize_t n = send(fd, rig_pattern(off + done), want, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

ssize_t rig_receive(int fd, uint64_t off, size_t most)
{
	unsigned char buf[16 * 1024];
	size_t done = 0;

	while (done < most) {
		size_t want = most - done < sizeof(buf) ? most - done : sizeof(buf);
		ssize_t n = recv(fd, buf, want, MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		if (!n)
			return done ? (ssize_t)done : -ENODATA;
		if (memcmp(buf, rig_pattern(off + done), (size_t)n))
			return -EILSEQ;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* --- sockets --- */

int rig_lo_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	r = ioctl(fd, SIOCSIFFLAGS, &ifr) ? -errno : 0;
	close(fd);
	return r;
}

/*
 * The kernel tells in the column "press".  /proc/sys/net/ipv4/tcp_mem has the limits, but a service
 * may be shown no more of /proc than the directories of processes.
 */
bool rig_memory_short(void)
{
	FILE *f = fopen("/proc/self/net/protocols", "re");
	char line[256], name[32], pressure[8];
	bool is_short = false;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%31s %*s %*s %*s %7s", name, pressure) == 2 &&
		    !strcmp(name, "TCP"))
			is_short = !strcmp(pressure, "yes");
	if (f)
		fclose(f);
	return is_short;
}

static void set_buffers(int snd, int rcv, int size)
{
	setsockopt(snd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(rcv, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* A socket at loopback, on any port: not connected yet. */
static int new_socket(int family, bool small)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in v4 = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = CONNECT_S };
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)); /* of connect(2) */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)); /* of accept(2) */
	if (small)
		set_buffers(fd, fd, SMALL_BUFFER);
	if (fd >= 0 && (family == AF_INET6 ? bind(fd, (struct sockaddr *)&v6, sizeof(v6)) :
					     bind(fd, (struct sockaddr *)&v4, sizeof(v4))))
		close_fd(&fd);
	return fd;
}

int rig_connect(int family, bool small, int *ret_connected, int *ret_accepted)
{
	int listener = new_socket(family, small), conn = -1, acc = -1, r = 0;
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);

	rig_pattern(0);
	if (listener >= 0 && !listen(listener, 1) &&
	    !getsockname(listener, (struct sockaddr *)&addr, &len))
		conn = new_socket(family, small);
	if (conn >= 0 && !connect(conn, (struct sockaddr *)&addr, len) &&
	    !fcntl(conn, F_SETFL, O_NONBLOCK))
		acc = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (acc < 0) {
		r = -errno;
		close_fd(&conn);
	}
	close_fd(&listener);
	*ret_connected = conn;
	*ret_accepted = acc;
	return r;
}

/* --- steps --- */

void rig_note(struct probe *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->detail, sizeof(p->detail), fmt, ap);
	va_end(ap);
}

void rig_fail(struct probe *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->detail, sizeof(p->detail), fmt, ap);
	va_end(ap);
	longjmp(p->failed, 1);
}

static const char *problem(long r)
{
	switch (r) {
	case -EILSEQ:
		return "a byte is wrong";
	case -EBADE:
		return "bytes cannot be accounted for";
	case -ENODATA:
		return "the stream ended too early";
	case -EPROTO:
		return "not so";
	default:
		return strerror((int)-r);
	}
}

long rig_step(struct probe *p, long r, const char *what)
{
	if (r < 0)
		rig_fail(p, "%s: %s", what, problem(r));
	return r;
}

long rig_call(struct probe *p, long r, const char *what)
{
	return rig_step(p, r < 0 ? -errno : r, what);
}

void rig_same(struct probe *p, const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		rig_fail(p, "%s: %llu instead of %llu", what, (unsigned long long)got,
			 (unsigned long long)want);
}

void rig_patience(struct probe *p, const char *what)
{
	usleep(100);
	if (clock_ms() >= p->deadline_ms)
		rig_fail(p, "%s: did not happen in time", what);
}

static void wait_for(struct probe *p, int fd, short events, const char *what)
{
	struct pollfd pfd = { .fd = fd, .events = events };
	uint64_t now = clock_ms();

	if (now >= p->deadline_ms || !poll(&pfd, 1, (int)(p->deadline_ms - now)))
		rig_fail(p, "%s: did not happen in time", what);
}

/* --- a session --- */

static void set_nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void rig_open(struct probe *p, unsigned int flags)
{
	const char *what = "TCP connections on 127.0.0.1";
	struct rig *g = &p->rig;

	flags |= p->flags;
	rig_step(p, rig_connect(AF_INET, flags & RIG_SMALL_A, &g->client, &g->a), what);
	rig_step(p, rig_connect(AF_INET, flags & RIG_SMALL_B, &g->b, &g->server), what);
	set_nodelay(g->client);
	set_nodelay(g->a);
	set_nodelay(g->b);
	set_nodelay(g->server);
	g->streams[UP].tx = g->client;
	g->streams[UP].rx = g->server;
	g->streams[DOWN].tx = g->server;
	g->streams[DOWN].rx = g->client;
}

void rig_pair(struct probe *p)
{
	struct rig *g = &p->rig;

	rig_step(p, kernel_pair_get(p->kernel, &g->pair), "a pair of slots");
	g->has_pair = true;
	for (unsigned int dir = 0; dir < 2; dir++) {
		const volatile struct culvert_stat *st = kernel_stat(p->kernel, g->pair * 2 + dir);

		g->flows[dir].base_bytes = st->bytes;
		g->flows[dir].base_dropped = (uint32_t)st->dropped;
	}
}

void rig_open_admitted(struct probe *p, unsigned int flags)
{
	const char *what = "a connection into the map of redirect targets";
	struct rig *g = &p->rig;

	rig_open(p, flags);
	rig_pair(p);
	rig_step(p, kernel_admit(p->kernel, g->pair * 2, g->a), what);
	rig_step(p, kernel_admit(p->kernel, g->pair * 2 + 1, g->b), what);
	g->admitted = true;
}

void rig_open_entered(struct probe *p, unsigned int flags)
{
	rig_open_admitted(p, flags);
	rig_enter(p, UP);
	rig_enter(p, DOWN);
}

void rig_help(struct probe *p, void *(*fn)(void *arg), void *arg)
{
	rig_step(p, -pthread_create(&p->rig.helper, NULL, fn, arg), "a thread");
	p->rig.has_helper = true;
}

void rig_close(struct probe *p)
{
	struct rig *g = &p->rig;

	if (g->has_helper) {
		shutdown(g->client, SHUT_RDWR);
		pthread_join(g->helper, NULL);
	}
	for (unsigned int dir = 0; dir < 2; dir++)
		carrier_release(&g->flows[dir], &p->pool);
	close_fd(&g->client);
	close_fd(&g->a);
	close_fd(&g->b);
	close_fd(&g->server);
	for (unsigned int dir = 0; dir < 2 && g->admitted; dir++)
		kernel_forget(p->kernel, g->pair * 2 + dir, true);
	if (g->has_pair)
		kernel_pair_renew(p->kernel, g->pair);
	*g = (struct rig){ .client = -1, .a = -1, .b = -1, .server = -1 };
}

void rig_widen(struct probe *p, unsigned int dir, bool wide)
{
	const struct rig *g = &p->rig;
	int size = wide ? WIDE_BUFFER : SMALL_BUFFER;

	if (dir == UP)
		set_buffers(g->b, g->server, size);
	else
		set_buffers(g->a, g->client, size);
}

/* --- flows --- */

struct sockmap_io rig_io(struct probe *p, unsigned int dir)
{
	struct rig *g = &p->rig;

	return (struct sockmap_io){
		.flow = &g->flows[dir],
		.kernel = p->kernel,
		.pool = &p->pool,
		.src = dir == UP ? g->a : g->b,
		.dst = dir == UP ? g->b : g->a,
		.slot = g->pair * 2 + dir,
		.dst_connected = dir == UP,
		.read_ahead = (uint32_t)p->limits.hard_limit,
		.now_ms = clock_ms(),
	};
}

struct pump_io rig_pump(struct probe *p, unsigned int dir)
{
	struct rig *g = &p->rig;

	return (struct pump_io){
		.flow = &g->flows[dir],
		.pool = &p->pool,
		.src = dir == UP ? g->a : g->b,
		.dst = dir == UP ? g->b : g->a,
		.limit = UINT64_MAX,
	};
}

static int step_error(enum step step, int error)
{
	switch (step) {
	case STEP_UNPROVED:
		return -EBADE;
	case STEP_SRC_ERROR:
	case STEP_DST_ERROR:
		return error ? -error : -EIO;
	default:
		return 0;
	}
}

int rig_try_enter(struct probe *p, unsigned int dir)
{
	struct sockmap_io io = rig_io(p, dir);
	int r = sockmap_enter(&io, &p->limits, &p->policy, 0);

	return r ?: step_error(sockmap_kick(&io), io.error);
}

void rig_enter(struct probe *p, unsigned int dir)
{
	rig_step(p, rig_try_enter(p, dir), dir == UP ? "insertion" :
						       "insertion of the other direction");
}

void rig_until_done(struct probe *p, unsigned int dir, enum step (*fn)(struct sockmap_io *io),
		    const char *what)
{
	for (;;) {
		struct sockmap_io io = rig_io(p, dir);
		enum step step = fn(&io);

		rig_step(p, step_error(step, io.error), what);
		if (step == STEP_DONE)
			return;
		rig_pull_some(p, dir, SIZE_MAX);
		rig_patience(p, what);
	}
}

uint64_t rig_redirected(const struct probe *p, unsigned int dir)
{
	return sockmap_redirected(p->kernel, p->rig.pair * 2 + dir, &p->rig.flows[dir]);
}

/* --- streams --- */

static uint64_t offset(unsigned int dir, uint64_t at)
{
	return at + (dir == DOWN ? DOWN_OFFSET : 0);
}

size_t rig_push_some(struct probe *p, unsigned int dir, size_t most)
{
	struct stream *s = &p->rig.streams[dir];
	long n = rig_step(p, rig_send(s->tx, offset(dir, s->sent), most), "sending");

	s->sent += (uint64_t)n;
	return (size_t)n;
}

void rig_push(struct probe *p, unsigned int dir, size_t len)
{
	RIG_WAIT(p, !(len -= rig_push_some(p, dir, len)), "sending");
}

void rig_push_until_halt(struct probe *p, unsigned int dir, size_t len)
{
	uint64_t halt = clock_ms() + HALT_MS;

	while (len && clock_ms() < halt) {
		size_t n = rig_push_some(p, dir, len);

		len -= n;
		if (n)
			halt = clock_ms() + HALT_MS;
		rig_patience(p, "sending");
	}
}

void rig_push_fin(struct probe *p, unsigned int dir)
{
	rig_call(p, shutdown(p->rig.streams[dir].tx, SHUT_WR), "shutdown");
}

size_t rig_pull_some(struct probe *p, unsigned int dir, size_t most)
{
	struct stream *s = &p->rig.streams[dir];
	long n = rig_step(p, rig_receive(s->rx, offset(dir, s->got), most), "delivery");

	s->got += (uint64_t)n;
	return (size_t)n;
}

void rig_pull(struct probe *p, unsigned int dir, const char *what)
{
	struct stream *s = &p->rig.streams[dir];

	while (s->got < s->sent) {
		long n = rig_step(p, rig_receive(s->rx, offset(dir, s->got), SIZE_MAX), what);

		s->got += (uint64_t)n;
		if (!n)
			wait_for(p, s->rx, POLLIN, what);
	}
	rig_same(p, what, s->got, s->sent);
}

void rig_pull_eof(struct probe *p, int fd)
{
	char c;
	ssize_t n;

	RIG_WAIT(p, (n = recv(fd, &c, 1, MSG_DONTWAIT)) >= 0 || errno != EAGAIN, "end of file");
	rig_call(p, n, "end of file");
	rig_same(p, "bytes before the end of file", (uint64_t)n, 0);
}

void rig_deliver(struct probe *p, unsigned int dir, size_t len, const char *what)
{
	rig_push(p, dir, len);
	rig_pull(p, dir, what);
}

void rig_await_fin(struct probe *p, int fd)
{
	wait_for(p, fd, POLLRDHUP, "EPOLLRDHUP");
}
