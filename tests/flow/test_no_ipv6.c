// SPDX-License-Identifier: BSD-2-Clause
/*
 * Where there is no IPv6: a kernel that makes no such sockets (ipv6.disable=1), played by a seccomp
 * filter, and a namespace where it is switched off (net.ipv6.conf.all.disable_ipv6).
 */
#include "forward_rig.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "deny.h"

#define TEST_SECONDS 100
#define LIVE FORWARD("live", ":9001", "")

/* What says IPv6 is refused, what says anything has what there is. */
ROW_ONCE(kernel_without)
{
	struct daemon *d;

	/* this process is of this row alone; the daemon inherits the filter */
	deny_syscall(SYS_socket, EAFNOSUPPORT, 0, AF_INET6);
	d = rig_start(*state, LIVE FORWARD("other", TWO, ""));
	is_served(ONE);
	is_served(TWO);
	rig_reload_good(d, LIVE FORWARD("more", ":9003", ""));
	is_served(ONE);
	is_served(THREE);
	assert_non_null(strstr(rig_reload(d, LIVE FORWARD("six", "[::]:9004", "")),
			       "[::]:9004: Address family not supported by protocol"));
	ask(d, "{\"command\":\"drain\",\"forward\":\"live\"}");
	ask(d, "{\"command\":\"drain\",\"forward\":\"live\",\"undo\":true}");
	is_served(ONE);
	rig_stop(d);
}

/* There both families can be bound, and one is of no use. */
ROW_ONCE(switched_off)
{
	int fd = open("/proc/sys/net/ipv6/conf/all/disable_ipv6", O_WRONLY | O_CLOEXEC);
	struct daemon *d;

	if (fd < 0) {
		printf("skip switched_off: this kernel has no IPv6\n");
		skip();
	}
	assert_int_equal(write(fd, "1", 1), 1);
	close(fd);
	d = rig_start(*state, LIVE);
	is_served(ONE);
	rig_reload_good(d, LIVE FORWARD("more", ":9003", ""));
	is_served(THREE);
	rig_reload_good(d, LIVE);
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_no_ipv6", TEST_SECONDS);
}
