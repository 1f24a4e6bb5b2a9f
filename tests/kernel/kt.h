/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Helpers of the kernel tests.
 *
 * A kernel test pins one thing that the datapath relies on or has to avoid.  Each program runs in a
 * network namespace of its own with nothing but lo, and loads traps.bpf.c once; each test opens its
 * own sessions (two TCP connections, as a forwarder has them) in slots that are never used again,
 * so that no test sees what an earlier one left behind.
 *
 *	client ===== A | B ===== server		slot of B == slot of A ^ 1
 *
 * All sockets are non-blocking.  The helpers return 0 or a count on success and -errno on failure;
 * those that wait give up with -ETIMEDOUT after KT_DEADLINE_MS.
 */
#pragma once

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit/unit.h"
#include "datapath/tcp.h"
#include "probe/behaviours.h"
#include "traps.h"
#include "tests/kernel/traps.skel.h"

/* Generous: on a busy machine the kernel's worker was seen to wait 10 s for a CPU. */
#define KT_DEADLINE_MS (20000 * kt_slow())
#define KIB 1024
#define MIB (1024 * 1024)

/* Waits for a condition; true if it came true in time. */
#define KT_WAIT(cond)                                                                              \
	({                                                                                         \
		int64_t kt_end_ = kt_now_ms() + KT_DEADLINE_MS;                                    \
		bool kt_ok_;                                                                       \
                                                                                                   \
		while (!(kt_ok_ = (cond)) && kt_now_ms() < kt_end_)                                \
			usleep(200);                                                               \
		kt_ok_;                                                                            \
	})

/* For "nothing happens": true if the condition stays true for ms milliseconds. */
#define KT_HOLDS(cond, ms)                                                                         \
	({                                                                                         \
		int64_t kt_end_ = kt_now_ms() + (ms);                                              \
		bool kt_ok_;                                                                       \
                                                                                                   \
		while ((kt_ok_ = (cond)) && kt_now_ms() < kt_end_)                                 \
			usleep(1000);                                                              \
		kt_ok_;                                                                            \
	})

enum kt_open_flags {
	KT_SMALL_A = 1, /* client and A have small buffers: a silent client soon stalls A */
	KT_SMALL_B = 2, /* the same for B and the server */
};

struct kt_session {
	int client, a, b, server; /* -1: closed */
	uint32_t slot_a, slot_b;
};

extern struct traps_bpf *kt_bpf; /* loaded by kt_load */

/* A test, which kt_teardown follows: that closes what the test has left open. */
#define KT_TEST(name) TEST_WITH(name, NULL, kt_teardown)
/*
 * The main() of a program: checks for root (77 if not), makes the namespace, sets a watchdog, and
 * runs all tests between LOAD and UNLOAD.
 */
#define KT_MAIN(load, unload)                                                                      \
	int main(void)                                                                             \
	{                                                                                          \
		kt_enter();                                                                        \
		return unit_run(load, unload);                                                     \
	}
void kt_enter(void);
int kt_load(void **state);
int kt_unload(void **state);
/* The same with culvert's own program beside it, for one session. */
extern struct sockmap *kt_culvert;
int kt_load_culvert(void **state);
int kt_unload_culvert(void **state);
int kt_teardown(void **state);

/* How much longer than usual to wait: CULVERT_TEST_SLOW, for emulated machines; 1 without it. */
int kt_slow(void);
int64_t kt_now_ms(void);

/* Opens both connections and registers them for kt_teardown.  Asserts on failure. */
struct kt_session *kt_open(unsigned int flags);
/* Closes one end of a session (a member of the struct) and marks it closed. */
void kt_close(int *fdp);

/* Map operations: 0 or -errno. */
int kt_add(struct bpf_map *map, uint32_t slot, int fd);
int kt_del(struct bpf_map *map, uint32_t slot);
/* Names A and B to the program, puts both into tx, and A into rx in MODE.  Asserts on failure. */
void kt_start(struct kt_session *s, enum kt_mode mode);

volatile struct kt_conf *kt_conf(uint32_t slot);
volatile struct kt_stat *kt_stat(uint32_t slot);

/* T2: makes the verdict run over what is already queued. */
void kt_kick(int fd);

/* All LEN bytes of the stream (rig_pattern()) from OFF on. */
int kt_send(int fd, uint64_t off, size_t len);
/* Exactly len bytes, verified. */
int kt_expect(int fd, uint64_t off, size_t len);
/* Both, at two ends of a session.  Asserts on failure. */
void kt_carry(int from, int to, uint64_t off, size_t len);
/* End of file and no byte before it. */
int kt_expect_eof(int fd);
/* Nothing to read and no end of file now. */
bool kt_quiet(int fd);

/* poll(2) without waiting: revents. */
short kt_poll(int fd, short events);
/* An option of an int. */
int kt_sockopt(int fd, int level, int name);
/* SO_MEMINFO: what is charged to a socket. */
uint64_t kt_charged(int fd);
/* Bytes in a queue: SIOCINQ or SIOCOUTQ. */
int kt_queued(int fd, unsigned long queue);
struct tcp_info kt_info(int fd);
/* Bytes that the TCP of a session's A or B has accepted for sending. */
int64_t kt_accepted_a(const struct kt_session *s);
int64_t kt_accepted_b(const struct kt_session *s);

/*
 * As if the owner of fd (IPv4, on lo) had sent a segment: len bytes of the stream from off, the
 * first `again` of which were sent before, the others never.
 */
int kt_inject(int fd, uint64_t off, size_t len, size_t again);
/* The same: a reset, and a keepalive probe whose timestamp is AHEAD, with the last number sent. */
int kt_inject_reset(int fd);
int kt_inject_probe(int fd, uint32_t ahead);
