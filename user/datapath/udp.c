// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/udp.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/socket_set.h"
#include "base/syscalls_allowed.h"

/* A listener is made before the filter of system calls, or by the privileged process. */
SYSCALLS_ALLOWED(SYSCALL(recvmmsg), SYSCALL(recvmmsg_time64), SYSCALL(recvmsg), SYSCALL(sendmsg),
		 SYSCALL(sendto), SETSOCKOPT(IPPROTO_IP, IP_RECVERR),
		 SETSOCKOPT(IPPROTO_IPV6, IPV6_RECVERR), SETSOCKOPT(SOL_UDP, UDP_GRO));

int udp_set_flow(int fd, int family)
{
	int r = family == AF_INET6 ? socket_set(fd, IPPROTO_IPV6, IPV6_RECVERR, 1) :
				     socket_set(fd, IPPROTO_IP, IP_RECVERR, 1);

	return r ?: socket_set(fd, SOL_UDP, UDP_GRO, 1);
}

int udp_set_listener(int fd, const struct addr *a)
{
	int r = udp_set_flow(fd, a->ss.ss_family);

	if (r || !addr_is_any(a))
		return r;
	return a->ss.ss_family == AF_INET6 ? socket_set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) :
					     socket_set(fd, IPPROTO_IP, IP_PKTINFO, 1);
}

/* --- which worker --- */

#define HASH 0x9e3779b1U /* the golden ratio: numbers in a row are spread evenly */

/* The port and the address, or its last word in IPv6, are enough to spread clients. */
unsigned int udp_worker(const union client_addr *peer, unsigned int n)
{
	bool ipv6 = peer->sa.sa_family == AF_INET6;
	uint32_t word = ipv6 ? peer->in6.sin6_addr.s6_addr32[3] : peer->in.sin_addr.s_addr;
	uint32_t port = ntohs(peer->in.sin_port); /* at the same place in both */

	return ((ntohl(word) + port) * HASH >> 16) % n;
}

static int set_program(int fd, int name, struct sock_filter *code, size_t n)
{
	struct sock_fprog program = { (unsigned short)n, code };

	return setsockopt(fd, SOL_SOCKET, name, &program, sizeof(program)) ? -errno : 0;
}

/*
 * Offsets are from the IP header (SKF_NET_OFF): the data of such a program begins after the UDP
 * header.  With IP options, or extension headers, the program takes other bytes for the port.
 */
int udp_spread(int fd, int family, unsigned int n)
{
	bool ipv6 = family == AF_INET6;
	uint32_t ip = (uint32_t)SKF_NET_OFF;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ip + (ipv6 ? 20 : 12)),
		BPF_STMT(BPF_MISC | BPF_TAX, 0),
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, ip + (ipv6 ? 40 : 20)),
		BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
		BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, HASH),
		BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 16),
		BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, n),
		BPF_STMT(BPF_RET | BPF_A, 0),
	};

	return set_program(fd, SO_ATTACH_REUSEPORT_CBPF, code, sizeof(code) / sizeof(code[0]));
}

int udp_block(int fd)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);

	return set_program(fd, SO_ATTACH_FILTER, &nothing, 1);
}

#define DISCARD_MOST 1024 /* in a flood there is always one more */

void udp_discard(int fd)
{
	char c;

	for (int i = 0; i < DISCARD_MOST && recv(fd, &c, sizeof(c), MSG_DONTWAIT) >= 0; i++)
		;
}

/* --- receiving --- */

unsigned int udp_datagrams(const struct udp_message *m)
{
	return m->len > m->segment ? (unsigned int)((m->len + m->segment - 1) / m->segment) : 1;
}

/*
 * Room for all control data of a message: addresses; UDP_GRO, which is twice as long as
 * UDP_SEGMENT; and the time, if systemd's Timestamping= has asked for it.  The kernel leaves out
 * the rest.
 */
#define SEGMENT_SPACE CMSG_SPACE(sizeof(int))
#define CONTROL_SPACE (UDP_SOURCE_SPACE + SEGMENT_SPACE + CMSG_SPACE(sizeof(struct timespec)))

/* The headers for the kernel are prepared once. */
struct udp_batch {
	struct udp_message messages[UDP_BATCH];
	struct mmsghdr headers[UDP_BATCH];
	struct iovec iovs[UDP_BATCH];
	_Alignas(struct cmsghdr) uint8_t controls[UDP_BATCH][CONTROL_SPACE];
	/* a power of two would have all first bytes in the same few sets of the CPU's cache */
	uint8_t rooms[UDP_BATCH][UDP_MESSAGE_MAX + 64];
};

struct udp_batch *udp_batch_new(void)
{
	struct udp_batch *b = calloc(1, sizeof(*b));

	for (unsigned int i = 0; b && i < UDP_BATCH; i++) {
		struct udp_message *m = &b->messages[i];

		m->data = b->rooms[i];
		b->iovs[i] = (struct iovec){ m->data, UDP_MESSAGE_MAX };
		b->headers[i].msg_hdr = (struct msghdr){ &m->peer, sizeof(m->peer), &b->iovs[i],
							 1,        b->controls[i],  CONTROL_SPACE,
							 0 };
	}
	return b;
}

struct udp_message *udp_batch_at(struct udp_batch *b, unsigned int i)
{
	return &b->messages[i];
}

/*
 * Take the local address from C, if C has one.  A datagram to many must be answered from a
 * unicast address: IPv4 reports one, for IPv6 the kernel chooses.
 */
static void read_address(struct cmsghdr *c, union client_addr *local)
{
	if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
		const struct in_pktinfo *info = (void *)CMSG_DATA(c);

		local->in.sin_family = AF_INET;
		local->in.sin_addr = info->ipi_spec_dst.s_addr ? info->ipi_spec_dst :
								 info->ipi_addr;
	} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
		const struct in6_pktinfo *info = (void *)CMSG_DATA(c);

		local->in6.sin6_family = IN6_IS_ADDR_MULTICAST(&info->ipi6_addr) ? 0 : AF_INET6;
		local->in6.sin6_addr = info->ipi6_addr;
		if (IN6_IS_ADDR_LINKLOCAL(&info->ipi6_addr))
			local->in6.sin6_scope_id = info->ipi6_ifindex;
	}
}

int udp_receive(struct udp_batch *b, int fd)
{
	int got = recvmmsg(fd, b->headers, UDP_BATCH, MSG_DONTWAIT, NULL);

	for (int i = 0; i < got; i++) {
		struct udp_message *m = &b->messages[i];
		struct msghdr *h = &b->headers[i].msg_hdr;

		m->len = m->segment = b->headers[i].msg_len;
		m->local = (union client_addr){ 0 };
		if (m->peer.sa.sa_family == AF_INET) /* clear the rest of a longer address */
			memset(&m->peer.in + 1, 0, sizeof(m->peer) - sizeof(m->peer.in));
		for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c))
			if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
				memcpy(&m->segment, CMSG_DATA(c), sizeof(m->segment));
			else
				read_address(c, &m->local);
		h->msg_namelen = sizeof(m->peer); /* recvmmsg(2) has overwritten both */
		h->msg_controllen = CONTROL_SPACE;
	}
	return got >= 0 ? got : errno == EAGAIN ? 0 : -errno;
}

bool udp_next_error(int fd, struct udp_error *ret)
{
	_Alignas(struct cmsghdr) uint8_t control[256];
	struct msghdr h = { &ret->peer, sizeof(ret->peer), NULL, 0, control, sizeof(control), 0 };

	*ret = (struct udp_error){ 0 };
	if (recvmsg(fd, &h, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		const struct sock_extended_err *e = (void *)CMSG_DATA(c);

		read_address(c, &ret->local);
		if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
		    (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
			ret->error = (int)e->ee_errno;
			ret->mtu = e->ee_info;
		}
	}
	return true;
}

/* --- sending --- */

static void add_control(struct msghdr *h, int level, int type, const void *data, size_t len)
{
	struct cmsghdr *c = (void *)((uint8_t *)h->msg_control + h->msg_controllen);

	*c = (struct cmsghdr){ .cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type };
	memcpy(CMSG_DATA(c), data, len);
	h->msg_controllen += CMSG_SPACE(len);
}

void udp_add_source(struct msghdr *h, const union client_addr *local)
{
	const struct in_pktinfo info = { .ipi_spec_dst = local->in.sin_addr };
	const struct in6_pktinfo info6 = { local->in6.sin6_addr, local->in6.sin6_scope_id };

	if (local->sa.sa_family == AF_INET)
		add_control(h, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	else if (local->sa.sa_family == AF_INET6)
		add_control(h, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
}

/*
 * Instead of sending, the kernel may once return an error of an earlier datagram.  ENOBUFS: a queue
 * of this machine is full, which IP_RECVERR reports as well.
 */
static int send_one(int fd, const struct msghdr *h)
{
	for (unsigned int tries = 0; sendmsg(fd, h, MSG_DONTWAIT) < 0; tries++)
		if (errno == EAGAIN || errno == ENOBUFS)
			return -EAGAIN;
		else if (tries)
			return -errno;
	return 0;
}

/* Send M in parts of SIZE; the last iovec of H is for data.  Returns the first error. */
static int send_parts(int fd, struct msghdr *h, const struct udp_message *m, size_t size)
{
	struct iovec *data = &h->msg_iov[h->msg_iovlen - 1];
	size_t done = 0;
	int first = 0, r;

	do {
		*data = (struct iovec){ m->data + done, smaller(size, m->len - done) };
		r = send_one(fd, h);
		first = first ?: r;
		done += size;
	} while (r != -EAGAIN && done < m->len);
	return first;
}

/*
 * Send all of M by one call.  The kernel may refuse UDP_SEGMENT: if the datagrams do not fit into
 * the path's MTU, are too many for this kernel, or have to be encrypted.  Then send them one by
 * one.
 */
static int send_whole(int fd, struct msghdr *h, const struct udp_message *m)
{
	uint16_t segment = (uint16_t)m->segment;
	size_t without = h->msg_controllen;
	int r;

	if (udp_datagrams(m) > 1)
		add_control(h, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment));
	r = send_parts(fd, h, m, m->len);
	if (!r || r == -EAGAIN || h->msg_controllen == without)
		return r;
	h->msg_controllen = without;
	return send_parts(fd, h, m, segment);
}

int udp_send(int fd, const struct udp_message *m, const void *prefix, size_t prefix_len)
{
	_Alignas(struct cmsghdr) uint8_t control[SEGMENT_SPACE];
	struct iovec iov[] = { { (void *)prefix, prefix_len }, { 0 } };
	struct msghdr h = { .msg_iov = iov, .msg_iovlen = 2, .msg_control = control };

	if (prefix)
		return send_parts(fd, &h, m, m->segment);
	/* sendmsg(2) copies more from user space: 5 % of the time of a short datagram, measured */
	if (udp_datagrams(m) == 1 && send(fd, m->data, m->len, MSG_DONTWAIT) >= 0)
		return 0;
	h.msg_iovlen = 1;
	return send_whole(fd, &h, m);
}

int udp_send_to(int fd, struct udp_message *m)
{
	_Alignas(struct cmsghdr) uint8_t control[CONTROL_SPACE];
	struct iovec iov;
	struct msghdr h = { &m->peer, sizeof(m->peer), &iov, 1, control, 0, 0 };

	udp_add_source(&h, &m->local);
	return send_whole(fd, &h, m);
}
