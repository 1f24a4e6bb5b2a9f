/* SPDX-License-Identifier: BSD-2-Clause */
/* Namespace, program, sessions and maps of the kernel tests, and what can be asked of a socket. */
#include <arpa/inet.h>
#include <linux/sock_diag.h>
#include <sched.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "base/clock.h"
#include "datapath/bpf_ring.h"
#include "datapath/sockmap/sockmap.h"
#include "kt.h"

#define SESSIONS_MAX 64
#define WATCHDOG_S 120
#define INJECT_MAX 2048

struct traps_bpf *kt_bpf;

static struct kt_session sessions[SESSIONS_MAX];
static unsigned int sessions_open;
static uint32_t slots_used;
static volatile struct kt_conf *conf_mapping;
static volatile struct kt_stat *stat_mapping;

int kt_slow(void)
{
	const char *text = getenv("CULVERT_TEST_SLOW");
	long factor = text ? strtol(text, NULL, 10) : 1;

	return factor < 1 || factor > 100 ? 1 : (int)factor;
}

int64_t kt_now_ms(void)
{
	return (int64_t)clock_ms();
}

void kt_enter(void)
{
	if (geteuid()) {
		fprintf(stderr, "skipped: needs root (namespace, BPF programs)\n");
		exit(77);
	}
	if (unshare(CLONE_NEWNET) < 0) {
		fprintf(stderr, "skipped: no network namespace: %s\n", strerror(errno));
		exit(77);
	}
	if (system("ip link set lo up")) { /* NOLINT(cert-env33-c): a constant command */
		fprintf(stderr, "cannot bring lo up\n");
		exit(1);
	}
	/* the default action ends the program: a hang is a failure */
	alarm(WATCHDOG_S * (unsigned int)kt_slow());
}

int kt_load(void **state)
{
	(void)state;
	kt_bpf = traps_bpf__open_and_load();
	if (!kt_bpf)
		return -1;
	conf_mapping = bpf_values_map(kt_bpf->maps.conf);
	stat_mapping = bpf_values_map(kt_bpf->maps.stat);
	if (!conf_mapping || !stat_mapping)
		return -1;
	return bpf_prog_attach(bpf_program__fd(kt_bpf->progs.kt_verdict),
			       bpf_map__fd(kt_bpf->maps.rx), BPF_SK_SKB_VERDICT, 0);
}

int kt_unload(void **state)
{
	(void)state;
	traps_bpf__destroy(kt_bpf);
	kt_bpf = NULL;
	return 0;
}

struct sockmap *kt_culvert;

int kt_load_culvert(void **state)
{
	struct sockmap_limits limits = { .pairs = 1, .workers = 1 };
	char err[512];

	if (kt_load(state))
		return -1;
	if (!sockmap_open(&limits, &kt_culvert, err, sizeof(err)))
		return 0;
	print_error("%s\n", err);
	return -1;
}

int kt_unload_culvert(void **state)
{
	sockmap_close(kt_culvert);
	return kt_unload(state);
}

int kt_teardown(void **state)
{
	(void)state;
	while (sessions_open) {
		struct kt_session *s = &sessions[--sessions_open];

		kt_close(&s->client);
		kt_close(&s->a);
		kt_close(&s->b);
		kt_close(&s->server);
	}
	return 0;
}

void kt_close(int *fdp)
{
	if (*fdp >= 0)
		close(*fdp);
	*fdp = -1;
}

struct kt_session *kt_open(unsigned int flags)
{
	struct kt_session *s;

	assert_true(sessions_open < SESSIONS_MAX && slots_used + 2 <= KT_SLOTS);
	s = &sessions[sessions_open++];
	*s = (struct kt_session){ .client = -1,
				  .a = -1,
				  .b = -1,
				  .server = -1,
				  .slot_a = slots_used,
				  .slot_b = slots_used + 1 };
	slots_used += 2;
	assert_int_equal(rig_connect(flags & KT_SMALL_A, 0, &s->client, &s->a), 0);
	assert_int_equal(rig_connect(flags & KT_SMALL_B, 0, &s->b, &s->server), 0);
	return s;
}

int kt_add(struct bpf_map *map, uint32_t slot, int fd)
{
	uint64_t value = (uint64_t)fd;

	return bpf_map_update_elem(bpf_map__fd(map), &slot, &value, BPF_ANY) < 0 ? -errno : 0;
}

int kt_del(struct bpf_map *map, uint32_t slot)
{
	return bpf_map_delete_elem(bpf_map__fd(map), &slot) < 0 ? -errno : 0;
}

/* Tells the program which slot a socket has.  Has to come before it enters rx. */
static int name_slot(uint32_t slot, int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return -errno;
	return bpf_map_update_elem(bpf_map__fd(kt_bpf->maps.slots), &cookie, &slot, BPF_ANY) < 0 ?
		       -errno :
		       0;
}

void kt_start(struct kt_session *s, enum kt_mode mode)
{
	kt_conf(s->slot_a)->mode = mode;
	assert_int_equal(name_slot(s->slot_a, s->a), 0);
	assert_int_equal(name_slot(s->slot_b, s->b), 0);
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_a, s->a), 0);
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_b, s->b), 0);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), 0);
}

volatile struct kt_conf *kt_conf(uint32_t slot)
{
	return &conf_mapping[slot];
}

volatile struct kt_stat *kt_stat(uint32_t slot)
{
	return &stat_mapping[slot];
}

void kt_kick(int fd)
{
	char byte;

	(void)!recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
}

/* LEN bytes of the stream by rig_send() or rig_receive(), in time. */
static int move_all(ssize_t (*move)(int fd, uint64_t off, size_t len), short events, int fd,
		    uint64_t off, size_t len)
{
	int64_t end = kt_now_ms() + KT_DEADLINE_MS;

	for (;;) {
		ssize_t n = move(fd, off, len);

		if (n < 0)
			return (int)n;
		off += (uint64_t)n;
		len -= (size_t)n;
		if (!len)
			return 0;
		if (kt_now_ms() > end)
			return -ETIMEDOUT;
		poll(&(struct pollfd){ .fd = fd, .events = events }, 1, 10);
	}
}

int kt_send(int fd, uint64_t off, size_t len)
{
	return move_all(rig_send, POLLOUT, fd, off, len);
}

int kt_expect(int fd, uint64_t off, size_t len)
{
	return move_all(rig_receive, POLLIN, fd, off, len);
}

void kt_carry(int from, int to, uint64_t off, size_t len)
{
	assert_int_equal(kt_send(from, off, len), 0);
	assert_int_equal(kt_expect(to, off, len), 0);
}

int kt_expect_eof(int fd)
{
	ssize_t n = -1;
	char byte;

	if (!KT_WAIT((n = recv(fd, &byte, 1, MSG_DONTWAIT)) >= 0 || errno != EAGAIN))
		return -ETIMEDOUT;
	return n > 0 ? -EMSGSIZE : n < 0 ? -errno : 0;
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

uint64_t kt_charged(int fd)
{
	uint32_t mem[SK_MEMINFO_VARS];
	socklen_t len = sizeof(mem);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_MEMINFO, mem, &len), 0);
	return (uint64_t)mem[SK_MEMINFO_RMEM_ALLOC] + mem[SK_MEMINFO_WMEM_QUEUED] +
	       mem[SK_MEMINFO_BACKLOG];
}

int kt_queued(int fd, unsigned long queue)
{
	int val = -1;

	assert_int_equal(ioctl(fd, queue, &val), 0);
	return val;
}

struct tcp_info kt_info(int fd)
{
	struct tcp_info ti = { 0 };
	socklen_t len = sizeof(ti);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len), 0);
	return ti;
}

static int64_t accepted(int fd, bool connected)
{
	uint64_t n;

	assert_int_equal(tcp_accepted(fd, connected, 0, &n), 0);
	return (int64_t)n;
}

int64_t kt_accepted_a(const struct kt_session *s)
{
	return accepted(s->a, false);
}

int64_t kt_accepted_b(const struct kt_session *s)
{
	return accepted(s->b, true);
}

/* The next sequence number that fd would send or expects (T12: not for production). */
static uint32_t queue_seq(int fd, int queue)
{
	int on = 1, off = TCP_REPAIR_OFF_NO_WP;
	uint32_t seq = 0;
	socklen_t len = sizeof(seq);

	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof(queue)), 0);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, &len), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)), 0);
	return seq;
}

/* What TCP's checksum covers; the pseudo header of RFC 9293 comes first. */
struct segment {
	uint32_t from, to;
	uint16_t protocol, len;
	struct tcphdr th;
	unsigned char data[INJECT_MAX];
};

/* Sums of 16 bits are the same in either byte order. */
static uint16_t checksum(const struct segment *seg, size_t len)
{
	const uint16_t *words = (const uint16_t *)seg;
	uint32_t sum = 0;

	for (size_t i = 0; i < (len + 1) / 2; i++) /* beyond the end there are zeros */
		sum += words[i]; /* NOLINT(clang-analyzer-core.uninitialized.Assign) */
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* As if FD had sent SEG, with LEN bytes behind the header, the first AGAIN of which it has sent. */
static int inject(int fd, struct segment *seg, size_t len, size_t again)
{
	struct sockaddr_in from = { 0 }, to = { 0 };
	socklen_t flen = sizeof(from), tlen = sizeof(to);
	size_t total = sizeof(seg->th) + len;
	int raw, r = 0;

	if (getsockname(fd, (struct sockaddr *)&from, &flen) < 0 ||
	    getpeername(fd, (struct sockaddr *)&to, &tlen) < 0)
		return -errno;
	seg->protocol = htons(IPPROTO_TCP);
	seg->from = from.sin_addr.s_addr;
	seg->to = to.sin_addr.s_addr;
	seg->len = htons((uint16_t)total);
	seg->th.source = from.sin_port;
	seg->th.dest = to.sin_port;
	seg->th.seq = htonl(queue_seq(fd, TCP_SEND_QUEUE) - (uint32_t)again);
	seg->th.ack_seq = htonl(queue_seq(fd, TCP_RECV_QUEUE));
	seg->th.window = htons(UINT16_MAX);
	seg->th.check = checksum(seg, offsetof(struct segment, th) + total);

	raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
	if (raw < 0)
		return -errno;
	to.sin_port = 0;
	if (sendto(raw, &seg->th, total, 0, (struct sockaddr *)&to, sizeof(to)) < 0)
		r = -errno;
	close(raw);
	return r;
}

int kt_inject(int fd, uint64_t off, size_t len, size_t again)
{
	struct segment seg = { .th = { .doff = sizeof(seg.th) / 4, .ack = 1, .psh = 1 } };

	assert_true(len < sizeof(seg.data));
	memcpy(seg.data, rig_pattern(off), len);
	return inject(fd, &seg, len, again);
}

int kt_inject_reset(int fd)
{
	struct segment seg = { .th = { .doff = sizeof(seg.th) / 4, .rst = 1 } };

	return inject(fd, &seg, 0, 1);
}

int kt_inject_probe(int fd, uint32_t ahead)
{
	struct segment seg = { .th = { .doff = sizeof(seg.th) / 4 + 3, .ack = 1 } };
	uint32_t clock;
	socklen_t len = sizeof(clock);

	if (getsockopt(fd, IPPROTO_TCP, TCP_TIMESTAMP, &clock, &len))
		return -errno;
	memcpy(seg.data, "\1\1\x8\xa", 4); /* NOP, NOP, timestamps of 10 bytes */
	clock = htonl(clock + ahead);
	memcpy(seg.data + 4, &clock, sizeof(clock));
	return inject(fd, &seg, 12, 1);
}
