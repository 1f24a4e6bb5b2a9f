// SPDX-License-Identifier: BSD-2-Clause
#include "base/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"

/* if_nametoindex(3), when a configuration is read again */
SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_UNIX),
		   SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC)),
	SYSCALL_IF(PART_NAMES, ioctl, SYSCALL_ARG(1, SIOCGIFINDEX)));

#define PATH_OFFSET offsetof(struct sockaddr_un, sun_path)

int addr_parse_host(const char *text, struct addr *ret)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST,
					.ai_family = AF_INET6,
					.ai_socktype = SOCK_STREAM };
	struct addrinfo *found;

	*ret = (struct addr){ .len = sizeof(ret->in) };
	ret->in.sin_family = AF_INET;
	/* getaddrinfo() would take "127.1" */
	if (inet_pton(AF_INET, text, &ret->in.sin_addr) == 1)
		return 0;
	if (getaddrinfo(text, NULL, &hints, &found))
		return -EINVAL;
	ret->len = found->ai_addrlen;
	memcpy(&ret->ss, found->ai_addr, ret->len);
	freeaddrinfo(found);
	return 0;
}

static const char *format_unix(const struct sockaddr_un *un, socklen_t len, char *buf, size_t size)
{
	int n = len > PATH_OFFSET ? (int)(len - PATH_OFFSET) : 0;
	bool abstract = n > 0 && !un->sun_path[0];
	const char *begin = !n ? "(unnamed)" : abstract ? "@" : "";

	if (n > (int)sizeof(un->sun_path))
		n = sizeof(un->sun_path);
	snprintf(buf, size, "unix:%s%.*s", begin, n - abstract, un->sun_path + abstract);
	for (char *c = buf; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	return buf;
}

const char *addr_format(const struct sockaddr *sa, socklen_t len, char *buf, size_t size)
{
	sa_family_t family = len >= sizeof(sa->sa_family) ? sa->sa_family : AF_UNSPEC;
	const struct sockaddr_in *in = (const void *)sa;
	const struct sockaddr_in6 *in6 = (const void *)sa;
	char host[INET6_ADDRSTRLEN], scope[16] = "";

	if (family == AF_UNIX)
		return format_unix((const void *)sa, len, buf, size);
	if (family == AF_INET6 && len >= sizeof(*in6)) {
		inet_ntop(family, &in6->sin6_addr, host, sizeof(host));
		if (in6->sin6_scope_id)
			snprintf(scope, sizeof(scope), "%%%u", in6->sin6_scope_id);
		snprintf(buf, size, "[%s%s]:%u", host, scope, ntohs(in6->sin6_port));
	} else if (family == AF_INET && len >= sizeof(*in)) {
		inet_ntop(family, &in->sin_addr, host, sizeof(host));
		snprintf(buf, size, "%s:%u", host, ntohs(in->sin_port));
	} else {
		snprintf(buf, size, "?");
	}
	return buf;
}

bool addr_is_inet(const struct addr *a)
{
	return a->ss.ss_family == AF_INET || a->ss.ss_family == AF_INET6;
}

in_port_t addr_port(const struct addr *a)
{
	/* the port is at the same place in sockaddr_in6 */
	return addr_is_inet(a) ? a->in.sin_port : 0;
}

void addr_set_port(struct addr *a, in_port_t port)
{
	if (addr_is_inet(a))
		a->in.sin_port = port;
}

struct addr addr_plus_offset(const struct addr *a, uint16_t offset)
{
	struct addr behind = *a;

	addr_set_port(&behind, htons((uint16_t)(ntohs(addr_port(a)) + offset)));
	return behind;
}

bool addr_takes_any_port(const struct addr *a)
{
	return addr_is_inet(a) && !addr_port(a);
}

bool addr_equal(const struct addr *a, const struct addr *b)
{
	return a->len == b->len && memcmp(&a->ss, &b->ss, a->len) == 0;
}

bool addr_is_any(const struct addr *a)
{
	if (a->ss.ss_family == AF_INET)
		return a->in.sin_addr.s_addr == htonl(INADDR_ANY);
	return a->ss.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

static bool is_loopback(const struct addr *a)
{
	if (a->ss.ss_family == AF_INET)
		return ntohl(a->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return a->ss.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
}

struct addr addr_unmapped(const struct addr *a)
{
	struct addr ret = { .len = sizeof(ret.in) };

	if (a->ss.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
		return *a;
	ret.in.sin_family = AF_INET;
	ret.in.sin_port = a->in6.sin6_port;
	memcpy(&ret.in.sin_addr, &a->in6.sin6_addr.s6_addr[12], sizeof(ret.in.sin_addr));
	return ret;
}

/* connect(2) to 0.0.0.0 or [::] goes to loopback.  A mapped address is reached by IPv4. */
bool addr_leads_to(const struct addr *to, const struct addr *listener)
{
	struct addr a = addr_unmapped(to);

	if (a.ss.ss_family != listener->ss.ss_family || addr_port(&a) != addr_port(listener))
		return false;
	if (addr_is_any(&a))
		return addr_is_any(listener) || is_loopback(listener);
	return addr_equal(&a, listener) || (addr_is_any(listener) && is_loopback(&a));
}

int unix_remove_stale(const struct sockaddr_un *un, socklen_t len)
{
	struct stat st;
	int fd, r = 0;

	if (!un->sun_path[0])
		return 0;
	if (lstat(un->sun_path, &st))
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (!connect(fd, (const struct sockaddr *)un, len) || errno == EAGAIN)
		r = -EADDRINUSE;
	else if (errno == ECONNREFUSED)
		r = unlink(un->sun_path) ? -errno : 0;
	close(fd);
	return r;
}

void client_addr_set(union client_addr *a, const struct sockaddr *sa)
{
	memset(a, 0, sizeof(*a));
	if (sa->sa_family == AF_INET)
		memcpy(&a->in, sa, sizeof(a->in));
	else if (sa->sa_family == AF_INET6)
		memcpy(&a->in6, sa, sizeof(a->in6));
	else
		a->sa.sa_family = AF_UNIX;
}

bool client_addr_equal(const union client_addr *a, const union client_addr *b)
{
	/* both ports are at the same place */
	if (a->sa.sa_family != b->sa.sa_family || a->in.sin_port != b->in.sin_port)
		return false;
	if (a->sa.sa_family != AF_INET6)
		return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
	return IN6_ARE_ADDR_EQUAL(&a->in6.sin6_addr, &b->in6.sin6_addr) &&
	       a->in6.sin6_scope_id == b->in6.sin6_scope_id;
}

const char *client_addr_text(const union client_addr *a, char *buf, size_t size)
{
	if (a->sa.sa_family != AF_INET && a->sa.sa_family != AF_INET6)
		snprintf(buf, size, "unix:");
	else
		addr_format(&a->sa, sizeof(*a), buf, size);
	return buf;
}

bool addr_has_ipv6(void)
{
	static _Atomic int known; /* 1 or -1: a daemon that is confined cannot ask any more */

	if (!known) {
		int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

		known = fd < 0 && errno == EAFNOSUPPORT ? -1 : 1;
		if (fd >= 0)
			close(fd);
	}
	return known > 0;
}
