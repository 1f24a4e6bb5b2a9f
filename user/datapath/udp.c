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
	SYSCALL(sendmmsg), SYSCALL(sendmsg),
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
static int set_common(int fd, int family)
{
	bool ipv6 = family == AF_INET6;
	int level = ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
	int r = set_int(fd, level, ipv6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, IP_PMTUDISC_WANT);

	r = r ?: set_int(fd, level, ipv6 ? IPV6_RECVERR : IP_RECVERR, 1);
	return r ?: set_int(fd, SOL_UDP, UDP_GRO, 1);
}

int udp_set_flow(int fd, int family)
{
	return set_common(fd, family);
}

int udp_set_listener(int fd, int family)
{
	int r = set_common(fd, family);

	if (family == AF_INET6)
		return r ?: set_int(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	return r ?: set_int(fd, IPPROTO_IP, IP_PKTINFO, 1);
}

uint32_t udp_path_mtu(int fd, int family)
{
	bool ipv6 = family == AF_INET6;
	socklen_t len = sizeof(int);
	int mtu = 0;

	if (getsockopt(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_MTU : IP_MTU, &mtu, &len))
		return 0;
	return mtu > 0 ? (uint32_t)mtu : 0;
}

/* --- which worker --- */

#define HASH 0x9e3779b1U

static uint32_t mix(uint32_t h, uint32_t word)
{
	return (h ^ word) * HASH;
}

unsigned int udp_worker(const union client_addr *peer, unsigned int n)
{
	const uint32_t *w = peer->in6.sin6_addr.s6_addr32;
	uint32_t h;

	if (peer->sa.sa_family == AF_INET6)
		h = mix(mix(mix(mix(0, ntohl(w[0])), ntohl(w[1])), ntohl(w[2])), ntohl(w[3]));
	else
		h = mix(0, ntohl(peer->in.sin_addr.s_addr));
	h = mix(h, ntohs(peer->in.sin_port)); /* at the same place in sockaddr_in6 */
	return (h ^ h >> 16) % n;
}

/* Offsets from the IP header; the data of a program of SO_REUSEPORT begins behind that of UDP. */
#define AT(offset) ((uint32_t)SKF_NET_OFF + (offset))
#define LOAD_WORD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(offset))
#define KEEP BPF_STMT(BPF_MISC | BPF_TAX, 0)
#define XOR_KEPT BPF_STMT(BPF_ALU | BPF_XOR | BPF_X, 0)
#define MULTIPLY BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, HASH)
#define CHOOSE(n)                                                                                  \
	XOR_KEPT, MULTIPLY, KEEP, BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 16), XOR_KEPT,               \
		BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, n), BPF_STMT(BPF_RET | BPF_A, 0)

static int set_program(int fd, int name, struct sock_filter *code, size_t n)
{
	struct sock_fprog program = { .len = (unsigned short)n, .filter = code };

	return setsockopt(fd, SOL_SOCKET, name, &program, sizeof(program)) ? -errno : 0;
}

/* Behind extension headers another word is taken for the port: any worker passes that on. */
int udp_spread(int fd, int family, unsigned int n)
{
	struct sock_filter ipv4[] = {
		LOAD_WORD(12),
		MULTIPLY,
		BPF_STMT(BPF_ST, 0),
		BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, AT(0)), /* bytes of the header */
		BPF_STMT(BPF_LD | BPF_H | BPF_IND, AT(0)),
		BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 0),
		CHOOSE(n),
	};
	struct sock_filter ipv6[] = {
		LOAD_WORD(8), MULTIPLY, KEEP, LOAD_WORD(12),
		XOR_KEPT,     MULTIPLY, KEEP, LOAD_WORD(16),
		XOR_KEPT,     MULTIPLY, KEEP, LOAD_WORD(20),
		XOR_KEPT,     MULTIPLY, KEEP, BPF_STMT(BPF_LD | BPF_H | BPF_ABS, AT(40)),
		CHOOSE(n),
	};

	if (family == AF_INET6)
		return set_program(fd, SO_ATTACH_REUSEPORT_CBPF, ipv6,
				   sizeof(ipv6) / sizeof(ipv6[0]));
	return set_program(fd, SO_ATTACH_REUSEPORT_CBPF, ipv4, sizeof(ipv4) / sizeof(ipv4[0]));
}

int udp_block(int fd, bool block)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);

	if (block)
		return set_program(fd, SO_ATTACH_FILTER, &nothing, 1);
	return set_int(fd, SOL_SOCKET, SO_DETACH_FILTER, 0);
}

/* --- receiving --- */

unsigned int udp_datagrams(const struct udp_message *m)
{
	if (!m->segment || m->len <= m->segment)
		return 1;
	return (unsigned int)((m->len + m->segment - 1) / m->segment);
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

/* What the kernel is told is prepared once: a flow's socket needs no addresses. */
struct udp_batch {
	size_t size;                /* of all: behind the slots come both vectors, and the rooms */
	struct mmsghdr *vectors[2]; /* by ADDRESSES */
	struct slot slots[];
};

/* What recvmmsg(2) overwrites. */
static void make_ready(struct msghdr *h, bool addresses)
{
	h->msg_namelen = addresses ? sizeof(union client_addr) : 0;
	h->msg_controllen = addresses ? CONTROL_SPACE : SEGMENT_SPACE;
}

struct udp_batch *udp_batch_new(unsigned int count)
{
	size_t size = sizeof(struct udp_batch) +
		      count * (sizeof(struct slot) + 2 * sizeof(struct mmsghdr) + ROOM);
	struct udp_batch *b = mmap(NULL, size, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *rooms;

	if (b == MAP_FAILED)
		return NULL;
	b->size = size;
	b->vectors[0] = (struct mmsghdr *)&b->slots[count];
	b->vectors[1] = b->vectors[0] + count;
	rooms = (uint8_t *)(b->vectors[1] + count);
	for (unsigned int i = 0; i < count; i++) {
		struct slot *s = &b->slots[i];

		s->iov = (struct iovec){ rooms + (size_t)i * ROOM, UDP_MESSAGE_MAX };
		for (int addresses = 0; addresses < 2; addresses++) {
			struct msghdr *h = &b->vectors[addresses][i].msg_hdr;

			h->msg_name = addresses ? &s->message.peer : NULL;
			h->msg_iov = &s->iov;
			h->msg_iovlen = 1;
			h->msg_control = s->control;
			make_ready(h, addresses);
		}
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
 * The address that C tells.  What was sent to many must be answered from an address of this machine
 * alone: IPv4 tells it, for IPv6 it is left to the kernel.
 */
static void read_address(struct cmsghdr *c, union client_addr *local, unsigned int *ifindex)
{
	if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
		struct in_pktinfo info;

		memcpy(&info, CMSG_DATA(c), sizeof(info));
		*ifindex = (unsigned int)info.ipi_ifindex;
		local->in.sin_family = AF_INET;
		local->in.sin_addr = info.ipi_spec_dst.s_addr ? info.ipi_spec_dst : info.ipi_addr;
	} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
		struct in6_pktinfo info;

		memcpy(&info, CMSG_DATA(c), sizeof(info));
		*ifindex = info.ipi6_ifindex;
		if (IN6_IS_ADDR_MULTICAST(&info.ipi6_addr))
			return;
		local->in6.sin6_family = AF_INET6;
		local->in6.sin6_addr = info.ipi6_addr;
		if (IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr))
			local->in6.sin6_scope_id = info.ipi6_ifindex;
	}
}

static void read_message(struct slot *s, struct mmsghdr *v)
{
	struct udp_message *m = &s->message;

	m->data = s->iov.iov_base;
	m->len = v->msg_len;
	m->segment = v->msg_len;
	if (v->msg_hdr.msg_name) {
		if (m->peer.sa.sa_family == AF_INET) /* what is left of an earlier one */
			memset(&m->peer.in + 1, 0, sizeof(m->peer) - sizeof(m->peer.in));
		m->local = (union client_addr){ 0 };
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&v->msg_hdr); c; c = CMSG_NXTHDR(&v->msg_hdr, c)) {
		if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
			memcpy(&m->segment, CMSG_DATA(c), sizeof(int));
		else
			read_address(c, &m->local, &m->ifindex);
	}
}

int udp_receive(struct udp_batch *b, int fd, unsigned int first, unsigned int n, bool addresses)
{
	struct mmsghdr *v = b->vectors[addresses] + first;
	int got;

	do
		got = recvmmsg(fd, v, n, MSG_DONTWAIT, NULL);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == EAGAIN ? 0 : -errno;
	for (int i = 0; i < got; i++) {
		read_message(&b->slots[first + (unsigned int)i], &v[i]);
		make_ready(&v[i].msg_hdr, addresses);
	}
	return got;
}

bool udp_next_error(int fd, struct udp_error *ret)
{
	_Alignas(struct cmsghdr) uint8_t control[256];
	struct msghdr h = { .msg_name = &ret->peer,
			    .msg_namelen = sizeof(ret->peer),
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	unsigned int ifindex;

	*ret = (struct udp_error){ 0 };
	if (recvmsg(fd, &h, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		struct sock_extended_err e;

		read_address(c, &ret->local, &ifindex);
		if ((c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_RECVERR) &&
		    (c->cmsg_level != IPPROTO_IPV6 || c->cmsg_type != IPV6_RECVERR))
			continue;
		memcpy(&e, CMSG_DATA(c), sizeof(e));
		ret->error = (int)e.ee_errno;
		ret->icmp = e.ee_origin == SO_EE_ORIGIN_ICMP || e.ee_origin == SO_EE_ORIGIN_ICMP6;
		ret->type = ret->icmp ? e.ee_type : 0;
		ret->code = ret->icmp ? e.ee_code : 0;
		ret->mtu = e.ee_errno == EMSGSIZE ? e.ee_info : 0;
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

/* A queue of the machine that is full says ENOBUFS, since IP_RECVERR is set. */
static int send_once(int fd, const struct msghdr *h)
{
	if (sendmsg(fd, h, MSG_DONTWAIT) >= 0)
		return 0;
	return errno == ENOBUFS ? -EAGAIN : -errno;
}

/* An error of an earlier datagram is told instead of sending, once. */
static int send_twice(int fd, const struct msghdr *h)
{
	int r = send_once(fd, h);

	return r && r != -EAGAIN ? send_once(fd, h) : r;
}

/* Each datagram of M by itself, as H says, the last part of which is data.  The first error. */
static int send_each(int fd, struct msghdr *h, const struct udp_message *m)
{
	struct iovec *data = &h->msg_iov[h->msg_iovlen - 1];
	size_t segment = udp_datagrams(m) > 1 ? m->segment : m->len, done = 0;
	int first = 0;

	do {
		int r;

		data->iov_base = m->data + done;
		data->iov_len = smaller(segment, m->len - done);
		r = send_twice(fd, h);
		if (r == -EAGAIN)
			return r;
		first = first ?: r;
		done += data->iov_len;
	} while (done < m->len);
	return first;
}

/*
 * H, of M, was refused with ERROR.  Segments may be refused where datagrams are not: if they do not
 * fit into the path's MTU, are too many for this kernel, or have to be encrypted.
 */
static int send_again(int fd, struct msghdr *h, const struct udp_message *m, int error)
{
	if (error == -EAGAIN || error == -ENOBUFS)
		return -EAGAIN;
	if (udp_datagrams(m) == 1)
		return send_once(fd, h);
	h->msg_controllen -= SEGMENT_SPACE;
	return send_each(fd, h, m);
}

int udp_send(int fd, const struct udp_message *m, const void *prefix, size_t prefix_len)
{
	_Alignas(struct cmsghdr) uint8_t control[SEGMENT_SPACE];
	struct iovec iov[] = { { (void *)prefix, prefix_len }, { m->data, m->len } };
	struct msghdr h = { .msg_iov = prefix ? iov : iov + 1,
			    .msg_iovlen = prefix ? 2 : 1,
			    .msg_control = control };
	int r;

	if (prefix)
		return send_each(fd, &h, m);
	add_segment(&h, m);
	r = send_once(fd, &h);
	return r ? send_again(fd, &h, m, r) : 0;
}

#define SEND_MOST 64U /* in a call */

struct outgoing {
	struct iovec iov;
	_Alignas(struct cmsghdr) uint8_t control[CONTROL_SPACE];
};

static void prepare(struct msghdr *h, struct outgoing *o, struct udp_message *m)
{
	o->iov = (struct iovec){ m->data, m->len };
	*h = (struct msghdr){ .msg_name = &m->peer,
			      .msg_namelen = sizeof(m->peer),
			      .msg_iov = &o->iov,
			      .msg_iovlen = 1,
			      .msg_control = o->control };
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
		r = sent < 0 ? send_again(fd, &v[0].msg_hdr, m[done], -errno) : 0;
		if (r) {
			*ret_error = r;
			break;
		}
		done += sent < 0 ? 1 : (unsigned int)sent;
	}
	return done;
}
