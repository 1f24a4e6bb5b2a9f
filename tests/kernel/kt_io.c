/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams of known bytes, and what can be asked of a socket. */
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "kt.h"

/* The length is a prime, so that no loss or repetition of a round number of bytes goes unseen. */
#define PATTERN_LEN 65521

static const unsigned char *pattern(void)
{
	static unsigned char table[2 * PATTERN_LEN];
	static bool ready;
	uint32_t x = 2463534242U;

	if (ready)
		return table;
	for (size_t i = 0; i < PATTERN_LEN; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		table[i] = table[i + PATTERN_LEN] = (unsigned char)(x >> 11);
	}
	ready = true;
	return table;
}

/* Before the first thread: the table is built without a lock. */
__attribute__((constructor)) static void pattern_build(void)
{
	pattern();
}

void kt_fill(void *buf, size_t len, uint64_t off)
{
	unsigned char *p = buf;

	while (len) {
		size_t n = len < PATTERN_LEN ? len : PATTERN_LEN;

		memcpy(p, pattern() + off % PATTERN_LEN, n);
		p += n;
		off += n;
		len -= n;
	}
}

bool kt_same(const void *buf, size_t len, uint64_t off)
{
	const unsigned char *p = buf;

	while (len) {
		size_t n = len < PATTERN_LEN ? len : PATTERN_LEN;

		if (memcmp(p, pattern() + off % PATTERN_LEN, n))
			return false;
		p += n;
		off += n;
		len -= n;
	}
	return true;
}

ssize_t kt_push(int fd, uint64_t off, size_t len)
{
	unsigned char buf[16 * KIB];
	size_t done = 0;

	while (done < len) {
		size_t want = len - done < sizeof(buf) ? len - done : sizeof(buf);
		ssize_t n;

		kt_fill(buf, want, off + done);
		n = send(fd, buf, want, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

int kt_send(int fd, uint64_t off, size_t len)
{
	int64_t end = kt_now_ms() + KT_DEADLINE_MS;

	while (len) {
		ssize_t n = kt_push(fd, off, len);

		if (n < 0)
			return (int)n;
		off += (uint64_t)n;
		len -= (size_t)n;
		if (!len)
			break;
		if (kt_now_ms() > end)
			return -ETIMEDOUT;
		poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, 10);
	}
	return 0;
}

ssize_t kt_pull(int fd, uint64_t off, size_t most)
{
	unsigned char buf[16 * KIB];
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
		if (!kt_same(buf, (size_t)n, off + done))
			return -EILSEQ;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

int kt_expect(int fd, uint64_t off, size_t len)
{
	int64_t end = kt_now_ms() + KT_DEADLINE_MS;

	while (len) {
		ssize_t n = kt_pull(fd, off, len);

		if (n < 0)
			return (int)n;
		off += (uint64_t)n;
		len -= (size_t)n;
		if (!len)
			break;
		if (kt_now_ms() > end)
			return -ETIMEDOUT;
		poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 10);
	}
	return 0;
}

int kt_expect_eof(int fd)
{
	int64_t end = kt_now_ms() + KT_DEADLINE_MS;

	while (kt_now_ms() < end) {
		char byte;
		ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);

		if (!n)
			return 0;
		if (n > 0)
			return -EMSGSIZE;
		if (errno != EAGAIN)
			return -errno;
		poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 10);
	}
	return -ETIMEDOUT;
}

bool kt_quiet(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

short kt_poll(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	return (short)(poll(&p, 1, 0) > 0 ? p.revents : 0);
}

int kt_sockopt(int fd, int level, int name)
{
	int val = -1;
	socklen_t len = sizeof(val);

	assert_int_equal(getsockopt(fd, level, name, &val, &len), 0);
	return val;
}

int kt_so_error(int fd)
{
	return kt_sockopt(fd, SOL_SOCKET, SO_ERROR);
}

uint32_t kt_sk_drops(int fd)
{
	uint32_t mem[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(mem);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_MEMINFO, mem, &len), 0);
	return mem[SK_MEMINFO_DROPS];
}

int kt_inq(int fd)
{
	int val = -1;

	assert_int_equal(ioctl(fd, SIOCINQ, &val), 0);
	return val;
}

bool kt_pressure(void)
{
	FILE *f = fopen("/proc/net/protocols", "re");
	char line[256], name[32], press[8];
	bool yes = false;

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%31s %*s %*s %*s %7s", name, press) == 2 &&
		    !strcmp(name, "TCP"))
			yes = !strcmp(press, "yes");
	fclose(f);
	return yes;
}

int kt_true_inq(struct kt_session *s)
{
	kt_del(kt_bpf->maps.rx, s->slot_a);
	kt_del(kt_bpf->maps.tx, s->slot_a);
	return kt_inq(s->a);
}

int kt_outq(int fd)
{
	int val = -1;

	assert_int_equal(ioctl(fd, SIOCOUTQ, &val), 0);
	return val;
}

struct tcp_info kt_info(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len), 0);
	return ti;
}

int64_t kt_accepted(int fd)
{
	struct tcp_info ti = kt_info(fd);

	return (int64_t)(ti.tcpi_bytes_sent - ti.tcpi_bytes_retrans + ti.tcpi_notsent_bytes);
}

/*
 * The order matters: bytes acknowledged between the two calls are missing from the sum, never
 * counted twice, so that "drained" cannot be concluded too early.
 */
int64_t kt_sent_seq(int fd)
{
	uint64_t acked = kt_info(fd).tcpi_bytes_acked;

	return (int64_t)acked + kt_outq(fd);
}
