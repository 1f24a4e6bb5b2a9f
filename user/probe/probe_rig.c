// SPDX-License-Identifier: BSD-2-Clause
#include "probe/probe_rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"

/* A prime, so that no loss or repetition of a round number of bytes goes unseen. */
#define PATTERN_LEN 65521
/* Where in the pattern stream DOWN begins: bytes that come back are wrong bytes. */
#define PATTERN_DOWN 20011
#define SMALL_BUFFER (16 * 1024)
#define WIDE_BUFFER (4 * 1024 * 1024) /* or as far as rmem_max and wmem_max allow */
#define HALT_MS 5

bool rig_patience(const struct probe *p)
{
	usleep(100);
	return clock_ms() < p->deadline_ms;
}

void rig_note(struct probe *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->detail, sizeof(p->detail), fmt, ap);
	va_end(ap);
}

static const char *problem(int r)
{
	switch (r) {
	case -EILSEQ:
		return "a byte is wrong";
	case -EBADE:
		return "bytes cannot be accounted for";
	case -ENODATA:
		return "the stream ended too early";
	case -ETIMEDOUT:
		return "did not happen in time";
	case -EPROTO:
		return "not so";
	default:
		return strerror(-r);
	}
}

int rig_step(struct probe *p, int r, const char *what)
{
	if (r < 0)
		rig_note(p, "%s: %s", what, problem(r));
	return r;
}

int rig_same(struct probe *p, const char *what, uint64_t got, uint64_t want)
{
	if (got == want)
		return 0;
	rig_note(p, "%s: %llu instead of %llu", what, (unsigned long long)got,
		 (unsigned long long)want);
	return -EPROTO;
}

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

static unsigned char pattern_table[2 * PATTERN_LEN];

/* Called before there is a second thread. */
static void pattern_build(void)
{
	uint32_t x = 2463534242U;

	for (size_t i = 0; i < PATTERN_LEN; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		pattern_table[i] = pattern_table[PATTERN_LEN + i] = (unsigned char)(x >> 11);
	}
}

/* At least PATTERN_LEN bytes of a stream, from OFF on. */
static const unsigned char *pattern(unsigned int dir, uint64_t off)
{
	return pattern_table + (off + (dir == DOWN ? PATTERN_DOWN : 0)) % PATTERN_LEN;
}

/* --- sockets --- */

static void set_buffers(int snd, int rcv, int size)
{
	setsockopt(snd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(rcv, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

static int tcp_socket(bool small)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	int one = 1;

	if (fd < 0)
		return -errno;
	if (small)
		set_buffers(fd, fd, SMALL_BUFFER);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int listen_on_loopback(bool small, struct sockaddr_in *ret_addr)
{
	socklen_t len = sizeof(*ret_addr);
	int fd = tcp_socket(small), r;

	if (fd < 0)
		return fd;
	*ret_addr = (struct sockaddr_in){ .sin_family = AF_INET,
					  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (!bind(fd, (struct sockaddr *)ret_addr, sizeof(*ret_addr)) && !listen(fd, 1) &&
	    !getsockname(fd, (struct sockaddr *)ret_addr, &len))
		return fd;
	r = -errno;
	close(fd);
	return r;
}

static int wait_for(const struct probe *p, int fd, short events)
{
	struct pollfd pfd = { .fd = fd, .events = events };
	uint64_t now = clock_ms();

	if (now >= p->deadline_ms)
		return -ETIMEDOUT;
	return poll(&pfd, 1, (int)(p->deadline_ms - now)) < 0 && errno != EINTR ? -errno : 0;
}

static int connect_to(const struct probe *p, int fd, const struct sockaddr_in *addr)
{
	int r = 0, error = 0;
	socklen_t len = sizeof(error);

	if (!connect(fd, (const struct sockaddr *)addr, sizeof(*addr)))
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	r = wait_for(p, fd, POLLOUT);
	if (!r && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		r = -errno;
	return r ?: -error;
}

static int make_pair(struct probe *p, bool small, int *ret_conn, int *ret_acc)
{
	int r, listener, flags = SOCK_CLOEXEC | SOCK_NONBLOCK;
	struct sockaddr_in addr;

	listener = listen_on_loopback(small, &addr);
	if (listener < 0)
		return listener;
	r = *ret_conn = tcp_socket(small);
	if (r >= 0)
		r = connect_to(p, *ret_conn, &addr);
	r = r ?: wait_for(p, listener, POLLIN);
	if (!r) {
		*ret_acc = accept4(listener, NULL, NULL, flags);
		r = *ret_acc < 0 ? -errno : 0;
	}
	close(listener);
	return r;
}

int rig_open(struct probe *p, unsigned int flags)
{
	struct rig *g = &p->rig;
	int r;

	pattern_build();
	r = make_pair(p, flags & RIG_SMALL_A, &g->client, &g->a);
	r = r ?: make_pair(p, flags & RIG_SMALL_B, &g->b, &g->server);
	g->streams[UP].tx = g->client;
	g->streams[UP].rx = g->server;
	g->streams[DOWN].tx = g->server;
	g->streams[DOWN].rx = g->client;
	return rig_step(p, r, "TCP connections on 127.0.0.1");
}

int rig_pair(struct probe *p)
{
	int r = rig_step(p, kernel_pair_get(p->kernel, &p->rig.pair), "a pair of slots");

	for (unsigned int dir = 0; !r && dir < 2; dir++) {
		const volatile struct culvert_stat *st =
			kernel_stat(p->kernel, p->rig.pair * 2 + dir);

		p->rig.flows[dir].base_bytes = st->bytes;
		p->rig.flows[dir].base_dropped = (uint32_t)st->dropped;
	}
	return r;
}

int rig_admit(struct probe *p)
{
	struct rig *g = &p->rig;
	uint32_t slot;
	int r = rig_pair(p);

	if (r)
		return r;
	slot = g->pair * 2;
	r = kernel_admit(p->kernel, slot, g->a, &g->cookies[UP]);
	if (!r) {
		r = kernel_admit(p->kernel, slot + 1, g->b, &g->cookies[DOWN]);
		if (r)
			kernel_forget(p->kernel, slot, g->cookies[UP], false);
	}
	g->admitted = !r;
	return rig_step(p, r, "a connection into the map of redirect targets");
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void rig_close(struct probe *p)
{
	struct rig *g = &p->rig;

	for (unsigned int dir = 0; dir < 2; dir++)
		carrier_release(&g->flows[dir], &p->pool);
	close_fd(&g->client);
	close_fd(&g->a);
	close_fd(&g->b);
	close_fd(&g->server);
	for (unsigned int dir = 0; dir < 2 && g->admitted; dir++)
		kernel_forget(p->kernel, g->pair * 2 + dir, g->cookies[dir], true);
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

int rig_enter(struct probe *p, unsigned int dir)
{
	struct sockmap_io io = rig_io(p, dir);
	int r = sockmap_enter(&io, &p->limits, &p->policy, 0);

	if (r)
		return r;
	return step_error(sockmap_kick(&io), io.error);
}

static int until_done(struct probe *p, unsigned int dir, enum step (*fn)(struct sockmap_io *io))
{
	do {
		struct sockmap_io io = rig_io(p, dir);
		enum step step = fn(&io);
		int r = step_error(step, io.error);
		ssize_t n;

		if (r || step == STEP_DONE)
			return r;
		n = rig_pull_some(p, dir, SIZE_MAX);
		if (n < 0)
			return (int)n;
	} while (rig_patience(p));
	return -ETIMEDOUT;
}

int rig_leave(struct probe *p, unsigned int dir)
{
	return until_done(p, dir, sockmap_leave);
}

int rig_drain(struct probe *p, unsigned int dir)
{
	return until_done(p, dir, sockmap_drain);
}

int rig_finish(struct probe *p, unsigned int dir)
{
	return until_done(p, dir, sockmap_finish);
}

uint64_t rig_redirected(const struct probe *p, unsigned int dir)
{
	return sockmap_redirected(p->kernel, p->rig.pair * 2 + dir, &p->rig.flows[dir]);
}

/* --- streams --- */

ssize_t rig_push_some(struct probe *p, unsigned int dir, size_t most)
{
	struct stream *s = &p->rig.streams[dir];
	size_t done = 0;

	while (done < most) {
		size_t want = most - done < PATTERN_LEN ? most - done : PATTERN_LEN;
		ssize_t n = send(s->tx, pattern(dir, s->sent), want, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		done += (size_t)n;
		s->sent += (uint64_t)n;
	}
	return (ssize_t)done;
}

int rig_push(struct probe *p, unsigned int dir, size_t len)
{
	do {
		ssize_t n = rig_push_some(p, dir, len);

		if (n < 0)
			return (int)n;
		len -= (size_t)n;
	} while (len && rig_patience(p));
	return len ? -ETIMEDOUT : 0;
}

int rig_push_until_halt(struct probe *p, unsigned int dir, size_t len)
{
	uint64_t halt = clock_ms() + HALT_MS;

	do {
		ssize_t n = rig_push_some(p, dir, len);

		if (n < 0)
			return (int)n;
		len -= (size_t)n;
		if (n)
			halt = clock_ms() + HALT_MS;
	} while (len && clock_ms() < halt && rig_patience(p));
	return 0;
}

unsigned char rig_next_byte(const struct probe *p, unsigned int dir)
{
	return *pattern(dir, p->rig.streams[dir].sent);
}

ssize_t rig_pull_some(struct probe *p, unsigned int dir, size_t most)
{
	struct stream *s = &p->rig.streams[dir];
	unsigned char buf[16 * 1024];
	size_t done = 0;

	while (done < most) {
		size_t want = most - done < sizeof(buf) ? most - done : sizeof(buf);
		ssize_t n = recv(s->rx, buf, want, MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		if (!n)
			return done ? (ssize_t)done : -ENODATA;
		if (memcmp(buf, pattern(dir, s->got), (size_t)n))
			return -EILSEQ;
		done += (size_t)n;
		s->got += (uint64_t)n;
	}
	return (ssize_t)done;
}

int rig_pull(struct probe *p, unsigned int dir)
{
	struct stream *s = &p->rig.streams[dir];

	while (s->got < s->sent) {
		ssize_t n = rig_pull_some(p, dir, SIZE_MAX);
		int r = n < 0 ? (int)n : 0;

		if (!n)
			r = wait_for(p, s->rx, POLLIN);
		if (r)
			return r;
	}
	return s->got == s->sent ? 0 : -EILSEQ; /* more than was sent */
}

int rig_pull_eof(struct probe *p, int fd)
{
	char c;
	ssize_t n = -1;
	int r = RIG_WAIT(p, (n = recv(fd, &c, 1, MSG_DONTWAIT)) >= 0 || errno != EAGAIN);

	if (r)
		return r;
	if (n < 0)
		return -errno;
	return n ? -EILSEQ : 0;
}

int rig_await_fin(struct probe *p, int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLRDHUP };
	int r = wait_for(p, fd, POLLRDHUP);

	if (!r && poll(&pfd, 1, 0) < 0)
		r = -errno;
	return r ?: pfd.revents & POLLRDHUP ? 0 : -ETIMEDOUT;
}

/* --- together --- */

int rig_open_admitted(struct probe *p, unsigned int flags)
{
	return rig_open(p, flags) ?: rig_admit(p);
}

int rig_open_entered(struct probe *p, unsigned int flags)
{
	int r = rig_open_admitted(p, flags);

	r = r ?: rig_step(p, rig_enter(p, UP), "insertion");
	return r ?: rig_step(p, rig_enter(p, DOWN), "insertion of the other direction");
}

int rig_deliver(struct probe *p, unsigned int dir, size_t len, const char *what)
{
	int r = rig_push(p, dir, len);

	return rig_step(p, r ?: rig_pull(p, dir), what);
}
