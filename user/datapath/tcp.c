// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/tcp.h"

#include <limits.h>
#include <linux/socket.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/socket_set.h"
#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(
	SYSCALL(recvfrom), SYSCALL(close),
	SYSCALL(connect), /* to nowhere: see tcp_arm_reset() */
	SETSOCKOPT(SOL_SOCKET, SO_LINGER),
	SETSOCKOPT(SOL_SOCKET, SO_OOBINLINE), SETSOCKOPT(IPPROTO_TCP, TCP_NODELAY),
	SETSOCKOPT(SOL_SOCKET, SO_KEEPALIVE), SETSOCKOPT(IPPROTO_TCP, TCP_KEEPIDLE),
	SETSOCKOPT(IPPROTO_TCP, TCP_KEEPINTVL), SETSOCKOPT(IPPROTO_TCP, TCP_KEEPCNT),
	SETSOCKOPT(IPPROTO_TCP, TCP_DEFER_ACCEPT),
	SETSOCKOPT_IF(PART_GRAFT, IPPROTO_TCP, TCP_MAXSEG),
	SETSOCKOPT_IF(PART_GRAFT, IPPROTO_TCP, TCP_WINDOW_CLAMP),
	SYSCALL(getsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_INFO)),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_ERROR)),
	SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQ)), SYSCALL_IF(PART_GRAFT, ioctl, SYSCALL_ARG(1, SIOCINQ)),
	SETSOCKOPT_IF(PART_SOCKMAP, SOL_SOCKET, SO_BUF_LOCK),
	SETSOCKOPT_IF(PART_SOCKMAP, SOL_SOCKET, SO_RCVLOWAT), SYSCALL(bind),
	SETSOCKOPT(SOL_SOCKET, SO_BINDTODEVICE), SETSOCKOPT(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
	/* to clear it: it takes a capability to set it */
	SETSOCKOPT_IF(PART_PRIVILEGED, IPPROTO_IP, IP_TRANSPARENT),
	SETSOCKOPT_IF(PART_PRIVILEGED, IPPROTO_IPV6, IPV6_TRANSPARENT));

static int get_info(int fd, struct tcp_info *ret)
{
	socklen_t len = sizeof(*ret);

	*ret = (struct tcp_info){ 0 };
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, ret, &len) ? -errno : 0;
}

ssize_t tcp_recv(int fd, void *buf, size_t len, int flags)
{
	ssize_t n;

	do
		n = recv(fd, buf, len, flags | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n;
}

int tcp_take_error(int fd)
{
	socklen_t len = sizeof(int);
	int error = 0;

	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) ? errno : error;
}

enum cause tcp_cause_of_shortage(int error, enum cause other)
{
	if (error == EMFILE || error == ENFILE)
		return CAUSE_NO_DESCRIPTOR;
	return error == ENOMEM || error == ENOBUFS ? CAUSE_NO_MEMORY : other;
}

enum cause tcp_cause(unsigned int side, int error)
{
	if (!error || error == ECONNRESET || error == EPIPE || error == ENOTCONN)
		return side ? CAUSE_UPSTREAM_RESET : CAUSE_CLIENT_RESET;
	return tcp_cause_of_shortage(error, side ? CAUSE_UPSTREAM_LOST : CAUSE_CLIENT_LOST);
}

void tcp_arm_reset(int fd)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };
	struct sockaddr none = { .sa_family = AF_UNSPEC };

	/* a BPF program of the cgroup, say, may refuse it; disconnecting sends RST as well */
	if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		(void)connect(fd, &none, sizeof(none)); /* if that fails too, nothing is left */
}

void tcp_end_now(int fd, bool rst)
{
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };

	if (rst)
		(void)connect(fd, &nowhere, sizeof(nowhere)); /* tcp_disconnect() sends RST */
	else
		shutdown(fd, SHUT_RDWR);
}

void tcp_close(struct loop *l, struct source *source, bool rst)
{
	if (source->fd < 0)
		return;
	if (rst)
		tcp_arm_reset(source->fd);
	/*
	 * close(2) sends FIN or RST: no other process holds the file, but while daemons hand
	 * sessions over.  Nothing is forked while there are sessions.  The privileged process closes
	 * its copy of a descriptor before it answers, and the descriptor is used only after the
	 * answer.
	 */
	loop_close(l, source);
}

int tcp_unread(int fd, uint64_t *ret)
{
	/*
	 * MSG_TRUNC: nothing is copied, so no buffer is needed.  The kernel copies passed bytes
	 * in spite of MSG_TRUNC, and returns EFAULT.  ThreadSanitizer's recv() would take the
	 * result for bytes written, at NULL.
	 */
	long n = syscall(SYS_recvfrom, fd, NULL, INT_MAX, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT, NULL,
			 NULL);

	if (n < 0 && errno != EAGAIN)
		return -errno;
	*ret = n > 0 ? (uint64_t)n : 0;
	return 0;
}

/* TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2: no FIN was received. */
#define NO_FIN (1U << 1 | 1U << 4 | 1U << 5)

int tcp_received(int fd, uint64_t header, uint64_t *ret)
{
	struct tcp_info info;
	int r = get_info(fd, &info);

	if (r)
		return r;
	/* tcp_rcv_nxt_update() counts FIN as a byte */
	*ret = info.tcpi_bytes_received - (1U << info.tcpi_state & NO_FIN ? 0 : 1) - header;
	return 0;
}

int tcp_activity(int fd, struct tcp_activity *ret)
{
	struct tcp_info info;
	int r = get_info(fd, &info);

	*ret = (struct tcp_activity){
		.data_received_ago_ms = info.tcpi_last_data_recv,
		.data_sent_ago_ms = info.tcpi_last_data_sent,
		.ack_received_ago_ms = info.tcpi_last_ack_recv,
		.acked = info.tcpi_bytes_acked,
		.owed = info.tcpi_unacked > 0,
		/*
		 * The times show whether data was sent after the last ACK.  Our FIN sets no time:
		 * one unacknowledged segment in a state other than ESTABLISHED (1) and CLOSE_WAIT
		 * (8) counts as that FIN.
		 */
		.asked = info.tcpi_probes ||
			 (info.tcpi_unacked && info.tcpi_last_data_sent < info.tcpi_last_ack_recv) ||
			 (info.tcpi_unacked == 1 && info.tcpi_state != 1 && info.tcpi_state != 8),
	};
	return r;
}

int tcp_accepted(int fd, bool connected, uint64_t header, uint64_t *ret)
{
	struct tcp_info info;
	int queued, r = get_info(fd, &info);

	if (r)
		return r;
	if (ioctl(fd, SIOCOUTQ, &queued))
		return -errno;
	*ret = info.tcpi_bytes_acked - (connected ? 1 : 0) + (uint64_t)queued;
	*ret -= smaller(*ret, header);
	return 0;
}

bool tcp_holds_bytes(int fd)
{
	int in, out;

	return ioctl(fd, SIOCINQ, &in) || ioctl(fd, SIOCOUTQ, &out) || in || out;
}

/*
 * TCP itself refuses neither SO_RCVLOWAT nor SO_BUF_LOCK, but a BPF program of the cgroup or a
 * security module may.  A low-water mark that was not raised may lose bytes, which the audit finds.
 * A buffer that was not fixed costs memory, up to tcp_rmem[2], and no bytes.  But a mark that
 * cannot be lowered would stop the flow for ever.
 */
int tcp_set_lowat(int fd, int bytes)
{
	return socket_set(fd, SOL_SOCKET, SO_RCVLOWAT, bytes);
}

/*
 * SO_RCVLOWAT alone enlarges a receive buffer without a privilege, and beyond the administrator's
 * net.core.rmem_max: tcp_set_rcvlowat() makes room for twice the mark, unless the buffer is larger
 * already.
 */
int tcp_fix_buffer(int fd, uint64_t size)
{
	if (tcp_set_lowat(fd, (int)smaller(size / 2, INT_MAX)))
		return 0;
	socket_set(fd, SOL_SOCKET, SO_BUF_LOCK, SOCK_RCVBUF_LOCK);
	return tcp_set_lowat(fd, 1);
}

void tcp_unfix_buffer(int fd)
{
	socket_set(fd, SOL_SOCKET, SO_BUF_LOCK, 0);
}

int tcp_handshake(int fd, struct tcp_handshake *ret)
{
	struct tcp_info info;
	int r = get_info(fd, &info);

	*ret = (struct tcp_handshake){
		.takes = info.tcpi_snd_mss,
		.told = info.tcpi_advmss,
		.window = info.tcpi_snd_wnd,
		.timestamps = info.tcpi_options & TCPI_OPT_TIMESTAMPS,
		.ecn = info.tcpi_options & TCPI_OPT_ECN,
		.scaled = info.tcpi_options & TCPI_OPT_WSCALE,
	};
	/* tcpi_snd_mss lacks the timestamps, which each segment has */
	ret->takes += ret->timestamps ? 12 : 0;
	return r;
}

void tcp_set_unscaled(int fd, bool unscaled)
{
	socket_set(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, unscaled ? 65535 : 1 << 30);
}

void tcp_hold_ack(int fd)
{
	socket_set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 1); /* on; only listeners count seconds */
}

/*
 * Keepalive is N seconds: a living end is heard at least every N, and a dead one is noticed within
 * 2 N.
 *   - TCP probes after half of N.  The packet programs answer the probe for an end that was heard
 *     since the last probe.  So a probe of a frozen socket may reach the end only after N.
 *   - All times are an eighth shorter: timers of the kernel may be so late (kernel/time/timer.c).
 */
#define PART(keepalive_ms, n) ((int)((keepalive_ms)*7 / 8000 / (n)) ?: 1)
#define KEEPALIVE_PROBES 4 /* unanswered, before the peer is given up */
#define PROBES_MAX 127     /* MAX_TCP_KEEPCNT */

int tcp_set_keepalive(int fd, unsigned int keepalive_ms, unsigned int more)
{
	int probes = KEEPALIVE_PROBES + (int)smaller(more, PROBES_MAX - KEEPALIVE_PROBES);
	int r;

	if (!keepalive_ms)
		return socket_set(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
	r = socket_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, PART(keepalive_ms, 2));
	r = r ?: socket_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, PART(keepalive_ms, KEEPALIVE_PROBES));
	r = r ?: socket_set(fd, IPPROTO_TCP, TCP_KEEPCNT, probes);
	return r ?: socket_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void tcp_probe_now(int fd)
{
	/* a probe that finds no route counts as unanswered, but must not end the connection */
	socket_set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES_MAX);
	socket_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	socket_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
}

int tcp_set_session_options(int fd, bool nodelay, unsigned int keepalive_ms)
{
	socket_set(fd, SOL_SOCKET, SO_OOBINLINE, 1); /* an urgent byte stays in the stream */
	socket_set(fd, IPPROTO_TCP, TCP_NODELAY, nodelay);
	return tcp_set_keepalive(fd, keepalive_ms, 0);
}

int socket_set_mark(int fd, unsigned int mark)
{
	return socket_set(fd, SOL_SOCKET, SO_MARK, (int)mark);
}

int socket_set_transparent(int fd, int family)
{
	return family == AF_INET6 ? socket_set(fd, IPPROTO_IPV6, IPV6_TRANSPARENT, 1) :
				    socket_set(fd, IPPROTO_IP, IP_TRANSPARENT, 1);
}

int socket_bind_interface(int fd, const char *name)
{
	socklen_t len = (socklen_t)strlen(name) + 1;

	return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, len) ? -errno : 0;
}

int socket_bind_source(int fd, const struct sockaddr *source, socklen_t len)
{
	struct sockaddr_in6 a;                                          /* the larger of the two */
	int r = socket_set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1); /* of IPv6 sockets too */

	memcpy(&a, source, len);
	a.sin6_port = 0; /* at the same place in sockaddr_in */
	return r ?: bind(fd, (struct sockaddr *)&a, len) ? -errno : 0;
}
