// SPDX-License-Identifier: BSD-2-Clause
#include "relay/socket_options.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(
	SYSCALL_IF(PART_SOURCE, bind),
	SYSCALL_IF(PART_SOURCE, setsockopt, SYSCALL_ARG(1, SOL_SOCKET),
		   SYSCALL_ARG(2, SO_BINDTODEVICE)),
	SYSCALL_IF(PART_SOURCE, setsockopt, SYSCALL_ARG(1, IPPROTO_IP),
		   SYSCALL_ARG(2, IP_BIND_ADDRESS_NO_PORT)),
	/* to clear it: it takes a capability to set it */
	SYSCALL_IF(PART_PRIVILEGED, setsockopt, SYSCALL_ARG(1, IPPROTO_IP),
		   SYSCALL_ARG(2, IP_TRANSPARENT)),
	SYSCALL_IF(PART_PRIVILEGED, setsockopt, SYSCALL_ARG(1, IPPROTO_IPV6),
		   SYSCALL_ARG(2, IPV6_TRANSPARENT)));

int socket_set_mark(int fd, unsigned int mark)
{
	return setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) ? -errno : 0;
}

static int set_transparent(int fd, int family, int on)
{
	int r = family == AF_INET6 ?
			setsockopt(fd, IPPROTO_IPV6, IPV6_TRANSPARENT, &on, sizeof(on)) :
			setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof(on));

	return r ? -errno : 0;
}

int socket_set_transparent(int fd, int family)
{
	return set_transparent(fd, family, 1);
}

int socket_clear_transparent(int fd, int family)
{
	return set_transparent(fd, family, 0);
}

int socket_bind_interface(int fd, const char *name)
{
	return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name) + 1) ?
		       -errno : 0;
}

int socket_bind_source(int fd, const struct sockaddr *source, socklen_t len)
{
	struct sockaddr_storage ss = { 0 };
	int one = 1;

	if (len > sizeof(ss))
		return -EINVAL;
	memcpy(&ss, source, len);
	((struct sockaddr_in *)&ss)->sin_port = 0; /* at the same place in sockaddr_in6 */
	/* of IPv6 sockets too */
	if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)))
		return -errno;
	return bind(fd, (struct sockaddr *)&ss, len) ? -errno : 0;
}
