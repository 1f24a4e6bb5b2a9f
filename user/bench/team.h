/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Processes that share the work, and their parent.  Each child has a socket to the parent: it gets
 * orders there, says when it is ready, and notices by EOF that the parent is gone.  SIGINT and
 * SIGTERM reach the parent alone.
 */
struct member {
	pid_t pid;
	int fd; /* -1: ended */
};

struct team {
	struct member *members;
	unsigned int n, running;
	int signals; /* signalfd */
	bool died;   /* a child ended otherwise than with exit code 0 */
};

enum order_kind {
	ORDER_START, /* parent: begin at start_ns */
	ORDER_STOP,  /* parent: end, in order */
	ORDER_READY, /* child */
};

struct order {
	enum order_kind kind;
	uint64_t start_ns;
};

enum team_event {
	TEAM_READY,  /* a child is */
	TEAM_GONE,   /* a child has ended */
	TEAM_SIGNAL, /* SIGINT or SIGTERM has come */
};

/* What a child does: returns its exit code.  CONTROL is its end of the socket. */
typedef int team_work(unsigned int index, int control, void *arg);

/* Zeroed memory for N objects of SIZE bytes that children and parent share; NULL: no memory. */
void *team_memory(unsigned int n, size_t size);

/* Fork N children.  Returns 0 or -errno; then nothing runs. */
int team_start(struct team *t, unsigned int n, team_work *work, void *arg);

void team_tell(struct team *t, const struct order *o);

/* Wait for something.  RET_SIGNAL is set by TEAM_SIGNAL. */
enum team_event team_next(struct team *t, int *ret_signal);

/* End the children that still run, at once; free everything. */
void team_close(struct team *t);

/* For children: -EAGAIN: no order yet; -ECONNRESET: the parent is gone. */
int order_receive(int control, struct order *ret);
void order_send(int control, const struct order *o);

/* Raise the soft limit of descriptors to the hard one; returns it. */
uint64_t raise_descriptor_limit(void);

/*
 * Processes for CONNECTIONS when each may have LIMIT descriptors: at least WANTED, at most
 * PROCESSES_MAX, never more than there are connections.  0: they are too many for all of these.
 */
unsigned int processes_needed(uint32_t connections, uint64_t limit, unsigned int wanted);
