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
 * The daemon is not trusted.  All that comes from it is one struct of a fixed size, and
 * privileged_judge() says whether it is allowed.  What is not allowed is refused; who sends what
 * the daemon would never send is somebody else in its place, and gets nothing any more.
 */
#include "privileged.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config_file.h"
#include "listen_socket.h"
#include "log.h"
#include "log_file.h"
#include "privileged_rules.h"
#include "sandbox.h"
#include "session_log.h"
#include "socket_options.h"
#include "syscall_filter.h"

#define SOCKET_FD 3
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
	SYSCALL(openat, TO_READ), SYSCALL_IF(PART_SESSION_LOG, openat, TO_APPEND), SYSCALL(read), SYSCALL(lseek), SYSCALL(fstat),
	SYSCALL(newfstatat), SYSCALL(readlink), SYSCALL(readlinkat), SYSCALL(getcwd),
	SYSCALL(faccessat), SYSCALL(faccessat2), SYSCALL(geteuid), SYSCALL(getegid),
	SYSCALL(fcntl, SYSCALL_ARG(1, F_GETFL)),
	SYSCALL(mmap, SYSCALL_ARG_BITS(2, PROT_EXEC, 0)),
	/* the number of a network interface in an IPv6 address */
	SYSCALL(socket, SYSCALL_ARG(0, AF_UNIX), SYSCALL_ARG(1, SOCK_DGRAM | SOCK_CLOEXEC)),
	SYSCALL(ioctl, SYSCALL_ARG(1, SIOCGIFINDEX)),
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
	SYSCALL(connect), SYSCALL(lstat), SYSCALL(unlink), SYSCALL(unlinkat),
	/* stderr */
	SYSCALL(write), SYSCALL(poll), SYSCALL(ppoll),
	{ .call = SYSCALLS_END },
};

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

	if (n) {
		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int) * n);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, sizeof(int) * n);
	}
	if (sendmsg(SOCKET_FD, &m, MSG_NOSIGNAL) < 0)
		_exit(1);
	while (n)
		close(fds[--n]);
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
		if (send(SOCKET_FD, text, n, MSG_NOSIGNAL) < 0)
			_exit(1);
	}
}

/* One byte more than a file may have: then the parser says that there are too many. */
static int read_file(const char *path, char *buf, size_t *ret_len)
{
	FILE *f;
	int r = config_file_open(path, &f);

	if (r)
		return r;
	*ret_len = fread(buf, 1, CONFIG_FILE_MAX + 1, f);
	if (ferror(f))
		r = log_complain(-EIO, "%s: cannot be read", path);
	fclose(f);
	return r;
}

/* IN_USE stays; the other one that was kept gives way. */
static void read_config(struct server *s, const struct config *in_use)
{
	static char text[CONFIG_FILE_MAX + 1];
	struct config *place = &s->known.configs[in_use == &s->known.configs[0]];
	struct config_source from = { .text = text, .offline = true };
	struct privileged_answer a = { 0 };
	struct config c = { 0 };
	int r;

	log_keep_complaint(a.text, sizeof(a.text));
	r = read_file(in_use->file, text, &from.len);
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

static int make_listener(const struct forward_conf *fc, struct addr *a, int *ret_fd)
{
	int r = listen_socket_open(fc, a, true, ret_fd);

	if (!r)
		listen_socket_learn_port(a, *ret_fd);
	return r;
}

/* One that can be connected. */
static int make_socket(const struct forward_conf *fc, int family, int *ret_fd)
{
	int r = 0, fd = socket(family, STREAM, 0);

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
	struct privileged_answer a = { .addr = q->addr };
	int fds[PRIVILEGED_FDS], r = 0;
	bool listen = q->op == PRIVILEGED_LISTEN;
	size_t n = 0;

	if (listen && !q->joins)
		r = listen_socket_make_room(fc, &q->addr);
	while (!r && n < q->count) {
		r = listen ? make_listener(fc, &a.addr, &fds[n]) :
			     make_socket(fc, (int)q->family, &fds[n]);
		n += !r;
	}
	if (!r) {
		send_answer(&a, fds, n);
		return;
	}
	while (n)
		close(fds[--n]);
	refuse(-r, strerror(-r));
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
		log_limited(LOG_ERR, "privileged process: refused: %s%s", why, r == -EBADMSG ?
			    ", which culvert would not ask for: it does not seem to be itself" : "");
		if (r == -EBADMSG)
			_exit(1);
		refuse(-r, why);
		return;
	}
	if (q->op == PRIVILEGED_OPEN_LOG)
		open_log(s->known.log);
	else if (q->op == PRIVILEGED_READ_CONFIG)
		read_config(s, c);
	else
		make_sockets(q, &c->forwards[q->forward]);
}

/*
 * For marks and transparent sockets, and for ports below 1024: the latter come with a configuration
 * that is read again.
 */
static int confine(int fd, const struct config *c, char *err, size_t errlen)
{
	const cap_value_t keep[] = { CAP_NET_ADMIN, CAP_NET_BIND_SERVICE };
	const struct rlimit descriptors = { DESCRIPTORS, DESCRIPTORS };
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	sigset_t all;
	int r;

	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
	    dup2(fd, SOCKET_FD) < 0) {
		snprintf(err, errlen, "cannot order its descriptors: %s", strerror(errno));
		return -errno;
	}
	closefrom(SOCKET_FD + 1);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, "culvert-priv", 0, 0, 0);
	setrlimit(RLIMIT_NOFILE, &descriptors);
	(void)getservbyname("http", "tcp"); /* what the C library opens for it must be open */
	r = sandbox_keep(keep, c->file ? 2 : 1, err, errlen);
	if (!r && !syscall_filter_hindrance())
		r = syscall_filter_enter_list(c->seccomp, needed,
					      session_log_is_file(c->session_log) ?
						      PART_SESSION_LOG : 0, err, errlen);
	return r;
}

void privileged_run(int fd, const struct config *c, int argc, char **argv)
{
	struct server s = { .argc = argc, .argv = argv, .known.configs[0] = *c };
	struct privileged_request q;
	struct privileged_answer ready = { 0 };
	ssize_t n;

	if (session_log_is_file(c->session_log))
		s.known.log = strdup(c->session_log); /* the configuration may go */
	ready.error = -confine(fd, c, ready.text, sizeof(ready.text));
	send_answer(&ready, NULL, 0);
	if (ready.error)
		_exit(1);
	for (;;) {
		n = recv(SOCKET_FD, &q, sizeof(q), MSG_TRUNC);
		if (n == 0 || (n < 0 && errno != EINTR))
			_exit(0);
		if (n > 0)
			take_request(&s, &q, (size_t)n);
	}
}
