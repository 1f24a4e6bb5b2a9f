// SPDX-License-Identifier: BSD-2-Clause
#include "base/advice.h"

#include <errno.h>

const char *advice_listen(int error)
{
	switch (error) {
	case EADDRINUSE:
		return " (another program has it: `ss -ltnp` says which)";
	case EADDRNOTAVAIL:
		return " (no interface has this address: see `ip address`, or set "
		       "net.ipv4.ip_nonlocal_bind)";
	case EACCES:
	case EPERM:
		return " (a port below 1024 needs root or CAP_NET_BIND_SERVICE, a path the right "
		       "to write its directory)";
	case ENOENT:
		return " (make its directory first)";
	case EMFILE:
	case ENFILE:
		return " (raise RLIMIT_NOFILE, LimitNOFILE= of the unit, or lower --workers)";
	case EAFNOSUPPORT:
		return " (this kernel has no IPv6: give an IPv4 address, or \":PORT\")";
	default:
		return "";
	}
}

const char *advice_connect(int error)
{
	switch (error) {
	case ECONNREFUSED:
		return " (nothing listens there)";
	case ETIMEDOUT:
		return " (it has not answered within connect-timeout: is it up, does a firewall "
		       "drop?)";
	case ENETUNREACH:
	case EHOSTUNREACH:
		return " (see `ip route get`)";
	case EADDRNOTAVAIL:
		return " (the source is none of this machine's addresses, or all local ports are "
		       "taken: widen net.ipv4.ip_local_port_range)";
	case EACCES:
	case EPERM:
		return " (a local firewall or the permissions of the socket forbid it)";
	case ENODEV:
		return " (see `ip link`)";
	case ENOENT:
		return " (no such socket: is its server running?)";
	default:
		return "";
	}
}

const char *advice_thread(int error)
{
	return error != EAGAIN ? "" :
	       " (the account, the unit or the machine may have no more threads: raise RLIMIT_NPROC, "
	       "TasksMax= of the unit, kernel.threads-max; or there is no room for its stack: see "
	       "RLIMIT_AS, RLIMIT_STACK, vm.overcommit_memory; or lower --workers)";
}

const char *advice_process(int error)
{
	switch (error) {
	case EAGAIN:
		return " (the account, the unit or the machine may have no more processes: raise "
		       "RLIMIT_NPROC, TasksMax= of the unit, kernel.threads-max)";
	case ENOMEM:
		return " (the kernel has no memory for one: is there a limit, such as MemoryMax= "
		       "of the unit, or vm.overcommit_memory?)";
	case EMFILE:
	case ENFILE:
		return " (raise RLIMIT_NOFILE, LimitNOFILE= of the unit)";
	default:
		return "";
	}
}

const char *advice_workers(int error)
{
	switch (error) {
	case EMFILE:
	case ENFILE:
		return " (lower --workers, or raise RLIMIT_NOFILE, LimitNOFILE= of the unit)";
	case ENOMEM:
		return " (lower --workers or --max-sessions, or raise RLIMIT_AS, LimitAS= or "
		       "MemoryMax= of the unit)";
	default:
		return "";
	}
}
