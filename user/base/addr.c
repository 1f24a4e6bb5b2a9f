// SPDX-License-Identifier: BSD-2-Clause
#include "base/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/syscalls_needed.h"

/* if_nametoindex(3), when a configuration is read again */
SYSCALLS_NEEDED(
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_UNIX),
		   SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC)),
	SYSCALL_IF(PART_NAMES, ioctl, SYSCALL_ARG(1, SIOCGIFINDEX)));

#define PATH_OFFSET offsetof(struct sockaddr_un, sun_path)
#define PATH_ROOM sizeof(((struct sockaddr_un *)0)->sun_path)
#define HOST_ROOM 128 /* more than an address and the name of an interface can need */
#define DIGITS "0123456789"

/* Without brackets; the scope is cut off.  False: it is none. */
static bool parse_inet6(char *host, struct sockaddr_in6 *ret)
{
	char *scope = strchr(host, '%');

	*ret = (struct sockaddr_in6){ .sin6_family = AF_INET6 };
	if (scope) {
		*scope++ = '\0';
		ret->sin6_scope_id = *scope && !scope[strspn(scope, DIGITS)] ?
					     (uint32_t)strtoul(scope, NULL, 10) :
					     if_nametoindex(scope);
		if (!ret->sin6_scope_id)
			return false;
	}
	return inet_pton(AF_INET6, host, &ret->sin6_addr) == 1;
}

int addr_parse_host(const char *text, struct addr *ret)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	size_t len = strlen(text);
	char host[HOST_ROOM];
	struct sockaddr_in6 in6;

	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, text, &in.sin_addr) == 1) {
		memcpy(&ret->ss, &in, sizeof(in));
		ret->len = sizeof(in);
		return 0;
	}
	if (len >= sizeof(host))
		return -EINVAL;
	strcpy(host, text);
	if (len > 1 && host[0] == '[' && host[len - 1] == ']') {
		memmove(host, host + 1, len - 2);
		host[len - 2] = '\0';
	}
	if (!parse_inet6(host, &in6))
		return -EINVAL;
	memcpy(&ret->ss, &in6, sizeof(in6));
	ret->len = sizeof(in6);
	return 0;
}

static const char *format_unix(const struct sockaddr_un *un, socklen_t len, char *buf, size_t size)
{
	size_t n = len > PATH_OFFSET ? len - PATH_OFFSET : 0;
	char path[PATH_ROOM + 1];

	if (n > PATH_ROOM)
		n = PATH_ROOM;
	if (n > 0 && un->sun_path[0])
		n = strnlen(un->sun_path, n);
	for (size_t i = 0; i < n; i++) {
		char c = un->sun_path[i];

		path[i] = (char)(c >= 0x20 && c < 0x7f ? c : '?');
	}
	path[n] = '\0';
	if (n > 0 && !un->sun_path[0])
		path[0] = '@';
	snprintf(buf, size, "unix:%s", n > 0 ? path : "(unnamed)");
	return buf;
}

static const char *format_inet6(const struct sockaddr_in6 *in6, char *buf, size_t size)
{
	char host[INET6_ADDRSTRLEN], scope[16] = "";

	inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
	if (in6->sin6_scope_id)
		snprintf(scope, sizeof(scope), "%%%u", in6->sin6_scope_id);
	snprintf(buf, size, "[%s%s]:%u", host, scope, ntohs(in6->sin6_port));
	return buf;
}

const char *addr_format(const struct sockaddr *sa, socklen_t len, char *buf, size_t size)
{
	char host[INET_ADDRSTRLEN];

	if (len >= sizeof(sa->sa_family)) {
		const struct sockaddr_in *in = (const void *)sa;

		if (sa->sa_family == AF_UNIX)
			return format_unix((const void *)sa, len, buf, size);
		if (sa->sa_family == AF_INET6 && len >= sizeof(struct sockaddr_in6))
			return format_inet6((const void *)sa, buf, size);
		if (sa->sa_family == AF_INET && len >= sizeof(*in)) {
			inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
			snprintf(buf, size, "%s:%u", host, ntohs(in->sin_port));
			return buf;
		}
	}
	snprintf(buf, size, "?");
	return buf;
}

bool addr_is_inet(const struct addr *a)
{
	return a->ss.ss_family == AF_INET || a->ss.ss_family == AF_INET6;
}

in_port_t addr_port(const struct addr *a)
{
	/* the port is at the same place in sockaddr_in6 */
	return addr_is_inet(a) ? ((const struct sockaddr_in *)&a->ss)->sin_port : 0;
}

void addr_set_port(struct addr *a, in_port_t port)
{
	if (addr_is_inet(a))
		((struct sockaddr_in *)&a->ss)->sin_port = port;
}

bool addr_takes_any_port(const struct addr *a)
{
	return addr_is_inet(a) && !addr_port(a);
}

bool addr_equal(const struct addr *a, const struct addr *b)
{
	return a->len == b->len && memcmp(&a->ss, &b->ss, a->len) == 0;
}

/* --- where connections come to --- */

static const struct sockaddr_in *inet_of(const struct addr *a)
{
	return (const struct sockaddr_in *)&a->ss;
}

static const struct sockaddr_in6 *inet6_of(const struct addr *a)
{
	return (const struct sockaddr_in6 *)&a->ss;
}

bool addr_is_any(const struct addr *a)
{
	if (a->ss.ss_family == AF_INET)
		return inet_of(a)->sin_addr.s_addr == htonl(INADDR_ANY);
	return a->ss.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&inet6_of(a)->sin6_addr);
}

static bool is_loopback(const struct addr *a)
{
	if (a->ss.ss_family == AF_INET)
		return ntohl(inet_of(a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return a->ss.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&inet6_of(a)->sin6_addr);
}

struct addr addr_unmapped(const struct addr *a)
{
	struct sockaddr_in6 in6 = *inet6_of(a);
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = in6.sin6_port };
	struct addr ret = { .len = sizeof(in) };

	if (a->ss.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
		return *a;
	memcpy(&in.sin_addr, &in6.sin6_addr.s6_addr[12], sizeof(in.sin_addr));
	memcpy(&ret.ss, &in, sizeof(in));
	return ret;
}

/* Where the kernel connects to: no address is one of loopback, and mapped ones are IPv4. */
static struct addr destination(const struct addr *to)
{
	struct addr a = addr_unmapped(to);
	struct sockaddr_in6 in6 = *inet6_of(&a);
	struct sockaddr_in in = *inet_of(&a);

	if (a.ss.ss_family == AF_INET6 && addr_is_any(&a)) {
		in6.sin6_addr = in6addr_loopback;
		memcpy(&a.ss, &in6, sizeof(in6));
	}
	if (a.ss.ss_family == AF_INET && addr_is_any(&a)) {
		in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		memcpy(&a.ss, &in, sizeof(in));
	}
	return a;
}

bool addr_leads_to(const struct addr *to, const struct addr *listener)
{
	struct addr a;

	if (!addr_is_inet(to) || !addr_is_inet(listener))
		return addr_equal(to, listener);
	a = destination(to);
	if (addr_equal(&a, listener))
		return true;
	return a.ss.ss_family == listener->ss.ss_family && addr_is_any(listener) &&
	       is_loopback(&a) && addr_port(&a) == addr_port(listener);
}

static socklen_t length_of(const union client_addr *a)
{
	if (a->sa.sa_family == AF_INET)
		return sizeof(a->in);
	return a->sa.sa_family == AF_INET6 ? sizeof(a->in6) : sizeof(a->sa.sa_family);
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

struct addr client_addr_get(const union client_addr *a)
{
	struct addr addr = { .len = length_of(a) };

	memcpy(&addr.ss, a, addr.len);
	return addr;
}

const char *client_addr_text(const union client_addr *a, char *buf, size_t size)
{
	if (a->sa.sa_family != AF_INET && a->sa.sa_family != AF_INET6)
		snprintf(buf, size, "unix:");
	else
		addr_format(&a->sa, length_of(a), buf, size);
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
