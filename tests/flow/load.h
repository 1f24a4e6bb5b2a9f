/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * Sessions that come and go in threads of their own while a test changes something: none of them
 * may notice.  The upstream echoes.  Include after forward_rig.h.
 */
#include <pthread.h>
#include <stdatomic.h>

#define LOAD_CLIENTS_MAX 8
#define LOAD_MESSAGES 3 /* of a session that does not stay */
#define ECHOES_MAX 64

struct load_client {
	pthread_t id;
	bool stays;    /* one session until the end; else one after the other */
	char why[128]; /* "": all is well */
};

static struct load {
	const char *to;
	int listener; /* of the upstream */
	pthread_t echo;
	struct load_client clients[LOAD_CLIENTS_MAX];
	size_t n;
	atomic_bool stop, stop_echo; /* the echo last: sessions end in peace */
	atomic_ulong sessions;
} load;

static void *load_echo(void *arg)
{
	struct pollfd p[ECHOES_MAX] = { { .fd = load.listener, .events = POLLIN } };
	nfds_t n = 1;
	char buf[MESSAGE];

	(void)arg;
	while (!load.stop_echo) {
		if (poll(p, n, 50) <= 0)
			continue;
		for (nfds_t i = n - 1; i > 0; i--) {
			ssize_t got = p[i].revents ? recv(p[i].fd, buf, sizeof(buf), 0) : 1;

			if (p[i].revents &&
			    (got <= 0 || send(p[i].fd, buf, (size_t)got, MSG_NOSIGNAL) != got)) {
				close(p[i].fd);
				p[i] = p[--n];
			}
		}
		if (p[0].revents && n < ECHOES_MAX) {
			p[n] = (struct pollfd){ .events = POLLIN };
			p[n].fd = accept4(load.listener, NULL, NULL, SOCK_CLOEXEC);
			n += p[n].fd >= 0;
		}
	}
	while (n > 1)
		close(p[--n].fd);
	return NULL;
}

/* One message and its echo; else what went wrong. */
static const char *load_message(int fd, unsigned int number)
{
	char out[MESSAGE], in[MESSAGE];

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)(number * 31 + i);
	if (send(fd, out, sizeof(out), MSG_NOSIGNAL) != sizeof(out))
		return "send";
	if (recv(fd, in, sizeof(in), MSG_WAITALL) != sizeof(in))
		return "receive";
	return memcmp(in, out, sizeof(in)) ? "wrong bytes" : NULL;
}

static void load_session(struct load_client *c)
{
	struct timeval patience = { .tv_sec = RIG_PATIENCE_MS / 1000 };
	const char *failed = NULL;
	struct sockaddr_storage a;
	socklen_t len;
	int fd;
	char byte;

	net_addr(load.to, &a, &len);
	fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	errno = 0;
	if (connect(fd, (struct sockaddr *)&a, len))
		failed = "connect";
	for (unsigned int i = 0; !failed && (c->stays ? !load.stop : i < LOAD_MESSAGES); i++)
		failed = load_message(fd, i);
	if (!failed && (shutdown(fd, SHUT_WR) || recv(fd, &byte, 1, 0) != 0))
		failed = "end";
	if (failed)
		snprintf(c->why, sizeof(c->why), "%s: %s", failed, strerror(errno));
	close(fd);
	load.sessions++;
}

static void *load_client(void *arg)
{
	struct load_client *c = arg;

	while (!load.stop && !c->why[0])
		load_session(c);
	return NULL;
}

/*
 * Clients of TO, whose sessions come to LISTENER: STARTING of them open one session after another,
 * STAYING have one each.
 */
static void load_begin(const char *to, int listener, size_t starting, size_t staying)
{
	load = (struct load){ .to = to, .listener = listener, .n = starting + staying };
	assert_true(load.n <= LOAD_CLIENTS_MAX);
	assert_int_equal(pthread_create(&load.echo, NULL, load_echo, NULL), 0);
	for (size_t i = 0; i < load.n; i++) {
		load.clients[i].stays = i >= starting;
		assert_int_equal(pthread_create(&load.clients[i].id, NULL, load_client,
						&load.clients[i]),
				 0);
	}
}

/* All have ended as they should.  Returns how many sessions there were. */
static unsigned long load_end(void)
{
	for (int ms = 0; load.sessions <= load.n && ms < 10000; ms += 10) /* a busy machine */
		poll(NULL, 0, 10);
	load.stop = true;
	for (size_t i = 0; i < load.n; i++)
		pthread_join(load.clients[i].id, NULL);
	load.stop_echo = true;
	pthread_join(load.echo, NULL);
	for (size_t i = 0; i < load.n; i++)
		if (load.clients[i].why[0])
			fail_msg("client %zu: %s", i, load.clients[i].why);
	assert_true(load.sessions > load.n);
	return load.sessions;
}
