// SPDX-License-Identifier: BSD-2-Clause
/* Connected sockets and streams of known bytes; see rig.h. */
#include "probe/rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/minmax.h"
#include "datapath/tcp.h"

/* --- streams of known bytes --- */

/* The first call is rig_connect()'s, before there is a second thread. */
const unsigned char *rig_pattern(uint64_t off)
{
	static unsigned char table[2 * RIG_PATTERN];
	static bool ready;
	uint32_t x = 2463534242U;

	if (ready)
		return table + off % RIG_PATTERN;
	for (size_t i = 0; i < RIG_PATTERN; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		table[i] = table[RIG_PATTERN + i] = (unsigned char)(x >> 11);
	}
	ready = true;
	return table + off % RIG_PATTERN;
}

ssize_t rig_send(int fd, uint64_t off, size_t len)
{
	ssize_t n = send(fd, rig_pattern(off), smaller(len, RIG_PATTERN), MSG_DONTWAIT | MSG_NOSIGNAL);

	return n >= 0 ? n : errno == EAGAIN ? 0 : -errno;
}

ssize_t rig_receive(int fd, uint64_t off, size_t most)
{
	unsigned char buf[RIG_PATTERN];
	ssize_t n = recv(fd, buf, smaller(most, sizeof(buf)), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	if (!n && most)
		return -ENODATA;
	return memcmp(buf, rig_pattern(off), (size_t)n) ? -EILSEQ : n;
}

/* --- sockets --- */

void rig_set_buffers(int snd, int rcv, int size)
{
	setsockopt(snd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(rcv, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

static int new_socket(bool small)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd >= 0)
		tcp_set_nodelay(fd);
	if (fd >= 0 && small)
		rig_set_buffers(fd, fd, RIG_SMALL);
	return fd;
}

int rig_connect(bool small, int *ret_connected, int *ret_accepted)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = new_socket(small), conn = listener < 0 ? -1 : new_socket(small);
	int acc = -1, r = 0;

	rig_pattern(0);
	if (conn >= 0 && !bind(listener, (struct sockaddr *)&addr, len) && !listen(listener, 1) &&
	    !getsockname(listener, (struct sockaddr *)&addr, &len) &&
	    !connect(conn, (struct sockaddr *)&addr, len) && !fcntl(conn, F_SETFL, O_NONBLOCK))
		acc = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (acc < 0) {
		r = -errno;
		close(conn);
		conn = -1;
	}
	close(listener);
	*ret_connected = conn;
	*ret_accepted = acc;
	return r;
}
