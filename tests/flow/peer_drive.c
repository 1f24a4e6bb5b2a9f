/* SPDX-License-Identifier: BSD-2-Clause */
/* A poll loop over peers, and the few socket calls that tests need beside them. */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "env.h"
#include "peer.h"

#define TICK_MS 10

int peers_round(struct peer **peers, size_t n, int64_t until, char *why, size_t len)
{
	struct pollfd *pfd = calloc(n + 1, sizeof(*pfd)); /* N may be 0 */
	int64_t now = now_ms();
	int running = 0;

	if (!pfd)
		err(1, "calloc");
	for (size_t i = 0; i < n && running >= 0; i++) {
		enum peer_result r = peer_run(peers[i], now);

		if (r != PEER_RUNNING && r != PEER_DONE) {
			peer_describe(peers[i], why, len);
			running = -1;
		} else {
			running += r == PEER_RUNNING;
		}
	}
	for (size_t i = 0; i < n && running > 0; i++) {
		int64_t wake = peer_wake(peers[i], now);

		/* Without an interest not even errors are polled for: they would spin. */
		pfd[i].events = peer_events(peers[i], now, &pfd[i].fd);
		if (!pfd[i].events)
			pfd[i].fd = -1;
		if (wake < until)
			until = wake;
	}
	if (running > 0)
		poll(pfd, n, until > now ? (int)(until - now) : 0);
	free(pfd);
	return running;
}

static int stalled(struct peer **peers, size_t n, char *why, size_t len)
{
	size_t at = 0;

	/* while both connections are open: their queues, and where the threads of daemons are */
	if (system("ss -tinaOe state established 1>&2; for p in $(pidof culvert); do "
		   "(cd /proc/$p/task && grep -s . */comm */syscall */stack); done 1>&2"))
		fprintf(stderr, "ss, or /proc: no answer\n");
	why[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		if (peers[i]->result != PEER_RUNNING)
			continue;
		peers[i]->result = PEER_STALLED;
		if (at + 1 < len) {
			snprintf(why + at, len - at, "%s", at ? " | " : "");
			at += strlen(why + at);
			peer_describe(peers[i], why + at, len - at);
			at += strlen(why + at);
		}
	}
	return -1;
}

/* When nothing has moved for TIMEOUT_MS.  How long all of it takes is the machine's affair. */
static int64_t stall_time(struct peer **peers, size_t n, int timeout_ms)
{
	int64_t last = 0;

	for (size_t i = 0; i < n; i++)
		if (peers[i]->last_progress > last)
			last = peers[i]->last_progress;
	return last + (int64_t)timeout_ms * env_slow();
}

int peers_run(struct peer **peers, size_t n, int timeout_ms, int (*tick)(void *), void *arg,
	      char *why, size_t len)
{
	int running;

	for (size_t i = 0; i < n; i++)
		peers[i]->last_progress = now_ms();
	do {
		int64_t now = now_ms(), until = stall_time(peers, n, timeout_ms);

		if (tick && tick(arg)) {
			snprintf(why, len, "ended by the test");
			running = -1;
			break;
		}
		if (tick && until > now + TICK_MS)
			until = now + TICK_MS;
		running = peers_round(peers, n, until, why, len);
		if (running > 0 && stall_time(peers, n, timeout_ms) <= now)
			running = stalled(peers, n, why, len);
	} while (running > 0);
	for (size_t i = 0; i < n; i++)
		peer_close(peers[i]);
	return running;
}

/* "unix:/path", "[::1]:80" or "127.0.0.1:80"; nothing else is needed here. */
int net_addr(const char *addr, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;
	struct sockaddr_in *in = (struct sockaddr_in *)ret;
	struct sockaddr_un *un = (struct sockaddr_un *)ret;
	char host[64];
	unsigned int port;

	memset(ret, 0, sizeof(*ret));
	if (!strncmp(addr, "unix:", 5)) {
		un->sun_family = AF_UNIX;
		if (strlen(addr + 5) >= sizeof(un->sun_path))
			return -EINVAL;
		strcpy(un->sun_path, addr + 5);
		*ret_len = sizeof(*un);
		return 0;
	}
	if (sscanf(addr, "[%63[^]]]:%u", host, &port) == 2) {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)port);
		*ret_len = sizeof(*in6);
		return inet_pton(AF_INET6, host, &in6->sin6_addr) == 1 ? 0 : -EINVAL;
	}
	if (sscanf(addr, "%63[^:]:%u", host, &port) != 2)
		return -EINVAL;
	in->sin_family = AF_INET;
	in->sin_port = htons((uint16_t)port);
	*ret_len = sizeof(*in);
	return inet_pton(AF_INET, host, &in->sin_addr) == 1 ? 0 : -EINVAL;
}

int peer_pair(struct peer *client, struct peer *server, const char *listen, int listen_fd,
	      uint64_t seed, uint64_t id)
{
	struct sockaddr_storage ss;
	socklen_t len = 0;
	int r;

	net_addr(listen, &ss, &len);
	r = peer_init(client, "client", (struct sockaddr *)&ss, len);
	peer_init(server, "server", NULL, 0);
	server->listen_fd = listen_fd;
	pattern_init(&client->tx, seed, id, PATTERN_TO_SERVER);
	pattern_init(&client->rx, seed, id, PATTERN_TO_CLIENT);
	server->rx = client->tx;
	server->tx = client->rx;
	return r;
}

int net_listen(const char *addr, int backlog)
{
	struct sockaddr_storage ss;
	socklen_t len;
	int one = 1, fd, r;

	r = net_addr(addr, &ss, &len);
	if (r < 0)
		return r;
	fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&ss, len) < 0 || listen(fd, backlog) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	if (ss.ss_family == AF_UNIX) /* the daemon is not root any more when it connects */
		chmod(((struct sockaddr_un *)&ss)->sun_path, 0777);
	return fd;
}

int net_black_hole(const char *addr)
{
	struct sockaddr_storage ss;
	socklen_t len = 0;
	int fd = net_listen(addr, 0);

	if (fd < 0)
		return fd;
	net_addr(addr, &ss, &len);
	for (int i = 0; i < 3; i++) {
		fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return -errno;
		if (connect(fd, (struct sockaddr *)&ss, len) && errno != EINPROGRESS)
			return -errno;
	}
	return 0;
}

int net_port(int fd, bool far)
{
	struct sockaddr_in sin = { 0 };
	socklen_t len = sizeof(sin);

	(far ? getpeername : getsockname)(fd, (struct sockaddr *)&sin, &len);
	return ntohs(sin.sin_port);
}

void net_drain_listener(int fd)
{
	int c;

	while ((c = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close(c);
}
