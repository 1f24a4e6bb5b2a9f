// SPDX-License-Identifier: BSD-2-Clause
#include "relay/listen_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "datapath/tcp.h"
#include "relay/socket_options.h"

/* What it may have from before, and is to have no more. */
static int clear_options(int fd, const struct forward_conf *fc)
{
	int zero = 0;

	if (!fc->nodelay && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &zero, sizeof(zero)))
		return -errno;
	if (!fc->keepalive_s && setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &zero, sizeof(zero)))
		return -errno;
	return 0;
}

int listen_socket_set_options(int fd, const struct forward_conf *fc, const struct addr *a)
{
	if (!addr_is_inet(a))
		return 0;
	return clear_options(fd, fc) ?: tcp_set_session_options(fd, fc->nodelay, fc->keepalive_s);
}

static int set_listen_options(int fd, const struct forward_conf *fc, const struct addr *a)
{
	int one = 1, r = 0;

	if (!addr_is_inet(a))
		return 0;
	if (fc->transparent)
		r = socket_set_transparent(fd, a->ss.ss_family);
	if (r)
		return r;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)))
		return -errno;
	/* "[::]:80" beside "0.0.0.0:80" are two listeners, not one in two families */
	if (a->ss.ss_family == AF_INET6 &&
	    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)))
		return -errno;
	return listen_socket_set_options(fd, fc, a); /* inherited */
}

/* The file of a unix socket is open to all, like a port: its directory says who may reach it. */
static int bind_listener(int fd, const struct addr *a)
{
	mode_t mask = umask(0111);
	int r = bind(fd, (const struct sockaddr *)&a->ss, a->len) ? -errno : 0;

	umask(mask);
	return r;
}

int listen_socket_open(const struct forward_conf *fc, const struct addr *a, bool reuseport,
		       int *ret_fd)
{
	int one = 1, r = 0;
	int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	r = set_listen_options(fd, fc, a);
	if (!r && reuseport && addr_is_inet(a) &&
	    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)))
		r = -errno;
	r = r ?: bind_listener(fd, a);
	if (!r && listen(fd, LISTEN_BACKLOG))
		r = -errno;
	if (r) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

static void remove_stale(const struct addr *a)
{
	const struct sockaddr_un *un = (const struct sockaddr_un *)&a->ss;
	struct stat st;
	int fd;

	if (!un->sun_path[0] || lstat(un->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	if (connect(fd, (const struct sockaddr *)un, a->len) && errno == ECONNREFUSED)
		unlink(un->sun_path);
	close(fd);
}

int listen_socket_make_room(const struct forward_conf *fc, const struct addr *a)
{
	int fd = -1, r;

	if (!addr_is_inet(a)) {
		remove_stale(a);
		return 0;
	}
	r = listen_socket_open(fc, a, false, &fd);
	if (!r)
		close(fd);
	return r;
}

bool listen_socket_learn_port(struct addr *a, int fd)
{
	socklen_t len = sizeof(a->ss);

	return addr_takes_any_port(a) && !getsockname(fd, (struct sockaddr *)&a->ss, &len);
}

bool listen_socket_has_ipv6(void)
{
	static _Atomic int has; /* 0: not asked yet */
	int fd;

	if (has)
		return has > 0;
	fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	has = fd < 0 && errno == EAFNOSUPPORT ? -1 : 1;
	if (fd >= 0)
		close(fd);
	return has > 0;
}
