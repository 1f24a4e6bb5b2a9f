// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/icmp.h"

#include <linux/icmpv6.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
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

/* As routers say it, by enum icmp_what. */
static const struct {
	uint8_t type, code, type6, code6;
} said[] = {
	[ICMP_PORT_UNREACHABLE] = { ICMP_DEST_UNREACH, ICMP_PORT_UNREACH, ICMPV6_DEST_UNREACH,
				    ICMPV6_PORT_UNREACH },
	[ICMP_HOST_UNREACHABLE] = { ICMP_DEST_UNREACH, ICMP_HOST_UNREACH, ICMPV6_DEST_UNREACH,
				    ICMPV6_ADDR_UNREACH },
	[ICMP_ADMIN_PROHIBITED] = { ICMP_DEST_UNREACH, ICMP_PKT_FILTERED, ICMPV6_DEST_UNREACH,
				    ICMPV6_ADM_PROHIBITED },
	[ICMP_TOO_BIG_FOR] = { ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED, ICMPV6_PKT_TOOBIG, 0 },
};

static int sockets[2] = { -1, -1 }; /* IPv4, IPv6 */

/*
 * A raw socket would have a copy of each packet of ICMP: it takes none, and nobody can change that
 * any more.  It may send from any address, which is that of a `transparent` listener.
 */
static int open_one(int family, int protocol)
{
	int fd = socket(family, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol), one = 1,
	    none = 0;

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
		if (sockets[i] >= 0)
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

static uint16_t sum(const void *data, size_t len)
{
	const uint16_t *word = data;
	uint32_t s = 0;

	for (; len; len -= 2)
		s += *word++;
	s = (s & 0xffff) + (s >> 16);
	return (uint16_t) ~(s + (s >> 16));
}

/*
 * What is told quotes the begin of the datagram: by its addresses and ports the receiver's kernel
 * finds the socket.  How long it was is not known, but that it was longer than MTU.
 */
static struct udphdr quoted_udp(const union client_addr *to, const union client_addr *from,
				size_t len)
{
	return (struct udphdr){ .source = to->in.sin_port,
				.dest = from->in.sin_port, /* of IPv6, too */
				.len = htons((uint16_t)len) };
}

struct ipv4_error {
	struct icmphdr icmp;
	struct iphdr ip;
	struct udphdr udp;
};

static void fill_ipv4(struct ipv4_error *e, const union client_addr *to,
		      const union client_addr *from, enum icmp_what what, uint32_t mtu)
{
	size_t least = sizeof(e->ip) + sizeof(e->udp);
	size_t len = smaller(larger(least, (uint64_t)mtu + 1), UINT16_MAX);

	*e = (struct ipv4_error){
		.icmp = { .type = said[what].type, .code = said[what].code },
		.ip = { .version = 4,
			.ihl = sizeof(e->ip) / 4,
			.tot_len = htons((uint16_t)len),
			.frag_off = htons(IP_DF),
			.ttl = IPDEFTTL,
			.protocol = IPPROTO_UDP,
			.saddr = to->in.sin_addr.s_addr,
			.daddr = from->in.sin_addr.s_addr },
		.udp = quoted_udp(to, from, len - sizeof(e->ip)),
	};
	e->icmp.un.frag.mtu = htons((uint16_t)smaller(mtu, UINT16_MAX));
	e->ip.check = sum(&e->ip, sizeof(e->ip));
	e->icmp.checksum = sum(e, sizeof(*e));
}

struct ipv6_error {
	struct icmp6hdr icmp;
	struct ip6_hdr ip;
	struct udphdr udp;
};

/* The kernel computes the checksum. */
static void fill_ipv6(struct ipv6_error *e, const union client_addr *to,
		      const union client_addr *from, enum icmp_what what, uint32_t mtu)
{
	size_t len = larger(sizeof(e->udp), mtu > sizeof(e->ip) ? mtu + 1 - sizeof(e->ip) : 0);

	len = smaller(len, UINT16_MAX);
	*e = (struct ipv6_error){
		.icmp = { .icmp6_type = said[what].type6, .icmp6_code = said[what].code6 },
		.ip = { .ip6_src = to->in6.sin6_addr, .ip6_dst = from->in6.sin6_addr },
		.udp = quoted_udp(to, from, len),
	};
	e->icmp.icmp6_mtu = htonl(mtu);
	e->ip.ip6_vfc = 6 << 4;
	e->ip.ip6_plen = htons((uint16_t)len);
	e->ip.ip6_nxt = IPPROTO_UDP;
	e->ip.ip6_hlim = IPDEFTTL;
}

void icmp_tell(const union client_addr *to, const union client_addr *from, unsigned int ifindex,
	       enum icmp_what what, uint32_t mtu)
{
	_Alignas(struct cmsghdr) uint8_t control[UDP_SOURCE_SPACE];
	bool ipv6 = to->sa.sa_family == AF_INET6;
	union client_addr name = *to;
	union {
		struct ipv4_error ipv4;
		struct ipv6_error ipv6;
	} error;
	struct iovec iov = { &error, ipv6 ? sizeof(error.ipv6) : sizeof(error.ipv4) };
	struct msghdr h = { .msg_name = &name,
			    .msg_namelen = sizeof(name),
			    .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control };

	if (sockets[ipv6] < 0 || from->sa.sa_family != to->sa.sa_family || !may_tell())
		return;
	name.in.sin_port = 0; /* raw IPv6 sockets take it for a protocol */
	if (ipv6 && IN6_IS_ADDR_LINKLOCAL(&name.in6.sin6_addr))
		name.in6.sin6_scope_id = ifindex;
	if (ipv6)
		fill_ipv6(&error.ipv6, to, from, what, mtu);
	else
		fill_ipv4(&error.ipv4, to, from, what, mtu);
	udp_add_source(&h, from, ifindex);
	(void)!sendmsg(sockets[ipv6], &h, MSG_DONTWAIT); /* it is as if the network had lost it */
}
