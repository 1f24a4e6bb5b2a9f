/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_RIG_H
#define CULVERT_PROBE_RIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "config/config.h"
#include "datapath/carrier_sockmap.h"
#include "datapath/flow.h"
#include "datapath/kernel.h"
#include "datapath/policy.h"
#include "datapath/pool.h"

/*
 * What a check of `culvert probe` works with: a session as the daemon has it, and both its peers,
 * in one process.
 *
 *	client ===== A | B ===== server
 *
 * Flow and stream UP go from left to right, DOWN from right to left.  All sockets are non-blocking.
 * Functions return 0, or a count, or -errno; those that wait give up with -ETIMEDOUT at the check's
 * deadline.  Two errors have a meaning of their own here: -EILSEQ, a byte of a stream is wrong, and
 * -EBADE, bytes cannot be accounted for.
 */
enum { UP, DOWN };

enum rig_flags {
	RIG_SMALL_A = 1, /* client and A have small buffers: a silent client stalls flow DOWN */
	RIG_SMALL_B = 2, /* the same for B, the server and flow UP */
};

/* Bytes of a known pattern.  A second thread may send while the first receives. */
struct stream {
	int tx, rx;
	_Atomic uint64_t sent, got;
};

struct rig {
	int client, a, b, server; /* -1: closed */
	uint32_t pair;            /* not given back: each rig has slots that are new */
	bool admitted;
	uint64_t cookies[2];
	struct flow flows[2];
	struct stream streams[2];
};

#define PROBE_DETAIL 400

/* The state of a run of checks. */
struct probe {
	struct kernel *kernel; /* NULL before, and without, the check that loads the program */
	bool own_net;          /* in a network namespace of its own */
	struct forward_conf limits; /* of which only soft and hard limit are used */
	struct policy policy;
	struct pool pool;
	struct rig rig;        /* of the current check; closed after it */
	uint64_t deadline_ms;  /* of the current check */
	char detail[PROBE_DETAIL];
};

/* True until the deadline of the check, after a pause of 0.1 ms. */
bool rig_patience(const struct probe *p);

/* Waits for a condition: 0 or -ETIMEDOUT. */
#define RIG_WAIT(p, cond)                                                                          \
	({                                                                                         \
		bool rig_ok_;                                                                      \
                                                                                                   \
		while (!(rig_ok_ = (cond)) && rig_patience(p))                                     \
			;                                                                          \
		rig_ok_ ? 0 : -ETIMEDOUT;                                                          \
	})

/* p->detail, for a check that holds. */
void rig_note(struct probe *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Pass R on; if it is an error, p->detail says that WHAT failed, and how. */
int rig_step(struct probe *p, int r, const char *what);

/* 0 if GOT is WANT; else -EPROTO, and p->detail tells both. */
int rig_same(struct probe *p, const char *what, uint64_t got, uint64_t want);

/* Brings lo of a new network namespace up. */
int rig_lo_up(void);

/* Connect four sockets, with TCP_NODELAY as in the daemon.  FLAGS of enum rig_flags. */
int rig_open(struct probe *p, unsigned int flags);
/* Take a pair of slots, for sockets that need not be admitted. */
int rig_pair(struct probe *p);
/* rig_pair(), then make A and B known to the program as redirect targets. */
int rig_admit(struct probe *p);
/* Everything that rig_open() and rig_admit() have made.  May be called at any time. */
void rig_close(struct probe *p);

/* Give a flow whose peer was stalled by small buffers large ones; or small ones again. */
void rig_widen(struct probe *p, unsigned int dir, bool wide);

/* For the functions of carrier_sockmap.h. */
struct sockmap_io rig_io(struct probe *p, unsigned int dir);

/* Flow DIR into the kernel: sockmap_enter() and the kick. */
int rig_enter(struct probe *p, unsigned int dir);
/* Out of it.  What arrives meanwhile at the end of the stream is received. */
int rig_leave(struct probe *p, unsigned int dir);
/* Until all is in the target's TCP, which is how leaving ends ... */
int rig_drain(struct probe *p, unsigned int dir);
/* ... and how a flow ends whose source has sent FIN. */
int rig_finish(struct probe *p, unsigned int dir);
/* Bytes that the program has redirected. */
uint64_t rig_redirected(const struct probe *p, unsigned int dir);

/* As many as go now, MOST at the most: their number. */
ssize_t rig_push_some(struct probe *p, unsigned int dir, size_t most);
/* All of them. */
int rig_push(struct probe *p, unsigned int dir, size_t len);
/* Until all are sent, or none could be for some milliseconds. */
int rig_push_until_halt(struct probe *p, unsigned int dir, size_t len);
/* The byte that comes next in a stream, for a caller that sends it in its own way. */
unsigned char rig_next_byte(const struct probe *p, unsigned int dir);
/* What is there, verified. */
ssize_t rig_pull_some(struct probe *p, unsigned int dir, size_t most);
/* All that was sent and not received yet. */
int rig_pull(struct probe *p, unsigned int dir);
/* End of file, and no byte before it. */
int rig_pull_eof(struct probe *p, int fd);
/* The peer of FD has sent FIN. */
int rig_await_fin(struct probe *p, int fd);

/* The beginnings of most checks: open and admit; and enter both flows.  p->detail is set. */
int rig_open_admitted(struct probe *p, unsigned int flags);
int rig_open_entered(struct probe *p, unsigned int flags);
/* Push and pull; p->detail says WHAT failed. */
int rig_deliver(struct probe *p, unsigned int dir, size_t len, const char *what);

#endif
