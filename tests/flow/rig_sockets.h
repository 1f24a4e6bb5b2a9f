/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * Plain blocking sockets on both sides of a daemon: clients, and the upstream that they reach.
 * What goes wrong ends the test (cmocka's fail_msg()).  Those that nobody closes are closed by
 * rig_close_sockets().
 */
#include <err.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit/unit.h"
#include "peer.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

#define RIG_PATIENCE_MS 10000
#define RIG_UPSTREAM "127.0.0.1:9100" /* what rig_listen() listens on */
#define SOCKETS_MAX 256
#define MESSAGE 64

static int upstream_fd = -1;
static int sockets[SOCKETS_MAX];
static size_t n_sockets;

/* To be closed by rig_close_sockets(). */
static int keep(int fd)
{
	struct timeval patience = { .tv_sec = RIG_PATIENCE_MS / 1000 };
	int one = 1;

	assert_true(fd >= 0);
	assert_true(n_sockets < SOCKETS_MAX);
	sockets[n_sockets++] = fd;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void forget(int fd)
{
	for (size_t i = 0; i < n_sockets; i++)
		if (sockets[i] == fd)
			sockets[i] = sockets[--n_sockets];
	close(fd);
}

static void rig_reset(int fd)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	forget(fd);
}

/* All that keep() has, and what waits at RIG_UPSTREAM. */
static void rig_close_sockets(void)
{
	while (n_sockets)
		rig_reset(sockets[0]);
	net_drain_listener(upstream_fd);
}

/* Listen on RIG_UPSTREAM, for the whole program; exits with a message. */
static void rig_listen(void)
{
	upstream_fd = net_listen(RIG_UPSTREAM, 1000);
	if (upstream_fd < 0)
		errx(1, "%s: %s", RIG_UPSTREAM, strerror(-upstream_fd));
}

/* --- what is connected --- */

/*
 * A client from the local address FROM (NULL: any) to TO; the open connection, or -errno.  The
 * daemon may reset a connection before connect(2) returns and reports that; rig_end() tells it
 * then.
 */
static int rig_try_dial(const char *from, const char *to)
{
	struct sockaddr_storage a;
	socklen_t len;
	int fd, r;

	assert_int_equal(net_addr(to, &a, &len), 0);
	fd = keep(socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
	if (from) {
		struct sockaddr_storage own;
		socklen_t own_len;

		assert_int_equal(net_addr(from, &own, &own_len), 0);
		assert_int_equal(bind(fd, (struct sockaddr *)&own, own_len), 0);
	}
	if (!connect(fd, (struct sockaddr *)&a, len) || errno == ECONNRESET)
		return fd;
	r = -errno;
	forget(fd);
	return r;
}

/* The same; it must be open. */
static int rig_dial(const char *from, const char *to)
{
	int fd = rig_try_dial(from, to);

	if (fd < 0)
		fail_msg("%s: %s", to, strerror(-fd));
	return fd;
}

/* What culvert has connected to LISTENER next, within TIMEOUT_MS. */
static int rig_accept_at(int listener, int timeout_ms)
{
	struct pollfd p = { .fd = listener, .events = POLLIN };

	if (poll(&p, 1, timeout_ms) != 1)
		fail_msg("culvert has not connected to the upstream");
	return keep(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
}

/* The same at RIG_UPSTREAM. */
static int rig_accept(void)
{
	return rig_accept_at(upstream_fd, RIG_PATIENCE_MS);
}

/* One that culvert must not have made: nothing comes within 100 ms. */
static void rig_accept_none(void)
{
	struct pollfd p = { .fd = upstream_fd, .events = POLLIN };

	if (poll(&p, 1, 100))
		fail_msg("culvert has connected to the upstream");
}

/*
 * Close without a word, as a machine that loses power and is up again: what comes for it later is
 * answered by RST.  What it owes is acknowledged first, so nothing is sent to it again.
 */
static void rig_vanish(int fd)
{
	int one = 1;

	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(one)), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &one, sizeof(one)), 0);
	forget(fd);
}

static int rig_option(int fd, int level, int name)
{
	socklen_t len = sizeof(int);
	int value = -1;

	assert_int_equal(getsockopt(fd, level, name, &value, &len), 0);
	return value;
}

static void rig_send(int fd, const void *buf, size_t len)
{
	ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);

	if (n != (ssize_t)len)
		fail_msg("send of %zu: %zd, %s", len, n, strerror(errno));
}

static void rig_receive(int fd, void *buf, size_t len)
{
	ssize_t n = recv(fd, buf, len, MSG_WAITALL);

	if (n != (ssize_t)len)
		fail_msg("receive of %zu: %zd, %s", len, n, n < 0 ? strerror(errno) : "FIN");
}

/* FROM says what TO must hear. */
static void say(int from, int to, int number)
{
	char out[MESSAGE], in[MESSAGE];

	memset(out, 'a' + number % 26, sizeof(out));
	rig_send(from, out, sizeof(out));
	rig_receive(to, in, sizeof(in));
	assert_memory_equal(in, out, sizeof(out));
}

/* ROUNDS messages of 64 bytes, each with its answer. */
static void rig_talk(int client, int server, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		say(client, server, i);
		say(server, client, i + 1);
	}
}

/*
 * As much as FD takes, up to MOST bytes, in writes of up to EACH; the rest is given up when there
 * was no room for MS.
 */
static size_t rig_give(int fd, size_t each, size_t most, int ms)
{
	static const char zero[65536];
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	size_t given = 0;

	while (given < most && poll(&p, 1, ms) == 1) {
		size_t want = most - given < each ? most - given : each;
		ssize_t n = send(fd, zero, want, MSG_NOSIGNAL | MSG_DONTWAIT);

		assert_true(n > 0 || errno == EAGAIN);
		given += n > 0 ? (size_t)n : 0;
	}
	return given;
}

/* LEN bytes at DATA that go to FD while the test does something else. */
struct pouring {
	int fd;
	const char *data;
	size_t len;
	pthread_t thread;
};

static void *pour_all(void *arg)
{
	const struct pouring *p = arg;
	ssize_t n;

	/* after an error the reader will miss the rest */
	for (size_t done = 0; done < p->len; done += (size_t)n) {
		n = send(p->fd, p->data + done, p->len - done, MSG_NOSIGNAL);
		if (n <= 0)
			break;
	}
	return NULL;
}

/* The caller joins p->thread. */
static void start_pouring(struct pouring *p, int fd, const void *data, size_t len)
{
	*p = (struct pouring){ .fd = fd, .data = data, .len = len };
	assert_int_equal(pthread_create(&p->thread, NULL, pour_all, p), 0);
}

/* Read LEN bytes from FD, which must be those at DATA. */
static void drink(int fd, const void *data, size_t len)
{
	static char buf[256 << 10];

	for (size_t done = 0; done < len;) {
		ssize_t n = recv(fd, buf, len - done < sizeof(buf) ? len - done : sizeof(buf), 0);

		if (n <= 0)
			fail_msg("%zu of %zu bytes: %s", done, len, n ? strerror(errno) : "FIN");
		if (memcmp(buf, (const char *)data + done, (size_t)n) != 0)
			fail_msg("a wrong byte within %zd after %zu", n, done);
		done += (size_t)n;
	}
}

/*
 * The end of the stream: ECONNRESET, or 0 for FIN.  Nothing else may come, within TIMEOUT_MS.
 * After a connect(2) that has reported the reset the socket is no longer connected.
 */
static int rig_end(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;
	ssize_t n;

	if (poll(&p, 1, timeout_ms) != 1)
		fail_msg("the connection has not ended within %d ms", timeout_ms);
	n = recv(fd, &c, 1, 0);
	if (n > 0)
		fail_msg("a byte where the stream should have ended");
	if (n < 0)
		return errno == ENOTCONN ? ECONNRESET : errno;
	return 0;
}

#pragma GCC diagnostic pop
