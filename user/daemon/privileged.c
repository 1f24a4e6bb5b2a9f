// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a child that the daemon makes before it gives up root.  A child, and not the
 * parent that others make of such a process: so the process that was started stays the daemon, and
 * its PID, its exit code, its signals and what it tells systemd need nobody to pass them on.
 *
 * It keeps its uid, two capabilities at most, stderr, and one end of a pair of sockets, and loads a
 * system call filter of its own; then it answers requests, one after the other, until that socket
 * is at its end because the daemon is.  It takes no signal that can be blocked: a terminal and
 * systemd send theirs to the daemon as well, which has its reasons to live on for a while.
 *
 * It keeps no descriptor that it has handed over, and tells the daemon when it has closed them all
 * (PRIVILEGED_CLOSED).  Until then the daemon must not use them: see close_side() in relay/session.c.
 *
 * The daemon is not trusted.  All that comes from it is one struct of a fixed size, and
 * privileged_judge() says whether it is allowed.  What is not allowed is refused.  Who sends what the
 * daemon would never send is somebody else in its place, and gets nothing any more.
 */
#include "daemon/privileged.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/advice.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/sandbox.h"
#include "config/file.h"
#include "daemon/syscall_filter.h"
#include "datapath/tcp.h"
#include "relay/listener.h"

#define PRIVILEGED_FD 3 /* the pair, as this process knows it */

/* --- what it may be asked for: no system calls --- */

#define PORT_UNPRIVILEGED 1024

static const struct config *find(const struct privileged_known *k, uint32_t generation)
{
	for (int i = 0; i < 2; i++)
		if (k->configs[i].n_forwards && k->configs[i].generation == generation)
			return &k->configs[i];
	return NULL;
}

static bool is_sane(const struct addr *a)
{
	switch (a->ss.ss_family) {
	case AF_INET:
		return a->len == sizeof(struct sockaddr_in);
	case AF_INET6:
		return a->len == sizeof(struct sockaddr_in6);
	case AF_UNIX: /* the path has a byte at least */
		return a->len > offsetof(struct sockaddr_un, sun_path) &&
		       a->len <= sizeof(struct sockaddr_un);
	default:
		return false;
	}
}

/*
 * Is PORT what a configuration means that says WRITTEN?  Port 0 is one of the kernel's choice,
 * which the further sockets of a group then have: any that needs no privilege.
 */
static bool is_port(in_port_t written, in_port_t port)
{
	return written ? port == written : !port || ntohs(port) >= PORT_UNPRIVILEGED;
}

static bool may_listen(const struct endpoint *e, struct addr a)
{
	in_port_t port;

	for (size_t i = 0; i < e->n_addrs; i++)
		if (addr_equal(&e->addrs[i], &a))
			return true;
	if (!addr_is_inet(&a))
		return false;
	port = addr_port(&a);
	if (!e->n_addrs) /* a host name, whose addresses the daemon has looked up */
		return is_port(e->named_port, port);
	addr_set_port(&a, 0);
	for (size_t i = 0; i < e->n_addrs; i++)
		if (addr_equal(&e->addrs[i], &a) && is_port(0, port))
			return true;
	return false;
}

static int judge_listen(const struct privileged_request *q, const struct config *c,
			const char **ret_why)
{
	const struct addr *a = &q->addr;

	*ret_why = "a malformed address";
	if (!is_sane(a))
		return -EBADMSG;
	*ret_why = "a malformed number of sockets";
	if (!q->count || q->count > PRIVILEGED_FDS || q->joins > 1 ||
	    (!addr_is_inet(a) && (q->count > 1 || q->joins)))
		return -EBADMSG;
	*ret_why = "the forward does not listen on that address";
	return may_listen(&c->forwards[q->forward].listen, *a) ? 0 : -EPERM;
}

static int judge_sockets(const struct privileged_request *q, const struct config *c,
			 const char **ret_why)
{
	*ret_why = "a malformed number of sockets, or family";
	if (!q->count || q->count > PRIVILEGED_FDS ||
	    (q->family != AF_INET && q->family != AF_INET6))
		return -EBADMSG;
	*ret_why = "the forward has no mark and is not transparent";
	return forward_needs_privileges(&c->forwards[q->forward]) ? 0 : -EPERM;
}

static int judge_open_log(const struct privileged_request *q, const struct privileged_known *k,
			  const char **ret_why)
{
	*ret_why = "a malformed number of files";
	if (q->count != 1)
		return -EBADMSG;
	*ret_why = "there is no session log";
	return k->log ? 0 : -EPERM;
}

int privileged_judge(const struct privileged_request *q, size_t len,
		     const struct privileged_known *k, const struct config **ret_c,
		     const char **ret_why)
{
	const struct config *c;

	*ret_why = "a request of the wrong size";
	if (len != sizeof(*q))
		return -EBADMSG;
	*ret_c = NULL;
	if (q->op == PRIVILEGED_OPEN_LOG)
		return judge_open_log(q, k, ret_why);
	*ret_why = "a configuration that is not kept";
	c = *ret_c = find(k, q->generation);
	if (!c)
		return -EPERM;
	*ret_why = "no such forward";
	if (q->op != PRIVILEGED_READ_CONFIG && q->forward >= c->n_forwards)
		return -EPERM;
	switch (q->op) {
	case PRIVILEGED_READ_CONFIG:
		*ret_why = "there is no configuration file";
		return c->file ? 0 : -EPERM;
	case PRIVILEGED_LISTEN:
		return judge_listen(q, c, ret_why);
	case PRIVILEGED_SOCKETS:
		return judge_sockets(q, c, ret_why);
	default:
		*ret_why = "an unknown request";
		return -EBADMSG;
	}
}

/* --- what it gives up --- */

#define DESCRIPTORS (PRIVILEGED_FDS + 32) /* RLIMIT_NOFILE */

/* A file may be read, or appended to. */
#define TO_READ SYSCALL_ARG_BITS(2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY)
#define TO_APPEND                                                                                  \
	SYSCALL_ARG_BITS(2, O_ACCMODE | O_APPEND | O_NOFOLLOW | O_TRUNC,                           \
			 O_WRONLY | O_APPEND | O_NOFOLLOW)
#define STREAM (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

static const struct syscall_need needed[] = {
	/* the pair */
	SYSCALL(recvfrom), SYSCALL(sendto), SYSCALL(sendmsg), SYSCALL(close),
	/* the file, and who could have written it; names of services */
	SYSCALL(openat, TO_READ), SYSCALL(read), SYSCALL(lseek), SYSCALL(fstat),
	SYSCALL(newfstatat), SYSCALL(readlink), SYSCALL(readlinkat), SYSCALL(getcwd),
	SYSCALL(faccessat), SYSCALL(faccessat2), SYSCALL(geteuid),
	SYSCALL(fcntl, SYSCALL_ARG(1, F_GETFL)),
	SYSCALL(mmap, SYSCALL_ARG_BITS(2, PROT_EXEC, 0)),
	/* the number of a network interface in an IPv6 address */
	SYSCALL(socket, SYSCALL_ARG(0, AF_UNIX), SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC)),
	SYSCALL(ioctl, SYSCALL_ARG(1, SIOCGIFINDEX)),
	/* the session log */
	SYSCALL_IF(PART_SESSION_LOG, openat, TO_APPEND), SYSCALL(getegid),
	/* listeners */
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, STREAM), SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, STREAM), SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_UNIX), SYSCALL_ARG(1, STREAM), SYSCALL_ARG(2, 0)),
	SYSCALL(bind), SYSCALL(listen), SYSCALL(getsockname), SYSCALL(umask),
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_REUSEADDR)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_REUSEPORT)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_OOBINLINE)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_KEEPALIVE)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_IPV6), SYSCALL_ARG(2, IPV6_V6ONLY)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_NODELAY)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_KEEPIDLE)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_KEEPINTVL)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_KEEPCNT)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_MARK)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_IP), SYSCALL_ARG(2, IP_TRANSPARENT)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_IPV6), SYSCALL_ARG(2, IPV6_TRANSPARENT)),
	/* the file of a unix socket that nobody listens on */
	SYSCALL(connect), SYSCALL(lstat), SYSCALL(unlink),
	SYSCALL(unlinkat, SYSCALL_ARG(2, 0)),
	/* stderr */
	SYSCALL(write), SYSCALL(poll), SYSCALL(ppoll),
	{ .call = SYSCALLS_END },
};

static bool needs_admin(const struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++)
		if (forward_needs_privileges(&c->forwards[i]))
			return true;
	return false;
}

/*
 * Take from this process all that it does not need: descriptors but FD, which becomes PRIVILEGED_FD,
 * and stderr; signals; capabilities; system calls.  A configuration that is read again may bring
 * marks, transparent forwards, and low ports.
 */
static int confine(int fd, const struct config *c, char *err, size_t errlen)
{
	const cap_value_t keep[] = { CAP_NET_ADMIN, CAP_NET_BIND_SERVICE };
	const struct rlimit descriptors = { DESCRIPTORS, DESCRIPTORS };
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	sigset_t all;
	int r;

	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
	    dup2(fd, PRIVILEGED_FD) < 0) {
		snprintf(err, errlen, "cannot order its descriptors: %s", strerror(errno));
		return -errno;
	}
	closefrom(PRIVILEGED_FD + 1);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, "culvert-priv", 0, 0, 0);
	setrlimit(RLIMIT_NOFILE, &descriptors);
	/* what the C library opens for it must be open */
	/* cppcheck-suppress getservbynameCalled ; there is one thread */
	(void)getservbyname("http", "tcp");
	r = sandbox_keep(keep, c->file ? 2 : needs_admin(c), err, errlen);
	if (!r && !syscall_filter_hindrance())
		r = syscall_filter_enter_list(c->seccomp, needed,
					      log_file_is_path(c->session_log) ?
						      PART_SESSION_LOG : 0, err, errlen);
	return r;
}

struct server {
	int argc;
	char **argv;
	struct privileged_known known;
	uint32_t last; /* number of a configuration */
};

/* --- answers --- */

/* The daemon is gone if it cannot be told. */
static void send_answer(const struct privileged_answer *a, int *fds, size_t n)
{
	union {
		char room[CMSG_SPACE(sizeof(int) * PRIVILEGED_FDS)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { (void *)a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	const char closed = PRIVILEGED_CLOSED;

	if (n) {
		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int) * n);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, sizeof(int) * n);
	}
	if (sendmsg(PRIVILEGED_FD, &m, MSG_NOSIGNAL) < 0)
		_exit(1);
	if (!n)
		return;
	while (n)
		close(fds[--n]);
	if (send(PRIVILEGED_FD, &closed, sizeof(closed), MSG_NOSIGNAL) < 0)
		_exit(1);
}

static void refuse(int error, const char *text)
{
	struct privileged_answer a = { .error = error };

	snprintf(a.text, sizeof(a.text), "%s", text);
	send_answer(&a, NULL, 0);
}

/* --- the configuration file --- */

static void send_text(const char *text, size_t len)
{
	for (size_t n; len; text += n, len -= n) {
		n = len < PRIVILEGED_PIECE ? len : PRIVILEGED_PIECE;
		if (send(PRIVILEGED_FD, text, n, MSG_NOSIGNAL) < 0)
			_exit(1);
	}
}

/* IN_USE stays; the other one that was kept gives way. */
static void read_config(struct server *s, const struct config *in_use)
{
	static char text[CONFIG_FILE_MAX + 1];
	struct config *place = &s->known.configs[in_use == &s->known.configs[0]];
	struct config_source from = { .text = text };
	struct privileged_answer a = { 0 };
	struct config c = { 0 };
	int r;

	log_keep_complaint(a.text, sizeof(a.text));
	r = config_file_read(in_use->file, text, &from.len);
	r = r ?: config_parse_from(s->argc, s->argv, &from, &c);
	log_keep_complaint(NULL, 0);
	if (r) {
		a.error = r < 0 ? -r : EINVAL;
		config_close(&c);
		send_answer(&a, NULL, 0);
		return;
	}
	config_close(place);
	*place = c;
	place->generation = a.generation = ++s->last;
	a.size = (uint32_t)from.len;
	send_answer(&a, NULL, 0);
	send_text(text, from.len);
}

/* --- sockets --- */

/* One that can be connected. */
static int make_socket(const struct forward_conf *fc, int family, int *ret_fd)
{
	int r = 0, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*ret_fd = fd;
	if (fd < 0)
		return -errno;
	if (fc->mark)
		r = socket_set_mark(fd, fc->mark);
	if (!r && fc->transparent)
		r = socket_set_transparent(fd, family);
	if (r)
		close(fd);
	return r;
}

static void make_sockets(const struct privileged_request *q, const struct forward_conf *fc)
{
	int fds[PRIVILEGED_FDS], r = 0;
	size_t n = 0;

	while (!r && n < q->count) {
		r = make_socket(fc, (int)q->family, &fds[n]);
		n += !r;
	}
	if (!r) {
		send_answer(&(struct privileged_answer){ 0 }, fds, n);
		return;
	}
	while (n)
		close(fds[--n]);
	refuse(-r, strerror(-r));
}

static void make_listeners(const struct privileged_request *q, const struct forward_conf *fc)
{
	struct privileged_answer a = { .addr = q->addr };
	int fds[PRIVILEGED_FDS], r = listener_sockets(fc, &a.addr, q->joins, q->count, fds);
	char why[PRIVILEGED_TEXT];

	if (!r) {
		send_answer(&a, fds, q->count);
		return;
	}
	snprintf(why, sizeof(why), "%s%s", strerror(-r), advice(ADVICE_LISTEN, -r));
	refuse(-r, why);
}

/* --- the session log --- */

static void open_log(const char *path)
{
	/* who this process is: nobody else's file is a log of ours */
	const struct account self = { .name = "root", .uid = geteuid(), .gid = getegid() };
	char err[PRIVILEGED_TEXT];
	int fd = log_file_open(path, &self, err, sizeof(err));

	if (fd < 0)
		refuse(-fd, err);
	else
		send_answer(&(struct privileged_answer){ 0 }, &fd, 1);
}

/* --- requests --- */

static void take_request(struct server *s, const struct privileged_request *q, size_t len)
{
	const struct config *c;
	const char *why;
	int r = privileged_judge(q, len, &s->known, &c, &why);

	if (r) {
		log_limited(LOG_ERR, "privileged process: refused: %s%s", why,
			    r != -EBADMSG ? "" :
			    ", which culvert would not ask for: it does not seem to be itself");
		if (r == -EBADMSG)
			_exit(1);
		refuse(-r, why);
		return;
	}
	if (q->op == PRIVILEGED_OPEN_LOG)
		open_log(s->known.log);
	else if (q->op == PRIVILEGED_READ_CONFIG)
		read_config(s, c);
	else if (q->op == PRIVILEGED_LISTEN)
		make_listeners(q, &c->forwards[q->forward]);
	else
		make_sockets(q, &c->forwards[q->forward]);
}

void privileged_run(int fd, const struct config *c, int argc, char **argv)
{
	struct server s = { .argc = argc, .argv = argv, .known.configs[0] = *c };
	struct privileged_request q;
	struct privileged_answer ready = { 0 };
	ssize_t n;

	if (log_file_is_path(c->session_log))
		s.known.log = strdup(c->session_log); /* the configuration may go */
	ready.error = -confine(fd, c, ready.text, sizeof(ready.text));
	send_answer(&ready, NULL, 0);
	if (ready.error)
		_exit(1);
	for (;;) {
		n = recv(PRIVILEGED_FD, &q, sizeof(q), MSG_TRUNC);
		if (n == 0 || (n < 0 && errno != EINTR))
			_exit(0);
		if (n > 0)
			take_request(&s, &q, (size_t)n);
	}
}
