// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the daemon forks the privileged process before it gives up root.  In other
 * programs the privileged process is the parent.  Here it is the child, so the process that was
 * started stays the daemon: no process has to pass on signals, exit code and messages to systemd.
 *
 * The child keeps its uid, two capabilities at most, stderr, one end of a pair of sockets, and
 * before Linux 6.6 the packet programs.  The child loads a system call filter of its own.  Then it
 * answers requests, one after the other, until the daemon has closed the other end.  All signals
 * are blocked in the child.  A terminal and systemd also send each signal to the daemon, and the
 * daemon may need its child for a while afterwards.
 *
 * The daemon is not trusted.  All that comes from it is one struct of a fixed size, and
 * privileged_judge() says whether it is allowed.  A request that is not allowed is refused.  A
 * request that the daemon would never make comes from an attacker in its place, so the privileged
 * process ends.
 */
#include "daemon/privileged_process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "base/syscalls_allowed.h"
#include "config/file.h"
#include "config/read.h"
#include "datapath/tcp.h"
#include "datapath/tcp_repair.h"
#include "relay/listener.h"

#define PRIVILEGED_FD SANDBOX_CHILD_FD /* the pair, as this process knows it */

/* --- which requests are allowed: no system calls --- */

#define PORT_UNPRIVILEGED 1024

static bool is_sane_addr(const struct addr *a)
{
	if (addr_is_inet(a))
		return a->len == (a->ss.ss_family == AF_INET ? sizeof(a->in) : sizeof(a->in6));
	/* the path has a byte at least */
	return a->ss.ss_family == AF_UNIX && a->len > offsetof(struct sockaddr_un, sun_path) &&
	       a->len <= sizeof(struct sockaddr_un);
}

static bool is_sane(const struct privileged_request *q)
{
	if ((q->count == 0) != (q->op == PRIVILEGED_FILTERS) || q->count > WORKERS_MAX ||
	    q->took > 1 || q->joins > 1 || q->transparent > 1 || q->udp > 1 ||
	    q->link >= GRAFT_LINKS)
		return false;
	switch (q->op) {
	case PRIVILEGED_READ_CONFIG:
		return q->count == PRIVILEGED_FILES;
	case PRIVILEGED_LISTEN:
		return is_sane_addr(&q->addr) &&
		       (addr_is_inet(&q->addr) || (q->count == 1 && !q->joins && !q->udp));
	case PRIVILEGED_SOCKETS:
		return q->family == AF_INET || q->family == AF_INET6;
	case PRIVILEGED_FILTERS:
		return true;
	case PRIVILEGED_REVIVE:
		return q->count == 1 && graft_addr_is_ipv6(&q->side.tuple.local) == q->side.ipv6 &&
		       graft_addr_is_ipv6(&q->side.tuple.remote) == q->side.ipv6 &&
		       q->side.window_left <= 14 && q->side.read_shift <= 14;
	default:
		return false;
	}
}

/*
 * Is PORT one of the N ports from WRITTEN on?  If WRITTEN is 0, the kernel picks the port of the
 * first socket of a group, and the further sockets ask for the picked port.  So every unprivileged
 * port is allowed.
 */
static bool is_port(in_port_t written, unsigned int n, in_port_t port)
{
	return written ? (unsigned int)(ntohs(port) - ntohs(written)) < n :
			 !port || ntohs(port) >= PORT_UNPRIVILEGED;
}

static bool may_listen(const struct endpoint *e, struct addr a)
{
	in_port_t port = addr_port(&a);

	if (!e->n_addrs) /* a host name, whose addresses the daemon has looked up */
		return addr_is_inet(&a) && is_port(e->named_port, e->n_ports, port);
	for (size_t i = 0; i < e->n_addrs; i++) {
		in_port_t written = addr_port(&e->addrs[i]);

		addr_set_port(&a, written);
		if (addr_equal(&e->addrs[i], &a) && is_port(written, 1, port))
			return true;
	}
	return false;
}

static bool may_have(const struct privileged_request *q, const struct forward_conf *fc)
{
	/*
	 * A revived socket is no new power for the daemon: with a forged record, packet programs
	 * can send packets from any address, too.
	 */
	if (q->op == PRIVILEGED_REVIVE)
		return !fc->listen.udp;
	if (q->transparent != fc->transparent || q->udp != fc->listen.udp)
		return false;
	return q->op == PRIVILEGED_LISTEN ? may_listen(&fc->listen, q->addr) :
					    forward_needs_privileges(fc) && q->mark == fc->mark;
}

int privileged_judge(const struct privileged_request *q, size_t len, const struct config configs[2],
		     const struct forward_conf **ret_fc, const char **ret_why)
{
	*ret_fc = NULL;
	*ret_why = "a malformed request";
	if (len != sizeof(*q) || !is_sane(q))
		return -EBADMSG;
	if (q->op == PRIVILEGED_FILTERS)
		return 0;
	*ret_why = "there is no configuration file";
	if (q->op == PRIVILEGED_READ_CONFIG)
		return configs[0].file ? 0 : -EPERM;
	*ret_why = q->op == PRIVILEGED_LISTEN ? "no forward listens on that address" :
		   q->op == PRIVILEGED_REVIVE ? "no forward carries TCP" :
						"no forward has that mark, or is transparent";
	for (int i = 0; i < 2; i++)
		for (size_t j = 0; j < configs[i].n_forwards; j++)
			if (may_have(q, &configs[i].forwards[j])) {
				*ret_fc = &configs[i].forwards[j];
				return 0;
			}
	return -EPERM;
}

/* --- confinement --- */

/* A file may be read. */
#define TO_READ SYSCALL_ARG_BITS(2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY)
#define STREAM (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
#define DGRAM (SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

/* clang-format off */
static const struct syscall_need needed[] = {
	/* the pair */
	SYSCALL(recvfrom), SYSCALL(sendto), SYSCALL(sendmsg), SYSCALL(close),
	/* the file, and the accounts that could have written it */
	SYSCALL(openat, TO_READ), SYSCALL(read), SYSCALL(lseek), SYSCALL(fstat),
	SYSCALL(newfstatat), SYSCALL(readlink), SYSCALL(readlinkat), SYSCALL(getcwd),
	SYSCALL(faccessat), SYSCALL(faccessat2), SYSCALL(geteuid),
	SYSCALL(fcntl, SYSCALL_ARG(1, F_GETFL)), SYSCALL(getdents64), SYSCALL(memfd_create),
	SYSCALL(mmap, SYSCALL_ARG_BITS(2, PROT_EXEC, 0)),
	/* the number of a network interface in an IPv6 address */
	SYSCALL(socket, SYSCALL_ARG(0, AF_UNIX), SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC)),
	SYSCALL(ioctl, SYSCALL_ARG(1, SIOCGIFINDEX)),
	/* listeners */
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, STREAM), SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, STREAM), SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_UNIX), SYSCALL_ARG(1, STREAM), SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, DGRAM), SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, DGRAM), SYSCALL_ARG(2, 0)),
	SETSOCKOPT(SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF), SETSOCKOPT(SOL_UDP, UDP_GRO),
	SETSOCKOPT(IPPROTO_IP, IP_PKTINFO), SETSOCKOPT(IPPROTO_IPV6, IPV6_RECVPKTINFO),
	SETSOCKOPT(IPPROTO_IP, IP_RECVERR), SETSOCKOPT(IPPROTO_IPV6, IPV6_RECVERR),
	SETSOCKOPT(IPPROTO_IP, IP_MTU_DISCOVER), SETSOCKOPT(IPPROTO_IPV6, IPV6_MTU_DISCOVER),
	SYSCALL(bind), SYSCALL(listen), SYSCALL(getsockname), SYSCALL(umask),
	SETSOCKOPT(SOL_SOCKET, SO_REUSEADDR), SETSOCKOPT(SOL_SOCKET, SO_REUSEPORT),
	SETSOCKOPT(SOL_SOCKET, SO_RCVBUFFORCE), SETSOCKOPT(SOL_SOCKET, SO_RCVBUF),
	SETSOCKOPT(SOL_SOCKET, SO_OOBINLINE), SETSOCKOPT(SOL_SOCKET, SO_KEEPALIVE),
	SETSOCKOPT(IPPROTO_IPV6, IPV6_V6ONLY), SETSOCKOPT(IPPROTO_TCP, TCP_NODELAY),
	SETSOCKOPT(IPPROTO_TCP, TCP_KEEPIDLE), SETSOCKOPT(IPPROTO_TCP, TCP_KEEPINTVL),
	SETSOCKOPT(IPPROTO_TCP, TCP_KEEPCNT), SETSOCKOPT(SOL_SOCKET, SO_MARK),
	SETSOCKOPT(IPPROTO_IP, IP_TRANSPARENT), SETSOCKOPT(IPPROTO_IPV6, IPV6_TRANSPARENT),
	/* sockets of sessions that came from another relay */
	SETSOCKOPT(IPPROTO_TCP, TCP_REPAIR), SETSOCKOPT(IPPROTO_TCP, TCP_REPAIR_QUEUE),
	SETSOCKOPT(IPPROTO_TCP, TCP_QUEUE_SEQ), SETSOCKOPT(IPPROTO_TCP, TCP_REPAIR_OPTIONS),
	SETSOCKOPT(IPPROTO_TCP, TCP_REPAIR_WINDOW),
	/* the file of a unix socket without a listener */
	SYSCALL(connect), SYSCALL(lstat), SYSCALL(unlink),
	SYSCALL(unlinkat, SYSCALL_ARG(2, 0)),
	/* filters of clsact, for which libbpf and if_nameindex(3) use netlink */
	SYSCALL_IF(PART_GRAFT, socket, SYSCALL_ARG(0, AF_NETLINK), SYSCALL_ARG(2, NETLINK_ROUTE)),
	SYSCALL_IF(PART_GRAFT, recvmsg),
	SETSOCKOPT_IF(PART_GRAFT, SOL_NETLINK, NETLINK_EXT_ACK),
	BPF_IF(PART_GRAFT, BPF_OBJ_GET_INFO_BY_FD), /* names of programs */
	/* stderr */
	SYSCALL(write), SYSCALL(poll), SYSCALL(ppoll),
	{ .call = SYSCALLS_END },
};
/* clang-format on */

/*
 * Take from this process all descriptors, signals, capabilities and system calls that it does not
 * need.  The process keeps stderr, FD and the programs of CLSACT.  FD becomes PRIVILEGED_FD, and
 * the programs get other numbers.  A configuration file that is read again may bring low ports, so
 * the process keeps CAP_NET_BIND_SERVICE if there is a file.
 */
static int confine(int fd, const struct config *c, struct clsact *clsact)
{
	const uint64_t ports = c->file ? 1U << CAP_NET_BIND_SERVICE : 0;
	int kept[1 + 2 * HOOKS] = { fd }, r;

	if (clsact)
		memcpy(&kept[1], clsact->programs, sizeof(clsact->programs));
	r = sandbox_child("culvert-priv", kept, clsact ? 1 + 2 * HOOKS : 1);
	if (r)
		return r;
	if (clsact)
		memcpy(clsact->programs, &kept[1], sizeof(clsact->programs));
	r = sandbox_enter(NULL, 1U << CAP_NET_ADMIN | ports);
	return r ?: syscall_filter_enter(c->seccomp, needed, clsact ? PART_GRAFT : 0);
}

/* --- the privileged process --- */

void privileged_close(const int *fds, size_t n)
{
	while (n > 0)
		close(fds[--n]);
}

/* Hand over N descriptors, and close them here. */
static void hand_over(int *fds, size_t n)
{
	union {
		struct cmsghdr head;
		char room[PRIVILEGED_ROOM_FOR_FDS];
	} control = { .head = { CMSG_LEN(sizeof(int) * n), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov = { (char[]){ 'f' }, 1 };
	const struct msghdr m = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = CMSG_SPACE(sizeof(int) * n) };

	memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * n);
	(void)!sendmsg(PRIVILEGED_FD, &m, MSG_NOSIGNAL);
	privileged_close(fds, n);
}

struct serving {
	int argc;
	char **argv;
	struct config configs[2]; /* that the daemon works with; the last that was read */
	struct clsact *clsact;    /* NULL: filters are not its business */
};

/* 0 or -errno, after a complaint. */
static int read_config(struct serving *s, bool took, int *fds)
{
	struct config *last = &s->configs[1];
	int r;

	if (took && last->n_forwards) {
		config_close(&s->configs[0]);
		s->configs[0] = *last;
		*last = (struct config){ 0 };
	}
	config_close(last);
	fds[PRIVILEGED_CONFIG] = r = config_file_open(s->configs[0].file);
	if (r < 0)
		return r;
	r = config_read(s->argc, s->argv, r, last);
	if (r) {
		config_close(last);
		close(fds[PRIVILEGED_CONFIG]);
		return r;
	}
	lseek(fds[PRIVILEGED_CONFIG], 0, SEEK_SET);
	for (int i = 0; i < NAMES_FILES; i++) {
		r = open(names_files[i], O_RDONLY | O_CLOEXEC);
		fds[PRIVILEGED_NAMES + i] = r < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : r;
	}
	return 0;
}

static int make_sockets(const struct privileged_request *q, const struct forward_conf *fc, int *fds)
{
	int family = (int)q->family, r = 0;
	size_t n;

	for (n = 0; !r && n < q->count; n++) {
		fds[n] = socket(family, fc->listen.udp ? DGRAM : STREAM, 0);
		r = fds[n] < 0 ? -errno : 0;
		if (!r && fc->mark)
			r = socket_set_mark(fds[n], fc->mark);
		if (!r && fc->transparent)
			r = socket_set_transparent(fds[n], family);
	}
	if (r)
		privileged_close(fds, n);
	return r;
}

static void serve(struct serving *s, const struct privileged_request *q, size_t len)
{
	struct privileged_answer a = { 0 };
	const struct forward_conf *fc;
	int fds[WORKERS_MAX];
	const char *why;
	int r = privileged_judge(q, len, s->configs, &fc, &why);

	if (r == -EBADMSG) {
		log_error("privileged process: %s: the daemon may have been taken over, so this "
			  "process ends",
			  why);
		_exit(1);
	}
	if (r) {
		log_limited(LOG_ERR, "privileged process: refused: %s", why);
		snprintf(a.text, sizeof(a.text), "%s", why);
	} else if (q->op == PRIVILEGED_READ_CONFIG) {
		log_keep_complaint(a.text, sizeof(a.text));
		r = read_config(s, q->took, fds);
		log_keep_complaint(NULL, 0);
	} else if (q->op == PRIVILEGED_REVIVE) {
		fds[0] = tcp_revive(&q->side, geteuid());
		r = fds[0] < 0 ? fds[0] : 0;
	} else if (q->op == PRIVILEGED_FILTERS) {
		r = s->clsact ? clsact_do(s->clsact, q->ifindex, q->link) : -EPERM;
	} else if (q->op == PRIVILEGED_LISTEN) {
		a.addr = q->addr;
		r = listener_sockets(NULL, fc, &a.addr, q->joins, q->count, fds, a.text,
				     sizeof(a.text));
	} else {
		r = make_sockets(q, fc, fds);
	}
	if (!r && q->count)
		hand_over(fds, q->count);
	a.error = -r;
	/* end: else the daemon would wait for this answer before each later request */
	if (send(PRIVILEGED_FD, &a, sizeof(a), MSG_NOSIGNAL) != sizeof(a))
		_exit(1);
}

/*
 * Be the privileged process: FD is its end of the pair, the others are those of privileged_start().
 * Its first packet is an answer, which says whether the process is ready.
 */
_Noreturn void privileged_serve_all(int fd, const struct config *c, int argc, char **argv,
				    struct clsact *clsact)
{
	struct serving s = { .argc = argc, .argv = argv, .configs[0] = *c, .clsact = clsact };
	struct privileged_answer ready = { 0 };
	struct privileged_request q;
	ssize_t n;

	log_keep_complaint(ready.text, sizeof(ready.text));
	ready.error = -confine(fd, c, clsact);
	log_keep_complaint(NULL, 0);
	(void)!send(PRIVILEGED_FD, &ready, sizeof(ready), MSG_NOSIGNAL);
	if (ready.error)
		_exit(1);
	while ((n = recv(PRIVILEGED_FD, &q, sizeof(q), MSG_TRUNC)) > 0)
		serve(&s, &q, (size_t)n);
	/* filters that are not pinned could not be found later */
	if (clsact && !clsact->pinned)
		clsact_do(clsact, 0, false);
	_exit(0);
}
