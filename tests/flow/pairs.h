/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_PAIRS_H
#define CULVERT_TEST_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "peer.h"

/*
 * Sessions that go on for as long as the test wants.  A session is a pair of scripted peers
 * (peer.h), which know every byte of it.  Pairs are opened one by one, so that the two belong
 * together.
 */

#define PAIRS_MOST 32
#define PAIRS_PATIENCE_MS 20000
#define ENDLESS "100000000"

/* What a pair does from its opening on, until pairs_end(). */
enum habit {
	IDLE,      /* nothing */
	BIG_TURNS, /* requests and answers that are too big for the kernel */
	TURNS,     /* small ones */
	STREAM,    /* both ways at once, now and then a little */
	BULK,      /* to the server, as fast as it goes */
	HABITS,
};

struct pair {
	enum habit habit;
	struct peer client, server;
};

extern struct pair pairs[PAIRS_MOST];
extern unsigned int n_pairs;
/* To be set: whatever goes wrong ends the test.  Must not return. */
extern void (*pairs_failed)(const char *why);

/* Close what is left of them. */
void pairs_forget(void);

/* A client of LISTEN, a server at the listening UPSTREAM_FD: three turns, and then its habit. */
void pair_open(enum habit habit, const char *listen, int upstream_fd);

/* All habits end, some more is said, and the sessions end in peace. */
void pairs_end(void);

/* All of them do what they can; then waits until there is more to do, 2 ms at most. */
bool pairs_run(void);

/* When MS are over, on slow machines later; see now_ms(). */
int64_t deadline_after(int64_t ms);

#endif
