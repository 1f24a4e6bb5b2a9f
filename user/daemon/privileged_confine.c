// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/privileged_confine.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log_file.h"
#include "daemon/privileged.h"
#include "base/sandbox.h"
#include "daemon/syscall_filter.h"

#define DESCRIPTORS (PRIVILEGED_FDS + 32) /* RLIMIT_NOFILE */

/* A file may be read, or appended to. */
#define TO_READ SYSCALL_ARG_BITS(2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY)
#define TO_APPEND                                                                                  \
	SYSCALL_ARG_BITS(2, O_ACCMODE | O_APPEND | O_NOFOLLOW | O_TRUNC,                           \
			 O_WRONLY | O_APPEND | O_NOFOLLOW)
#define STREAM (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

static const struct syscall_need needed[] = {
	/* the pair */
	SYSCALL(recvmsg), SYSCALL(sendto), SYSCALL(sendmsg), SYSCALL(close),
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

/* A configuration that is read again may bring marks, transparent forwards, and low ports. */
int privileged_confine(int fd, const struct config *c, char *err, size_t errlen)
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
