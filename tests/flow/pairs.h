/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_PAIRS_H
#define CULVERT_TEST_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon.h"
#include "peer.h"

/*
 * Sessions that go on for as long as the test wants, and where in the daemon each of them is.  A
 * session is a pair of scripted peers (peer.h), which know every byte of it.  Pairs are opened one
 * by one, so that the two belong together; `sessions` tells them apart by the client's port.
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
	int port;
	/* of the last look */
	int64_t worker;
	unsigned int listed;
	unsigned int changes; /* of the worker, from look to look */
	bool kernel;          /* both flows are in the kernel */
};

extern struct pair pairs[PAIRS_MOST];
extern unsigned int n_pairs;
extern unsigned int pairs_looks; /* how often pairs_look() was called */
/* To be set: whatever goes wrong ends the test.  Must not return. */
extern void (*pairs_failed)(const char *why);

/* Close what is left of them. */
void pairs_forget(void);

/* A client of LISTEN, a server at the listening UPSTREAM_FD: three turns, and then its habit. */
struct pair *pair_open(enum habit habit, const char *listen, int upstream_fd);

/* The habit ends; what was sent arrives, and CLIENT and SERVER (peer_script()) follow. */
void pair_end_habit(struct pair *p, const char *client, const char *server);

/* All habits end, some more is said, and the sessions end in peace. */
void pairs_end(void);

/* All of them do what they can; then waits until there is more to do, 2 ms at most. */
bool pairs_run(void);

/* Ask where they are.  Each must be there, once. */
void pairs_look(struct daemon *d);

/* Workers that have sessions, at the last look. */
unsigned int pairs_workers(void);

/* When MS are over, on slow machines later; see now_ms(). */
int64_t deadline_after(int64_t ms);

#endif
