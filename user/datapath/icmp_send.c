// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/icmp_send.h"

#include <errno.h>
#include <netinet/ip.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"
#include "datapath/udp.h"

SYSCALLS_ALLOWED(SYSCALL(sendmsg));

#define TOLD_MOST 1000U /* in a second */

static int sockets[2] = { -1, -1 }; /* IPv4, IPv6 */

/*
 * A raw socket would get a copy of each ICMP packet: so its input is blocked.  The socket may send
 * from any address, for `transparent` listeners.
 */
static int open_one(int family, int protocol)
{
	int fd = socket(family, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);

	socket_set_transparent(fd, family);
	udp_block(fd);
	return fd;
}

void icmp_open(void)
{
	sockets[0] = open_one(AF_INET, IPPROTO_ICMP);
	sockets[1] = open_one(AF_INET6, IPPROTO_ICMPV6);
}

/* Two threads may both begin to count at the beginning of a second. */
static bool may_tell(void)
{
	static _Atomic uint64_t second;
	static _Atomic unsigned int told;
	uint64_t now = clock_ns() / NS_PER_S;

	if (atomic_exchange(&second, now) != now)
		atomic_store(&told, 0);
	return atomic_fetch_add(&told, 1) < TOLD_MOST;
}

/* The checksum of N words. */
static uint32_t checksum(const uint32_t *w, size_t n)
{
	uint64_t sum = 0;

	while (n--)
		sum += ntohl(w[n]);
	return 0xffff - (uint32_t)(sum % 0xffff);
}

/* Type and code as routers say it, in ICMP and ICMPv6. */
static uint32_t type_and_code(int error, bool ipv6)
{
	if (error == ECONNREFUSED)
		return ipv6 ? 0x0104 : 0x0303;
	if (error == EMSGSIZE)
		return ipv6 ? 0x0200 : 0x0304;
	return ipv6 ? 0x0103 : 0x0301; /* host unreachable */
}

/*
 * Fill W.  The error quotes the IP header and the UDP header of the datagram, by whose addresses
 * and ports the receiver's kernel finds the socket.  The datagram's length is not known: the
 * largest is quoted.  Returns the number of words.
 */
static size_t fill(uint32_t *w, const union client_addr *to, const union client_addr *from,
		   int error, uint32_t mtu)
{
	bool ipv6 = to->sa.sa_family == AF_INET6;
	uint32_t *ip = w + 2, *udp = ip + (ipv6 ? 10 : 5);

	w[0] = htonl(type_and_code(error, ipv6) << 16); /* the checksum comes later */
	w[1] = htonl((uint32_t)smaller(mtu, UINT16_MAX));
	udp[0] = htonl((uint32_t)ntohs(to->in.sin_port) << 16 | ntohs(from->in.sin_port));
	udp[1] = htonl((UINT16_MAX - (ipv6 ? 0U : 20U)) << 16);
	if (ipv6) { /* the kernel computes the ICMPv6 checksum */
		ip[0] = htonl(6U << 28);
		ip[1] = htonl((uint32_t)UINT16_MAX << 16 | IPPROTO_UDP << 8 | IPDEFTTL);
		memcpy(&ip[2], &to->in6.sin6_addr, 16);
		memcpy(&ip[6], &from->in6.sin6_addr, 16);
	} else {
		ip[0] = htonl(0x45000000 | UINT16_MAX);
		ip[1] = htonl(IP_DF);
		ip[2] = htonl(IPDEFTTL << 24 | IPPROTO_UDP << 16);
		ip[3] = to->in.sin_addr.s_addr;
		ip[4] = from->in.sin_addr.s_addr;
		ip[2] |= htonl(checksum(ip, 5));
		w[0] |= htonl(checksum(w, 9));
	}
	return (size_t)(udp + 2 - w);
}

void icmp_tell(const union client_addr *to, const union client_addr *from, int error, uint32_t mtu)
{
	_Alignas(struct cmsghdr) uint8_t control[UDP_SOURCE_SPACE];
	int fd = sockets[to->sa.sa_family == AF_INET6];
	union client_addr name = *to;
	uint32_t words[14] = { 0 };
	struct iovec iov = { words, 0 };
	struct msghdr h = { &name, sizeof(name), &iov, 1, control, 0, 0 };

	if (fd < 0 || from->sa.sa_family != to->sa.sa_family || !may_tell())
		return;
	name.in.sin_port = 0; /* raw IPv6 sockets take it for a protocol */
	udp_add_source(&h, from);
	iov.iov_len = fill(words, to, from, error, mtu) * sizeof(words[0]);
	(void)!sendmsg(fd, &h, MSG_DONTWAIT); /* it is as if the network had lost it */
}
