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
	size_t done = 0;

	while (done < len) {
		size_t want = len - done < RIG_PATTERN ? len - done : RIG_PATTERN;
		ssize_t n = send(fd, rig_pattern(off + done), want, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

ssize_t rig_receive(int fd, uint64_t off, size_t most)
{
	unsigned char buf[16 * 1024];
	size_t done = 0;

	while (done < most) {
		size_t want = most - done < sizeof(buf) ? most - done : sizeof(buf);
		ssize_t n = recv(fd, buf, want, MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		if (!n)
			return done ? (ssize_t)done : -ENODATA;
		if (memcmp(buf, rig_pattern(off + done), (size_t)n))
			return -EILSEQ;
		done += (size_t)n;
	}
	return (ssize_t)done;
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
