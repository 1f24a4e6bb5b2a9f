/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RIG_H
#define CULVERT_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "datapath/carrier_sockmap.h"
#include "datapath/flow.h"
#include "datapath/kernel.h"
#include "datapath/policy.h"
#include "datapath/pool.h"

/*
 * A session as the daemon has it, and both its peers, in one process; and streams of known bytes.
 * Behaviours (behaviours.h) and the tests in tests/kernel are written with it.
 *
 *	client ===== A | B ===== server
 *
 * Flow and stream UP go from left to right, DOWN from right to left.  All sockets are non-blocking.
 */
enum { UP, DOWN };

enum rig_flags {
	RIG_SMALL_A = 1, /* client and A have small buffers: a silent client stalls flow DOWN */
	RIG_SMALL_B = 2, /* the same for B, the server and flow UP */
};

/* --- for anybody: results are 0, a count, or -errno --- */

/* At least RIG_PATTERN bytes of the stream of known bytes, from offset OFF on. */
#define RIG_PATTERN 65521 /* a prime: no loss or repetition of a round number goes unseen */
const unsigned char *rig_pattern(uint64_t off);
/* Send up to LEN bytes of the stream from OFF on, as far as the socket takes them now. */
ssize_t rig_send(int fd, uint64_t off, size_t len);
/*
 * Receive up to MOST bytes that are there, which must be those of the stream from OFF on: their
 * number; -EILSEQ: a byte is wrong; -ENODATA: nothing but the end of the stream.
 */
ssize_t rig_receive(int fd, uint64_t off, size_t most);
/* Connect two sockets over loopback; SMALL: with small buffers.  The caller owns both. */
int rig_connect(int family, bool small, int *ret_connected, int *ret_accepted);
/* Bring lo of a new network namespace up. */
int rig_lo_up(void);
/* True while the machine has no room for TCP's buffers: then nearly anything may fail. */
bool rig_memory_short(void);

/* --- for behaviours: a step that fails ends the behaviour, see rig_fail() --- */

/* Bytes of one direction.  A second thread may send while the first receives. */
struct stream {
	int tx, rx;
	_Atomic uint64_t sent, got;
};

struct rig {
	int client, a, b, server; /* -1: closed */
	uint32_t pair;
	bool has_pair, admitted;
	struct flow flows[2];
	struct stream streams[2];
	bool has_helper; /* a thread, which ends when the client's socket is shut down */
	pthread_t helper;
};

#define PROBE_DETAIL 400

/* The state of a run of behaviours. */
struct probe {
	struct kernel *kernel; /* NULL before, and without, the behaviour that loads the program */
	bool brief;            /* what is repeated, is repeated less often */
	bool own_net;          /* in a network namespace of its own */
	unsigned int flags;    /* of enum rig_flags, for every rig in addition */
	struct forward_conf limits; /* of which only soft and hard limit are used */
	struct policy policy;
	struct pool pool;
	struct rig rig;        /* of the current behaviour; closed after it */
	uint64_t deadline_ms;  /* of the current behaviour */
	char detail[PROBE_DETAIL]; /* what was seen, or what failed */
	jmp_buf failed;
};

/* p->detail, for a behaviour that holds. */
void rig_note(struct probe *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* End the current behaviour as one that does not hold, as an assertion ends a test. */
_Noreturn void rig_fail(struct probe *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Return R, a result; if it is an error, the behaviour fails, because of WHAT. */
long rig_step(struct probe *p, long r, const char *what);
/* The same for the result of a system call: an error is -1, and errno. */
long rig_call(struct probe *p, long r, const char *what);
/* Fail unless GOT is WANT. */
void rig_same(struct probe *p, const char *what, uint64_t got, uint64_t want);

/* Pause for 0.1 ms; fail because of WHAT at the behaviour's deadline. */
void rig_patience(struct probe *p, const char *what);
/* Wait for a condition. */
#define RIG_WAIT(p, cond, what)                                                                    \
	do {                                                                                       \
		while (!(cond))                                                                    \
			rig_patience(p, what);                                                     \
	} while (0)

/* Connect four sockets, with TCP_NODELAY as in the daemon. */
void rig_open(struct probe *p, unsigned int flags);
/* Take a pair of slots, for sockets that need not be admitted. */
void rig_pair(struct probe *p);
/* rig_open() and rig_pair(); then make A and B known to the program as redirect targets. */
void rig_open_admitted(struct probe *p, unsigned int flags);
/* rig_open_admitted(), and both flows enter the kernel. */
void rig_open_entered(struct probe *p, unsigned int flags);
/* Undo all that; end the helper.  May be called at any time. */
void rig_close(struct probe *p);
/* Run FN in a thread, which must end when the client's socket is shut down. */
void rig_help(struct probe *p, void *(*fn)(void *arg), void *arg);

/* Give a flow whose peer was stalled by small buffers large ones; or small ones again. */
void rig_widen(struct probe *p, unsigned int dir, bool wide);

/* For the functions of carrier_sockmap.h, and of carrier.h. */
struct sockmap_io rig_io(struct probe *p, unsigned int dir);
struct pump_io rig_pump(struct probe *p, unsigned int dir);
/* Flow DIR into the kernel: sockmap_enter() and the kick.  -EAGAIN: bytes are waiting. */
int rig_try_enter(struct probe *p, unsigned int dir);
void rig_enter(struct probe *p, unsigned int dir);
/* Call FN, which is sockmap_leave(), _drain() or _finish(), until it is done, and receive. */
void rig_until_done(struct probe *p, unsigned int dir, enum step (*fn)(struct sockmap_io *io),
		    const char *what);
/* Bytes that the program has redirected. */
uint64_t rig_redirected(const struct probe *p, unsigned int dir);

/* As many as go now, MOST at the most: their number. */
size_t rig_push_some(struct probe *p, unsigned int dir, size_t most);
/* All of them. */
void rig_push(struct probe *p, unsigned int dir, size_t len);
/* Until all are sent, or none could be for some milliseconds. */
void rig_push_until_halt(struct probe *p, unsigned int dir, size_t len);
/* Send FIN behind the last byte. */
void rig_push_fin(struct probe *p, unsigned int dir);
/* Receive what is there, MOST at the most: its length. */
size_t rig_pull_some(struct probe *p, unsigned int dir, size_t most);
/* All that was sent and not received yet; WHAT it is. */
void rig_pull(struct probe *p, unsigned int dir, const char *what);
/* End of file, and no byte before it. */
void rig_pull_eof(struct probe *p, int fd);
/* rig_push() and rig_pull(). */
void rig_deliver(struct probe *p, unsigned int dir, size_t len, const char *what);
/* The peer of FD has sent FIN. */
void rig_await_fin(struct probe *p, int fd);

#endif
