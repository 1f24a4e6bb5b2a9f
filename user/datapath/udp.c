// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/udp.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/mman.h>

#include "base/minmax.h"
#include "base/syscalls_allowed.h"

/* Listeners are made before the daemon is confined, and by the privileged process. */
SYSCALLS_ALLOWED(
	SYSCALL(recvmmsg), SYSCALL(recvmmsg_time64), SYSCALL(recvmsg),
	SYSCALL(sendmmsg), SYSCALL(sendmsg), SYSCALL(sendto),
	SETSOCKOPT(IPPROTO_IP, IP_RECVERR), SETSOCKOPT(IPPROTO_IPV6, IPV6_RECVERR),
	SETSOCKOPT(IPPROTO_IP, IP_MTU_DISCOVER), SETSOCKOPT(IPPROTO_IPV6, IPV6_MTU_DISCOVER),
	SETSOCKOPT(SOL_UDP, UDP_GRO),
	SYSCALL(getsockopt, SYSCALL_ARG(1, IPPROTO_IP), SYSCALL_ARG(2, IP_MTU)),
	SYSCALL(getsockopt, SYSCALL_ARG(1, IPPROTO_IPV6), SYSCALL_ARG(2, IPV6_MTU)));

static int set_int(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) ? -errno : 0;
}

/*
 * ..._PMTUDISC_WANT, whatever the machine's default is: the kernel fragments what does not fit, as a
 * router does, since who has sent it cannot know how large a datagram the other side takes.  But
 * what fits tells routers not to fragment it, so that the kernel hears of a path that is narrower.
 */
int udp_set_flow(int fd, int family)
{
	bool ipv6 = family == AF_INET6;
	int level = ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
	int r = set_int(fd, level, ipv6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, IP_PMTUDISC_WANT);

	r = r ?: set_int(fd, level, ipv6 ? IPV6_RECVERR : IP_RECVERR, 1);
	return r ?: set_int(fd, SOL_UDP, UDP_GRO, 1);
}

int udp_set_listener(int fd, int family)
{
	int r = udp_set_flow(fd, family);

	if (family == AF_INET6)
		return r ?: set_int(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	return r ?: set_int(fd, IPPROTO_IP, IP_PKTINFO, 1);
}

uint32_t udp_path_mtu(int fd, int family)
{
	bool ipv6 = family == AF_INET6;
	socklen_t len = sizeof(uint32_t);
	uint32_t mtu = 0;

	getsockopt(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_MTU : IP_MTU, &mtu, &len);
	return mtu;
}

/* --- which worker --- */

#define HASH 0x9e3779b1U

/* The port, and of an IPv6 address the last word: enough to spread clients. */
unsigned int udp_worker(const union client_addr *peer, unsigned int n)
{
	bool ipv6 = peer->sa.sa_family == AF_INET6;
	uint32_t h = ntohl(ipv6 ? peer->in6.sin6_addr.s6_addr32[3] : peer->in.sin_addr.s_addr);

	h = (h * HASH ^ ntohs(peer->in.sin_port)) * HASH; /* the port is at the same place */
	return (h >> 16) % n;
}

static int set_program(int fd, int name, struct sock_filter *code, size_t size)
{
	struct sock_fprog program = { (unsigned short)(size / sizeof(*code)), code };

	return setsockopt(fd, SOL_SOCKET, name, &program, sizeof(program)) ? -errno : 0;
}

/*
 * Offsets are from the IP header (SKF_NET_OFF): the data of such a program begins behind that of
 * UDP.  Behind extension headers another word is taken for the port: any worker passes that on.
 */
int udp_spread(int fd, int family, unsigned int n)
{
	bool ipv6 = family == AF_INET6;
	uint32_t ip = (uint32_t)SKF_NET_OFF;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ip + (ipv6 ? 20 : 12)),
		BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, HASH),
		BPF_STMT(BPF_ST, 0),
		/* X: how long the IP header is, which IPv4 says */
		BPF_STMT(BPF_LDX | (ipv6 ? BPF_W | BPF_IMM : BPF_B | BPF_MSH), ipv6 ? 40 : ip),
		BPF_STMT(BPF_LD | BPF_H | BPF_IND, ip),
		BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 0),
		BPF_STMT(BPF_ALU | BPF_XOR | BPF_X, 0),
		BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, HASH),
		BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 16),
		BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, n),
		BPF_STMT(BPF_RET | BPF_A, 0),
	};

	return set_program(fd, SO_ATTACH_REUSEPORT_CBPF, code, sizeof(code));
}

int udp_block(int fd, bool block)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);

	if (block)
		return set_program(fd, SO_ATTACH_FILTER, &nothing, sizeof(nothing));
	return set_int(fd, SOL_SOCKET, SO_DETACH_FILTER, 0);
}

/* --- receiving --- */

unsigned int udp_datagrams(const struct udp_message *m)
{
	bool more = m->segment && m->len > m->segment;

	return more ? (unsigned int)((m->len + m->segment - 1) / m->segment) : 1;
}

/* Rooms of a power of two would have their first bytes in the same few sets of the CPU's cache. */
#define ROOM (UDP_MESSAGE_MAX + 64)

/* An int when it is received, 16 bits to send, which take as much. */
#define SEGMENT_SPACE CMSG_SPACE(sizeof(int))
#define CONTROL_SPACE (UDP_SOURCE_SPACE + SEGMENT_SPACE)

struct slot {
	struct udp_message message;
	struct iovec iov;
	_Alignas(struct cmsghdr) uint8_t control[CONTROL_SPACE];
};

/* What the kernel is told is prepared once. */
struct udp_batch {
	size_t size;            /* of all */
	struct mmsghdr *vector; /* by slot: behind the slots, and then come the rooms */
	struct slot slots[];
};

struct udp_batch *udp_batch_new(unsigned int count)
{
	size_t one = sizeof(struct slot) + sizeof(struct mmsghdr) + ROOM;
	size_t size = sizeof(struct udp_batch) + count * one;
	struct udp_batch *b;

	/* cppcheck-suppress invalidFunctionArg ; -1 is the descriptor of anonymous memory */
	b = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		return NULL;
	b->size = size;
	b->vector = (struct mmsghdr *)&b->slots[count];
	for (unsigned int i = 0; i < count; i++) {
		struct slot *s = &b->slots[i];
		struct msghdr *h = &b->vector[i].msg_hdr;

		s->iov.iov_base = (uint8_t *)&b->vector[count] + (size_t)i * ROOM;
		s->iov.iov_len = UDP_MESSAGE_MAX;
		*h = (struct msghdr){ &s->message.peer, sizeof(s->message.peer), &s->iov, 1,
				      s->control,       sizeof(s->control),      0 };
	}
	return b;
}

void udp_batch_free(struct udp_batch *b)
{
	if (b)
		munmap(b, b->size);
}

struct udp_message *udp_batch_at(struct udp_batch *b, unsigned int i)
{
	return &b->slots[i].message;
}

/*
 * The address that C tells, if it does.  What was sent to many must be answered from an address of
 * this machine alone: IPv4 tells it, for IPv6 it is left to the kernel.
 */
static bool read_address(struct cmsghdr *c, union client_addr *local, unsigned int *ifindex)
{
	if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
		const struct in_pktinfo *info = (void *)CMSG_DATA(c);

		*ifindex = (unsigned int)info->ipi_ifindex;
		local->in.sin_family = AF_INET;
		local->in.sin_addr = info->ipi_spec_dst.s_addr ? info->ipi_spec_dst :
								 info->ipi_addr;
		return true;
	}
	if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
		const struct in6_pktinfo *info = (void *)CMSG_DATA(c);

		*ifindex = info->ipi6_ifindex;
		local->in6.sin6_family = IN6_IS_ADDR_MULTICAST(&info->ipi6_addr) ? 0 : AF_INET6;
		local->in6.sin6_addr = info->ipi6_addr;
		return true;
	}
	return false;
}

static void read_message(struct slot *s, struct mmsghdr *v)
{
	struct udp_message *m = &s->message;

	m->data = s->iov.iov_base;
	m->len = v->msg_len;
	m->segment = v->msg_len;
	m->local = (union client_addr){ 0 };
	if (m->peer.sa.sa_family == AF_INET) /* behind it is what an earlier one has left */
		memset(&m->peer.in + 1, 0, sizeof(m->peer) - sizeof(m->peer.in));
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&v->msg_hdr); c; c = CMSG_NXTHDR(&v->msg_hdr, c))
		if (!read_address(c, &m->local, &m->ifindex)) /* UDP_GRO */
			memcpy(&m->segment, CMSG_DATA(c), sizeof(m->segment));
	v->msg_hdr.msg_namelen = sizeof(m->peer); /* what recvmmsg(2) has overwritten */
	v->msg_hdr.msg_controllen = sizeof(s->control);
}

int udp_receive(struct udp_batch *b, int fd, unsigned int first, unsigned int n)
{
	int got = recvmmsg(fd, &b->vector[first], n, MSG_DONTWAIT, NULL);

	if (got < 0)
		return errno == EAGAIN ? 0 : -errno;
	for (unsigned int i = first; i < first + (unsigned int)got; i++)
		read_message(&b->slots[i], &b->vector[i]);
	return got;
}

bool udp_next_error(int fd, struct udp_error *ret)
{
	_Alignas(struct cmsghdr) uint8_t control[256];
	struct msghdr h = { &ret->peer, sizeof(ret->peer), NULL, 0, control, sizeof(control), 0 };
	unsigned int ifindex;

	*ret = (struct udp_error){ 0 };
	if (recvmsg(fd, &h, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		const struct sock_extended_err *e = (void *)CMSG_DATA(c);

		if (read_address(c, &ret->local, &ifindex))
			continue;
		ret->error = (int)e->ee_errno; /* IP_RECVERR, IPV6_RECVERR */
		ret->icmp = e->ee_origin != SO_EE_ORIGIN_LOCAL;
		ret->type = e->ee_type;
		ret->code = e->ee_code;
		ret->mtu = e->ee_errno == EMSGSIZE ? e->ee_info : 0;
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

void udp_add_source(struct msghdr *h, const union client_addr *local, unsigned int ifindex)
{
	if (local->sa.sa_family == AF_INET) {
		const struct in_pktinfo info = { .ipi_spec_dst = local->in.sin_addr };

		add_control(h, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	} else if (local->sa.sa_family == AF_INET6) {
		struct in6_pktinfo info = { .ipi6_addr = local->in6.sin6_addr };

		/* else the route says which one */
		if (IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr))
			info.ipi6_ifindex = ifindex;
		add_control(h, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
	}
}

/* UDP_SEGMENT, the last thing that is added. */
static void add_segment(struct msghdr *h, const struct udp_message *m)
{
	uint16_t segment = (uint16_t)m->segment;

	if (udp_datagrams(m) > 1)
		add_control(h, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment));
}

/*
 * An error of an earlier datagram is told instead of sending, once.  ENOBUFS: a queue of this
 * machine is full, which is told since IP_RECVERR is set.
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

/* Each datagram of M by itself, as H says, the last part of which is data.  The first error. */
static int send_each(int fd, struct msghdr *h, const struct udp_message *m)
{
	struct iovec *data = &h->msg_iov[h->msg_iovlen - 1];
	size_t segment = udp_datagrams(m) > 1 ? m->segment : m->len, done = 0;
	int first = 0, r;

	do {
		*data = (struct iovec){ m->data + done, smaller(segment, m->len - done) };
		r = send_one(fd, h);
		first = first ?: r;
		done += segment;
	} while (r != -EAGAIN && done < m->len);
	return first;
}

/*
 * H, of M, was refused.  Segments may be refused where datagrams are not: if they do not fit into
 * the path's MTU, are too many for this kernel, or have to be encrypted.
 */
static int send_again(int fd, struct msghdr *h, const struct udp_message *m)
{
	if (udp_datagrams(m) > 1)
		h->msg_controllen -= SEGMENT_SPACE;
	return send_each(fd, h, m);
}

int udp_send(int fd, const struct udp_message *m, const void *prefix, size_t prefix_len)
{
	_Alignas(struct cmsghdr) uint8_t control[SEGMENT_SPACE];
	struct iovec iov[] = { { (void *)prefix, prefix_len }, { m->data, m->len } };
	struct msghdr h = { .msg_iov = iov, .msg_iovlen = 2, .msg_control = control };

	if (prefix)
		return send_each(fd, &h, m);
	/* measured: 5 % of the time to send a short one is that sendmsg(2) has more to read */
	if (udp_datagrams(m) == 1 && send(fd, m->data, m->len, MSG_DONTWAIT) >= 0)
		return 0;
	h.msg_iov++;
	h.msg_iovlen--;
	add_segment(&h, m);
	return sendmsg(fd, &h, MSG_DONTWAIT) < 0 ? send_again(fd, &h, m) : 0;
}

#define SEND_MOST 64U /* in a call */

struct outgoing {
	struct iovec iov;
	_Alignas(struct cmsghdr) uint8_t control[CONTROL_SPACE];
};

static void prepare(struct msghdr *h, struct outgoing *o, struct udp_message *m)
{
	o->iov = (struct iovec){ m->data, m->len };
	*h = (struct msghdr){ &m->peer, sizeof(m->peer), &o->iov, 1, o->control, 0, 0 };
	udp_add_source(h, &m->local, m->ifindex);
	add_segment(h, m);
}

unsigned int udp_send_to(int fd, struct udp_message *const *m, unsigned int n, int *ret_error)
{
	struct mmsghdr v[SEND_MOST];
	struct outgoing o[SEND_MOST];
	unsigned int done = 0;

	while (done < n) {
		unsigned int some = (unsigned int)smaller(n - done, SEND_MOST);
		int sent, r;

		for (unsigned int i = 0; i < some; i++)
			prepare(&v[i].msg_hdr, &o[i], m[done + i]);
		sent = sendmmsg(fd, v, some, MSG_DONTWAIT);
		r = sent < 0 ? send_again(fd, &v[0].msg_hdr, m[done]) : 0;
		if (r) {
			*ret_error = r;
			break;
		}
		done += sent < 0 ? 1 : (unsigned int)sent;
	}
	return done;
}
