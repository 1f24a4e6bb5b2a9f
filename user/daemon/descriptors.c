// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sandbox.h"
#include "datapath/pool.h"
#include "relay/socket_stock.h"

/* A session has two sockets, and two pipes while both its directions hold spliced bytes. */
#define SOCKETS_EACH 2UL
#define DESCRIPTORS_EACH (SOCKETS_EACH + 2 * 2)
/*
 * Beside those of sessions and forwards: maps, epoll, logs, the control socket's clients, forwards
 * that a reload adds; and idle pipes.
 */
#define OWN_DESCRIPTORS 256
#define SPARE_DESCRIPTORS 1024

int descriptors_reserve_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return log_complain(-EBADF, "/dev/null cannot be opened: %s",
					    strerror(errno));
	return 0;
}

/* A unix socket is shared by the workers.  A name has an address of each family, as a rule. */
static unsigned long listeners_of(const struct forward_conf *fc, unsigned int workers)
{
	unsigned long n = fc->listen.n_addrs ? 0 : 2UL * workers;

	for (size_t i = 0; i < fc->listen.n_addrs; i++)
		n += addr_is_inet(&fc->listen.addrs[i]) ? workers : 1;
	return n;
}

static unsigned long stock_of(const struct forward_conf *fc)
{
	const struct endpoint *up = &fc->upstream;
	bool in4 = false, in6 = false;

	for (size_t i = 0; i < up->n_addrs; i++) {
		in4 = in4 || up->addrs[i].ss.ss_family == AF_INET;
		in6 = in6 || up->addrs[i].ss.ss_family == AF_INET6;
	}
	if (!forward_needs_privileges(fc))
		return 0;
	if (up->named) /* it may have addresses of either family, by and by */
		return 2UL * SOCKET_STOCK;
	return SOCKET_STOCK * ((unsigned long)in4 + in6);
}

void descriptors_need(const struct config *c, unsigned long *ret_sockets, unsigned long *ret_all)
{
	unsigned long forwards = 0;

	for (size_t i = 0; i < c->n_forwards; i++)
		forwards += listeners_of(&c->forwards[i], c->workers) + stock_of(&c->forwards[i]);
	*ret_sockets = SOCKETS_EACH * c->max_sessions + forwards + OWN_DESCRIPTORS;
	*ret_all = DESCRIPTORS_EACH * c->max_sessions + forwards + SPARE_DESCRIPTORS;
}

void descriptors_limit(const struct config *c)
{
	unsigned long sockets, want, limit, pipes;

	descriptors_need(c, &sockets, &want);
	limit = sandbox_raise_nofile(want);
	pipes = limit / 4;
	if (limit > sockets && limit - sockets > pipes)
		pipes = limit - sockets;
	pipes = pipes / 2 < UINT_MAX ? pipes / 2 : UINT_MAX;
	pool_limit_pipes((unsigned int)pipes);
	if (limit < sockets)
		log_warning("only %lu descriptors: %u sessions need %lu, and %lu to splice both "
			    "ways: raise RLIMIT_NOFILE or lower --max-sessions", limit,
			    c->max_sessions, sockets, want);
	else if (limit < want)
		log_warning("only %lu descriptors: enough for %u sessions, but for %lu pipes only "
			    "(RLIMIT_NOFILE %lu gives each two); flows without a pipe are copied",
			    limit, c->max_sessions, pipes, want);
}
