// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/icmp.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"
#include "datapath/udp.h"

SYSCALLS_ALLOWED(SYSCALL(sendmsg));

#define TOLD_MOST 1000U /* in a second */

/* Type and code as routers say it, in ICMP and ICMPv6. */
static const uint16_t said[][2] = {
	[ICMP_PORT_UNREACHABLE] = { 0x0303, 0x0104 },
	[ICMP_HOST_UNREACHABLE] = { 0x0301, 0x0103 },
	[ICMP_ADMIN_PROHIBITED] = { 0x030d, 0x0101 },
	[ICMP_TOO_BIG_FOR] = { 0x0304, 0x0200 },
};

static int sockets[2] = { -1, -1 }; /* IPv4, IPv6 */

/*
 * A raw socket would have a copy of each packet of ICMP: it takes none, and nobody can change that
 * any more.  It may send from any address, which is that of a `transparent` listener.
 */
static int open_one(int family, int protocol)
{
	int fd = socket(family, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
	int one = 1, none = 0;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &none, sizeof(none));
	socket_set_transparent(fd, family);
	if (!udp_block(fd, true) && !setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &one, sizeof(one)))
		return fd;
	close(fd);
	return -1;
}

void icmp_open(void)
{
	sockets[0] = open_one(AF_INET, IPPROTO_ICMP);
	sockets[1] = open_one(AF_INET6, IPPROTO_ICMPV6);
}

void icmp_close(void)
{
	for (int i = 0; i < 2; i++) {
		close(sockets[i]);
		sockets[i] = -1;
	}
}

static bool may_tell(void)
{
	static _Atomic uint64_t told; /* the second, and how often in it */
	uint64_t begin = clock_ns() / NS_PER_S << 32, old = atomic_load(&told), new;

	do {
		new = (old >= begin ? old : begin) + 1;
		if ((uint32_t) new > TOLD_MOST)
			return false;
	} while (!atomic_compare_exchange_weak(&told, &old, new));
	return true;
}

/* The checksum of N words. */
static uint32_t sum(const uint32_t *w, size_t n)
{
	uint64_t s = 0;

	while (n--)
		s += ntohl(w[n]);
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return ~(uint32_t)s & 0xffff;
}

/*
 * Fill W.  It quotes the begin of the datagram, by whose addresses and ports the receiver's kernel
 * finds the socket: the IP header and that of UDP.  How long the datagram was is not known, but that
 * it was longer than MTU.  Returns how many words there are.
 */
static size_t fill(uint32_t *w, const union client_addr *to, const union client_addr *from,
		   enum icmp_what what, uint32_t mtu)
{
	bool ipv6 = to->sa.sa_family == AF_INET6;
	uint32_t header = ipv6 ? 40 : 20;
	uint32_t len = (uint32_t)smaller(larger(header + 8, (uint64_t)mtu + 1), UINT16_MAX) -
		       header;
	uint32_t *udp = w + 2 + header / 4;

	w[0] = htonl((uint32_t)said[what][ipv6] << 16); /* the checksum comes later */
	w[1] = htonl((uint32_t)smaller(mtu, UINT16_MAX));
	if (ipv6) {
		w[2] = htonl(6U << 28);
		w[3] = htonl(len << 16 | IPPROTO_UDP << 8 | IPDEFTTL);
		memcpy(&w[4], &to->in6.sin6_addr, 16);
		memcpy(&w[8], &from->in6.sin6_addr, 16);
	} else {
		w[2] = htonl(0x45000000 | (header + len));
		w[3] = htonl(IP_DF);
		w[4] = htonl(IPDEFTTL << 24 | IPPROTO_UDP << 16);
		w[5] = to->in.sin_addr.s_addr;
		w[6] = from->in.sin_addr.s_addr;
	}
	udp[0] = htonl((uint32_t)ntohs(to->in.sin_port) << 16 | ntohs(from->in.sin_port));
	udp[1] = htonl(len << 16);
	if (!ipv6) { /* the kernel computes that of ICMPv6 */
		w[4] |= htonl(sum(w + 2, 5));
		w[0] |= htonl(sum(w, 9));
	}
	return 2 + header / 4 + 2;
}

void icmp_tell(const union client_addr *to, const union client_addr *from, unsigned int ifindex,
	       enum icmp_what what, uint32_t mtu)
{
	_Alignas(struct cmsghdr) uint8_t control[UDP_SOURCE_SPACE];
	bool ipv6 = to->sa.sa_family == AF_INET6;
	union client_addr name = *to;
	uint32_t words[14] = { 0 };
	struct iovec iov = { words, 0 };
	struct msghdr h = { &name, sizeof(name), &iov, 1, control, 0, 0 };

	if (sockets[ipv6] < 0 || from->sa.sa_family != to->sa.sa_family || !may_tell())
		return;
	name.in.sin_port = 0; /* raw IPv6 sockets take it for a protocol */
	if (ipv6 && IN6_IS_ADDR_LINKLOCAL(&name.in6.sin6_addr))
		name.in6.sin6_scope_id = ifindex;
	udp_add_source(&h, from, ifindex);
	iov.iov_len = fill(words, to, from, what, mtu) * sizeof(words[0]);
	(void)!sendmsg(sockets[ipv6], &h, MSG_DONTWAIT); /* it is as if the network had lost it */
}
