/* SPDX-License-Identifier: BSD-2-Clause */
/* Namespace, programs, sessions and maps of the kernel tests. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "datapath/kernel.h"
#include "kt.h"

#define SESSIONS_MAX 64
#define WATCHDOG_S 120
#define SMALL_BUFFER (16 * KIB)

struct traps *kt_bpf;

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

int64_t kt_now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t kt_now_ms(void)
{
	return kt_now_us() / 1000;
}

static int lo_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd, r = 0;

	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, SIOCSIFFLAGS, &ifr) < 0)
		r = -errno;
	close(fd);
	return r;
}

void kt_enter(void)
{
	int r;

	if (geteuid()) {
		fprintf(stderr, "skipped: needs root (namespace, BPF programs)\n");
		exit(77);
	}
	if (unshare(CLONE_NEWNET) < 0) {
		fprintf(stderr, "skipped: no network namespace: %s\n", strerror(errno));
		exit(77);
	}
	r = lo_up();
	if (r < 0) {
		fprintf(stderr, "cannot bring lo up: %s\n", strerror(-r));
		exit(1);
	}
	/* the default action ends the program: a hang is a failure */
	alarm(WATCHDOG_S * (unsigned int)kt_slow());
}

static void *map_array(struct bpf_map *map, size_t value_size)
{
	void *p = mmap(NULL, value_size * KT_SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED,
		       bpf_map__fd(map), 0);

	/* cppcheck-suppress memleak ; it is returned */
	return p == MAP_FAILED ? NULL : p;
}

int kt_load(void **state)
{
	(void)state;
	kt_bpf = traps__open_and_load();
	if (!kt_bpf)
		return -1;
	conf_mapping = map_array(kt_bpf->maps.conf, sizeof(struct kt_conf));
	stat_mapping = map_array(kt_bpf->maps.stat, sizeof(struct kt_stat));
	if (!conf_mapping || !stat_mapping)
		return -1;
	return bpf_prog_attach(bpf_program__fd(kt_bpf->progs.kt_verdict),
			       bpf_map__fd(kt_bpf->maps.rx), BPF_SK_SKB_VERDICT, 0);
}

int kt_unload(void **state)
{
	(void)state;
	traps__destroy(kt_bpf);
	kt_bpf = NULL;
	return 0;
}

struct kernel *kt_culvert;

int kt_load_culvert(void **state)
{
	struct kernel_limits limits = { .pairs = 1, .workers = 1 };
	char err[512];

	if (kt_load(state))
		return -1;
	if (!kernel_open(&limits, &kt_culvert, err, sizeof(err)))
		return 0;
	print_error("%s\n", err);
	return -1;
}

int kt_unload_culvert(void **state)
{
	kernel_close(kt_culvert);
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

static int listen_on_lo(int family, bool small, struct sockaddr_storage *ret_addr)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in v4 = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(*ret_addr);
	int fd, size = SMALL_BUFFER;

	fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (fd < 0)
		return -errno;
	if (small) {
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	}
	if (bind(fd, family == AF_INET6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4,
		 family == AF_INET6 ? sizeof(v6) : sizeof(v4)) < 0 ||
	    listen(fd, 4) < 0 || getsockname(fd, (struct sockaddr *)ret_addr, &len) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return fd;
}

int kt_pair(int family, bool small, int *ret_conn, int *ret_acc)
{
	struct sockaddr_storage addr;
	int lfd, conn = -1, acc = -1, size = SMALL_BUFFER, r = 0;

	lfd = listen_on_lo(family, small, &addr);
	if (lfd < 0)
		return lfd;
	conn = socket(family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (conn < 0)
		goto fail;
	if (small) {
		setsockopt(conn, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
		setsockopt(conn, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	}
	if (connect(conn, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		goto fail;
	acc = accept4(lfd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (acc < 0 || fcntl(conn, F_SETFL, O_NONBLOCK) < 0)
		goto fail;
	close(lfd);
	*ret_conn = conn;
	*ret_acc = acc;
	return 0;
fail:
	r = -errno;
	close(lfd);
	kt_close(&conn);
	kt_close(&acc);
	return r;
}

struct kt_session *kt_open(unsigned int flags)
{
	int family = flags & KT_IPV6 ? AF_INET6 : AF_INET;
	struct kt_session *s;

	assert_true(sessions_open < SESSIONS_MAX && slots_used + 2 <= KT_SLOTS);
	s = &sessions[sessions_open++];
	*s = (struct kt_session){ .client = -1, .a = -1, .b = -1, .server = -1,
				  .slot_a = slots_used, .slot_b = slots_used + 1 };
	slots_used += 2;
	assert_int_equal(kt_pair(family, flags & KT_SMALL_A, &s->client, &s->a), 0);
	assert_int_equal(kt_pair(family, flags & KT_SMALL_B, &s->b, &s->server), 0);
	s->base_b = kt_sent_seq(s->b);
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

int kt_name(uint32_t slot, int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return -errno;
	return bpf_map_update_elem(bpf_map__fd(kt_bpf->maps.slots), &cookie, &slot, BPF_ANY) < 0 ?
		       -errno : 0;
}

void kt_targets(struct kt_session *s)
{
	assert_int_equal(kt_name(s->slot_a, s->a), 0);
	assert_int_equal(kt_name(s->slot_b, s->b), 0);
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_a, s->a), 0);
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_b, s->b), 0);
}

void kt_start(struct kt_session *s, enum kt_mode mode)
{
	kt_conf(s->slot_a)->mode = mode;
	kt_targets(s);
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

/* The lock around SO_RCVLOWAT keeps the kernel from growing SO_RCVBUF to match: see f1. */
int kt_fence(int fd)
{
	int old = kt_sockopt(fd, SOL_SOCKET, SO_BUF_LOCK);
	int lock = old | SOCK_RCVBUF_LOCK, huge = INT32_MAX;

	if (setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock)) < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &huge, sizeof(huge)) < 0)
		return -errno;
	return old;
}

int kt_unfence(int fd, int lock)
{
	int one = 1;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one)) < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock)) < 0)
		return -errno;
	return 0;
}
