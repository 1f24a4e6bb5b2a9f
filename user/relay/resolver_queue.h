/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RESOLVER_QUEUE_H
#define CULVERT_RESOLVER_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "relay/resolver.h"

/*
 * Which look-up is worked on, and by how many processes.  Pure: no system call, and time is what the
 * caller says it is.
 *
 * Places, one a look-up, are few, and one that hangs would keep its own for as long as it may.
 * So each has a rank: how often it was not answered lately.  While all places are taken, one that
 * waits takes that of one of a higher rank, at once, or of another, after RESOLVER_TURN_MS, which
 * doubles with each rank.  Who gives way is put back, and its rank is one more.  Hence a name whose
 * server answers waits for nobody once that is known, and for a turn or a few when it is not, however
 * many others hang; and a name whose server takes long gets its answer at last.
 *
 * A look-up without an answer is begun again beside the first process: the C library asks a second
 * time after 5 s only, and waits for A and AAAA together, so that a server that is silent about one
 * of them hides the other (RFC 8305, section 3).  What is found first counts.
 *
 * These extras have places of their own, and go round as well: who has wanted one for longest, of
 * the lowest rank, gets it, and while all are taken it takes those of a look-up of a higher rank,
 * at once, or of one whose last has had RESOLVER_EXTRA_MS.  Each is begun once, so nobody takes
 * one back.  Hence names that hung the last time keep no extra from others; and where all are new,
 * each has its own within the time that the others' take, RESOLVER_EXTRAS at a time.
 */
struct runner {
	pid_t pid; /* 0: none */
	int pipe;
};

/* By processes: as soon as may be; again, as the packet may be lost; each family by itself. */
#define QUEUE_RUNNERS 4

struct job {
	bool used;
	struct resolver_request q;
	unsigned int rank;  /* how often it has waited in vain; at most QUEUE_RANK_MAX */
	uint64_t order;     /* who has come, or was put back, before has less */
	uint64_t since_ms;  /* it waits since then */
	uint64_t due_ms;    /* it has failed by then */
	uint64_t began_ms;  /* the first runner, this time */
	uint64_t next_ms;   /* the next runner beside it is wanted */
	uint64_t last_ms;   /* the last runner began */
	unsigned int begun; /* runners; 0: it waits */
	struct runner runners[QUEUE_RUNNERS];
	int error;          /* what to say if nobody finds anything; 0: none has failed yet */
	char why[LOOKUP_WHY_LEN];
};

#define QUEUE_JOBS 1024
#define QUEUE_RANK_MAX 4

struct queue {
	struct job jobs[QUEUE_JOBS];
	size_t n, running; /* used ones; processes of all of them */
	uint64_t order;
};

/* NULL: there is no room. */
struct job *queue_add(struct queue *q, const struct resolver_request *r, uint64_t now_ms);
/* J has no runner any more. */
void queue_remove(struct queue *q, struct job *j);

enum queue_what {
	QUEUE_NOTHING,
	QUEUE_BEGIN,    /* begin the next runner of JOB, and tell queue_begun() */
	QUEUE_PUT_BACK, /* end all runners of JOB, and tell queue_put_back() */
	QUEUE_THIN,     /* end all runners of JOB but one, and tell queue_ended() */
};

struct queue_step {
	enum queue_what what;
	struct job *job;
};

/* What to do now. */
struct queue_step queue_next(struct queue *q, uint64_t now_ms);

/* Returns its place among the runners. */
struct runner *queue_begun(struct queue *q, struct job *j, struct runner r, uint64_t now_ms);
void queue_put_back(struct queue *q, struct job *j, uint64_t now_ms);
void queue_ended(struct queue *q, struct runner *r);

/* The address family that the next runner of J is to ask for, or AF_UNSPEC. */
int queue_family(const struct job *j);

/*
 * Runner R of J has ended with ERROR (0: it has found addresses), and queue_ended() was told: does
 * that settle J?  J->error, unless it is 0, says then what to answer; else that is R's own answer.
 * If not, the next one may begin at once.
 */
bool queue_settles(struct job *j, const struct runner *r, int error, const char *why,
		   uint64_t now_ms);

/* When to ask queue_next() again, or to end a job; UINT64_MAX: not before something happens. */
uint64_t queue_due(struct queue *q, uint64_t now_ms);

/* J, which is over, has taken so long that it may be the like next time. */
bool queue_has_hung(const struct job *j, uint64_t now_ms);

#endif
