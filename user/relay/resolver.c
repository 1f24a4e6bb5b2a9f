// SPDX-License-Identifier: BSD-2-Clause
/* The daemon's end.  It does not trust what comes: the other end reads what name servers say. */
#include "relay/resolver.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/advice.h"
#include "daemon/syscall_filter.h"
#include "relay/resolver_process.h"

#define END_PATIENCE_MS 1000

SYSCALLS_NEEDED(
	SYSCALL(sendto),
	SYSCALL(recvfrom),
	SYSCALL(shutdown),
	SYSCALL(close));

/* Wait until the other end has given up its privileges; EOF if it ended before. */
static int await_hello(int fd, pid_t pid, char *err, size_t errlen)
{
	struct resolver_reply hello;
	ssize_t n;

	do
		n = recv(fd, &hello, sizeof(hello), 0);
	while (n < 0 && errno == EINTR);
	if (n == offsetof(struct resolver_reply, addrs) && !hello.error)
		return 0;
	snprintf(err, errlen, "cannot start the resolver: %.*s",
		 (int)sizeof(hello.why), n > 0 ? hello.why : "it has ended at once");
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return n > 0 && hello.error < 0 ? hello.error : -ECHILD;
}

int resolver_start(const struct account *a, enum filter_mode filter, int *ret_fd, char *err,
		   size_t errlen)
{
	/* for resolver_stop(), which may not set it any more; all else does not wait */
	struct timeval patience = { .tv_sec = END_PATIENCE_MS / 1000 };
	pid_t pid = -1;
	int ends[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		snprintf(err, errlen, "no socket for the resolver: %s", strerror(errno));
		return -errno;
	}
	pid = resolver_fork(a, filter, ends[1]);
	close(ends[1]);
	if (pid < 0)
		snprintf(err, errlen, "cannot start the resolver: %s%s", strerror(-pid),
			 advice_process(-pid));
	r = pid < 0 ? pid : await_hello(ends[0], pid, err, errlen);
	if (!r && setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience))) {
		r = -errno;
		snprintf(err, errlen, "no time-out for the resolver's socket: %s", strerror(-r));
	}
	if (r) {
		close(ends[0]);
		return r;
	}
	*ret_fd = ends[0];
	return 0;
}

int resolver_ask(int fd, const struct resolver_query *query)
{
	struct resolver_request q = { .id = query->id, .passive = query->passive,
				      .hung = query->hung };
	ssize_t n;

	snprintf(q.text, sizeof(q.text), "%s", query->text);
	do
		n = send(fd, &q, sizeof(q), MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static bool is_well_formed(const struct resolver_reply *p, size_t len)
{
	if (len < offsetof(struct resolver_reply, addrs) || p->n > RESOLVER_ADDRS_MAX ||
	    len != offsetof(struct resolver_reply, addrs) + p->n * sizeof(p->addrs[0]))
		return false;
	if (p->error > 0 || (p->error < 0) != (p->n == 0) || (!p->id && !p->error) ||
	    !memchr(p->why, 0, sizeof(p->why)))
		return false;
	for (size_t i = 0; i < p->n; i++)
		if (p->addrs[i].sa.sa_family != AF_INET && p->addrs[i].sa.sa_family != AF_INET6)
			return false;
	return true;
}

int resolver_read(int fd, struct resolver_reply *ret)
{
	ssize_t n;

	do
		n = recv(fd, ret, sizeof(*ret), MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? 0 : errno == ECONNRESET ? -ENOTCONN : -errno;
	if (n == 0)
		return -ENOTCONN;
	return is_well_formed(ret, (size_t)n) ? 1 : -EBADMSG;
}

/* Field by field: what is padding, or of no meaning here, is not taken over. */
void resolver_addrs(const struct resolver_reply *reply, struct addr *ret)
{
	for (size_t i = 0; i < reply->n; i++) {
		const union resolver_addr *a = &reply->addrs[i];

		memset(&ret[i], 0, sizeof(ret[i]));
		if (a->sa.sa_family == AF_INET) {
			struct sockaddr_in in = { .sin_family = AF_INET,
						  .sin_port = a->in.sin_port,
						  .sin_addr = a->in.sin_addr };

			memcpy(&ret[i].ss, &in, sizeof(in));
			ret[i].len = sizeof(in);
		} else {
			struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
						    .sin6_port = a->in6.sin6_port,
						    .sin6_addr = a->in6.sin6_addr,
						    .sin6_scope_id = a->in6.sin6_scope_id };

			memcpy(&ret[i].ss, &in6, sizeof(in6));
			ret[i].len = sizeof(in6);
		}
	}
}

void resolver_stop(int fd)
{
	struct resolver_reply last;
	ssize_t n;

	shutdown(fd, SHUT_WR);
	do
		n = recv(fd, &last, sizeof(last), 0);
	while (n > 0 || (n < 0 && errno == EINTR));
	close(fd);
}
