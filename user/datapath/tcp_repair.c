// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/tcp_repair.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/socket_set.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/tcp.h"

/* TCPOPT_*, as TCP_REPAIR_OPTIONS names them. */
#define OPTION_MSS 2
#define OPTION_WINDOW 3
#define OPTION_SACK 4
#define OPTION_TIMESTAMP 8

static int set_number(int fd, int queue, uint32_t seq)
{
	int r = socket_set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue);

	return r ?: socket_set(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, (int)seq);
}

static int revive(int fd, const struct graft_side *s, int family, uid_t uid)
{
	const struct tcp_repair_window window = {
		.snd_wl1 = s->frozen_read,
		.snd_wnd = s->window,
		.max_window = s->window,
		.rcv_wnd = UINT16_MAX,
		.rcv_wup = s->frozen_read,
	};
	struct tcp_repair_opt options[4] = {
		{ OPTION_WINDOW, s->window_left | (uint32_t)s->read_shift << 16 },
		{ OPTION_MSS, s->mss },
	};
	struct addr local = graft_tuple_address(&s->tuple, true);
	struct addr remote = graft_tuple_address(&s->tuple, false);
	socklen_t n = 2;
	int r = socket_set(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON);

	r = r ?: set_number(fd, TCP_SEND_QUEUE, s->frozen_write);
	r = r ?: set_number(fd, TCP_RECV_QUEUE, s->frozen_read);
	r = r ?: socket_set_mark(fd, s->way.mark);
	r = r ?: socket_set_transparent(fd, family);
	if (s->sack)
		options[n++].opt_code = OPTION_SACK;
	if (s->timestamps)
		options[n++].opt_code = OPTION_TIMESTAMP;
	/* under systemd UID is ours already, and the unit forbids fchown(2) */
	if (!r &&
	    ((uid != geteuid() && fchown(fd, uid, (gid_t)-1)) || bind(fd, &local.sa, local.len) ||
	     connect(fd, &remote.sa, remote.len) ||
	     setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, n * sizeof(options[0])) ||
	     setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, sizeof(window))))
		r = -errno;
	r = r ?: socket_set(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
	/* else no listener could have its port */
	return r ?: socket_set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
}

int tcp_revive(const struct graft_side *side, uid_t uid)
{
	int family = side->ipv6 ? AF_INET6 : AF_INET;
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int r = fd < 0 ? -errno : revive(fd, side, family, uid);

	if (r && fd >= 0)
		close(fd);
	return r ?: fd;
}
