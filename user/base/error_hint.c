// SPDX-License-Identifier: BSD-2-Clause
#include "base/error_hint.h"

#include <errno.h>
#include <stddef.h>

static const struct {
	unsigned int about;
	int errors[2];
	const char *text;
} rows[] = {
	{ HINT_LISTEN, { EADDRINUSE }, " (another program has it: `ss -ltnp` says which)" },
	{ HINT_LISTEN, { EACCES, EPERM },
	  " (a port below 1024 needs root or CAP_NET_BIND_SERVICE, a path the right to write its "
	  "directory)" },
	{ HINT_CONNECT, { EADDRNOTAVAIL },
	  " (the source is none of this machine's addresses, or all local ports are taken: widen "
	  "net.ipv4.ip_local_port_range)" },
	{ HINT_CONNECT, { EACCES, EPERM },
	  " (a local firewall or the permissions of the socket forbid it)" },
	{ HINT_CONNECT, { EAFNOSUPPORT },
	  " (skipped: it is of another address family than the connection's source)" },
	{ HINT_CONNECT, { ENODEV },
	  " (`interface`, or `source` behind %, names no network interface: see `ip link`)" },
	{ HINT_CONNECT, { EPIPE },
	  " (the privileged process, which makes sockets with a mark or for transparent "
	  "forwarding, has ended: start culvert again)" },
	{ HINT_CONNECT, { ENOSR },
	  " (no socket with a mark or for transparent forwarding was to be had within "
	  "connect-timeout: the privileged process, which makes them, is too slow, or hangs)" },
	{ HINT_RESOURCES, { EAGAIN },
	  " (raise RLIMIT_NPROC, TasksMax= of the unit or kernel.threads-max, or lower "
	  "--workers)" },
	{ HINT_RESOURCES | HINT_LISTEN, { EMFILE, ENFILE },
	  " (raise RLIMIT_NOFILE, LimitNOFILE= of the unit, or lower --workers)" },
	{ HINT_LOG_FILE, { EACCES, EPERM },
	  " (the account that culvert becomes must be able to write the file, or to make it)" },
	{ HINT_LOG_FILE, { EROFS },
	  " (the systemd unit can write in /var/log/culvert, elsewhere with ReadWritePaths=)" },
	{ HINT_LOG_FILE, { ELOOP }, " (a symbolic link is not followed)" },
};

const char *error_hint(enum hint_about about, int error)
{
	for (size_t i = 0; error && i < sizeof(rows) / sizeof(rows[0]); i++)
		for (size_t k = 0; rows[i].about & about && k < 2; k++)
			if (rows[i].errors[k] == error)
				return rows[i].text;
	return "";
}
