// SPDX-License-Identifier: BSD-2-Clause
#include "relay/given.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(
	SYSCALL(fcntl, SYSCALL_ARG(1, F_DUPFD_CLOEXEC))); /* for a forward that a reload adds */

static struct given_socket {
	int fd;
	char *name;       /* FileDescriptorName= of systemd.socket(5); owned */
	struct addr addr; /* that it is bound to */
	bool opened;
} *sockets;
static size_t n_sockets;

static int get_option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, level, name, &value, &len) ? -1 : value;
}

static bool takes_both_families(int fd, const struct addr *a)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->ss;

	return a->ss.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) &&
	       get_option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 0;
}

/* What makes FD useless, in words; NULL: nothing. */
static const char *why_useless(int fd, const struct addr *a)
{
	int protocol = get_option(fd, SOL_SOCKET, SO_PROTOCOL);

	if (get_option(fd, SOL_SOCKET, SO_TYPE) < 0)
		return "not a socket";
	if (get_option(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM)
		return "not a stream socket (ListenStream= makes one)";
	if (a->ss.ss_family != AF_UNIX && !addr_is_inet(a))
		return "neither TCP nor a unix socket";
	if (addr_is_inet(a) && protocol != IPPROTO_TCP)
		return "not TCP (SocketProtocol= must not be set)";
	if (get_option(fd, SOL_SOCKET, SO_ACCEPTCONN) <= 0)
		return "not listening (Accept=no is needed)";
	/* to culvert these are two addresses, which may even be those of two forwards */
	if (takes_both_families(fd, a))
		return "takes IPv4 clients, too (BindIPv6Only=ipv6-only is needed, and a "
		       "ListenStream= of its own for 0.0.0.0)";
	return NULL;
}

static int look_at(struct given_socket *s)
{
	s->addr.len = sizeof(s->addr.ss);
	if (getsockname(s->fd, (struct sockaddr *)&s->addr.ss, &s->addr.len) &&
	    errno != ENOTSOCK)
		return -errno;
	return 0;
}

/* Accepting must not block: another worker, or the client's own reset, may be quicker. */
static int make_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

static int take_one(struct given_socket *s, int fd, char *name, char *err, size_t errlen)
{
	const char *why;
	int r;

	*s = (struct given_socket){ .fd = fd, .name = name };
	r = look_at(s);
	why = r ? strerror(-r) : why_useless(fd, &s->addr);
	if (!why) {
		r = make_nonblocking(fd);
		if (!r)
			return 0;
		why = strerror(-r);
	}
	snprintf(err, errlen, "descriptor %d, \"%.64s\", which systemd has opened for culvert: %s",
		 fd, name, why);
	return r ?: -EINVAL;
}

int given_take(char *err, size_t errlen)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	if (n <= 0) {
		if (n < 0)
			snprintf(err, errlen, "the descriptors that systemd has opened for culvert "
				 "cannot be had: %s (are LISTEN_FDS and LISTEN_PID right?)",
				 strerror(-n));
		return n;
	}
	sockets = calloc((size_t)n, sizeof(*sockets));
	if (!sockets) {
		snprintf(err, errlen, "out of memory");
		r = -ENOMEM;
	}
	for (int i = 0; !r && i < n; i++) {
		r = take_one(&sockets[n_sockets++], SD_LISTEN_FDS_START + i, names[i], err,
			     errlen);
		names[i] = NULL;
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return r;
}

void given_close(void)
{
	for (size_t i = 0; i < n_sockets; i++) {
		close(sockets[i].fd);
		free(sockets[i].name);
	}
	free(sockets);
	sockets = NULL;
	n_sockets = 0;
}

int given_open(const struct addr *a)
{
	for (size_t i = 0; i < n_sockets; i++) {
		int fd;

		if (!addr_equal(&sockets[i].addr, a))
			continue;
		fd = fcntl(sockets[i].fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			return -errno;
		sockets[i].opened = true;
		return fd;
	}
	return -ENOENT;
}

int given_check(char *err, size_t errlen)
{
	char text[ADDR_STRLEN];

	for (size_t i = 0; i < n_sockets; i++) {
		const struct given_socket *s = &sockets[i];

		if (s->opened)
			continue;
		addr_format((const struct sockaddr *)&s->addr.ss, s->addr.len, text, sizeof(text));
		snprintf(err, errlen, "no forward listens on %s, which systemd has opened for "
			 "culvert (\"%.64s\"): \"listen\" and ListenStream= must say the same",
			 text, s->name);
		return -EINVAL;
	}
	return 0;
}
