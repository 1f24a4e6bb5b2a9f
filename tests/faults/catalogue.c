/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <string.h>

#include "catalogue.h"

/*
 * From the manual pages and the kernel: what these calls can return on the descriptors that the
 * daemon gives them.  EBADF, EFAULT and the like would be bugs of the daemon itself, and are left
 * out; EPERM and EACCES can come from a security module, EINVAL and ENOPROTOOPT from a kernel that
 * does not know an option.
 */
static const struct failing catalogue[] = {
	{ "accept4",
	  { EAGAIN, EINTR, ECONNABORTED, EMFILE, ENFILE, ENOMEM, ENOBUFS, EPERM, EPROTO, ENETDOWN },
	  false },
	{ "socket", { EMFILE, ENFILE, ENOMEM, ENOBUFS, EACCES, EAFNOSUPPORT }, false },
	{ "connect",
	  { ECONNREFUSED, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EAGAIN, ENOBUFS,
	    EACCES, EPERM, ECONNRESET, EINTR },
	  false },
	{ "getsockopt", { ENOBUFS, ENOMEM, EPERM, EINVAL, ENOPROTOOPT }, false },
	{ "getsockname", { ENOBUFS, EINVAL }, false },
	{ "setsockopt", { ENOMEM, ENOBUFS, EPERM, EINVAL, ENOPROTOOPT }, false },
	{ "recv", { EINTR, EAGAIN, ECONNRESET, ETIMEDOUT, ENOMEM, EHOSTUNREACH }, true },
	/*
	 * recv(MSG_PEEK): the kernel does not say that nothing is there where something is, and
	 * how much it shows is no promise that could be cut
	 */
	{ "peek", { EINTR, ECONNRESET, ETIMEDOUT, ENOMEM, EHOSTUNREACH }, false },
	/* on a unix socket with a time limit; short: without the descriptors */
	{ "recvmsg", { EINTR, EAGAIN, ENOMEM, ECONNRESET }, true },
	{ "send", { EINTR, EAGAIN, ENOBUFS, ENOMEM, EPIPE, ECONNRESET, ETIMEDOUT, EPERM }, true },
	{ "splice", { EINTR, EAGAIN, ENOMEM, EINVAL, EPIPE, ECONNRESET }, true },
	{ "pipe2", { EMFILE, ENFILE, ENOMEM }, false },
	{ "fcntl", { EMFILE, ENOMEM, EPERM, EBUSY, EINVAL }, false },
	{ "ioctl", { EINVAL, ENOMEM, EPERM }, false },
	{ "epoll_ctl", { ENOMEM, ENOSPC, EPERM }, false },
	{ "epoll_wait", { EINTR }, true },
	{ "close", { EINTR, EIO }, false },
	{ "shutdown", { ENOTCONN, ENOBUFS }, false },
	{ "read", { EAGAIN, EINTR }, false },
	{ "pread", { EINTR, EIO, ENOMEM }, true }, /* a file of /proc */
	{ "write", { EAGAIN, EINTR, EPIPE, ENOSPC }, false },
	{ "poll", { EINTR, ENOMEM }, false },
	{ "malloc", { ENOMEM }, false },
	{ "calloc", { ENOMEM }, false },
	{ "realloc", { ENOMEM }, false },
	{ "opendir", { EMFILE, ENOMEM, EACCES }, false },
	{ "pthread_cond_timedwait", { ETIMEDOUT }, false },
	{ "bpf_map_update_elem",
	  { ENOMEM, EBUSY, E2BIG, ENOSPC, EPERM, EOPNOTSUPP, EEXIST, EAGAIN }, false },
	{ "bpf_map_delete_elem", { EBUSY, EINVAL, EPERM, ENOMEM }, false },
};

static const struct {
	int error;
	const char *name;
} error_names[] = {
	{ CATALOGUE_SHORT, "short" },
	{ CATALOGUE_LATE, "late" },
#define NAME(e) { e, #e }
	NAME(EAGAIN), NAME(EINTR), NAME(ECONNABORTED), NAME(EMFILE), NAME(ENFILE), NAME(ENOMEM),
	NAME(ENOBUFS), NAME(EPERM), NAME(EPROTO), NAME(ENETDOWN), NAME(EACCES), NAME(EAFNOSUPPORT),
	NAME(ECONNREFUSED), NAME(ETIMEDOUT), NAME(ENETUNREACH), NAME(EHOSTUNREACH),
	NAME(EADDRNOTAVAIL), NAME(ECONNRESET), NAME(EINVAL), NAME(ENOPROTOOPT), NAME(EPIPE),
	NAME(EBUSY), NAME(EIO), NAME(ENOTCONN), NAME(ENOSPC), NAME(E2BIG), NAME(EOPNOTSUPP),
	NAME(EEXIST),
#undef NAME
};

const struct failing *catalogue_find(const char *function)
{
	for (size_t i = 0; i < sizeof(catalogue) / sizeof(catalogue[0]); i++)
		if (!strcmp(catalogue[i].function, function))
			return &catalogue[i];
	return NULL;
}

bool catalogue_harmless(const char *function, int error)
{
	static const char *const repeated[] = { "recv", "peek",  "send", "splice", "epoll_wait",
						"read", "write", "poll", "accept4" };

	/* pread: how idle the CPUs are, which no session depends on */
	if (error == CATALOGUE_LATE || !strcmp(function, "pread"))
		return true;
	if (error && error != EINTR && error != EAGAIN)
		return false;
	for (size_t i = 0; i < sizeof(repeated) / sizeof(repeated[0]); i++)
		if (!strcmp(repeated[i], function))
			return true;
	return false;
}

const char *catalogue_error_name(int error)
{
	for (size_t i = 0; i < sizeof(error_names) / sizeof(error_names[0]); i++)
		if (error_names[i].error == error)
			return error_names[i].name;
	return "?";
}
