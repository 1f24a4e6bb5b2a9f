/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_QUEUE_H
#define CULVERT_SESSION_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "relay/session_record.h"

/*
 * Records on their way from the workers, which leave them here and go on, to the one thread that
 * writes the session log; and what that thread is asked to do.
 */

/* What the writer gets, until it asks for more. */
struct session_batch {
	char *bytes; /* records, one behind the other, each aligned as malloc() aligns */
	size_t used;
	uint64_t missed; /* records that did not fit into the queue, ever */
	bool reopen;     /* asked for since the batch before */
	bool last;       /* the queue is told to end */
};

/* What the writer waits for. */
enum session_wait {
	SESSION_WAIT_NOT,
	SESSION_WAIT_RECORD, /* the first one */
	SESSION_WAIT_MORE,   /* a while, or until the queue is half full */
};

struct session_queue {
	struct session_batch out; /* the writer's own */
	size_t size;              /* of what either side has room for */

	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t wake;
	char *bytes; /* as in a batch */
	size_t used;
	uint64_t missed;
	enum session_wait wait;
	bool reopen, last;
	uint64_t end_ms; /* if it is told to end: by then */
};

/* With room for as many records as SESSIONS that end all at once leave.  -ENOMEM. */
int session_queue_open(struct session_queue *q, unsigned int sessions);
/* Of one that could not be opened, too. */
void session_queue_close(struct session_queue *q);

/* From any thread. */
void session_queue_add(struct session_queue *q, const struct session_record *r);
/* Once the records that are in it now are written, the file is to be opened anew. */
void session_queue_reopen(struct session_queue *q);
/* The next batch is the last one, and has MS. */
void session_queue_end(struct session_queue *q, unsigned int ms);
/* Records that did not fit, ever. */
uint64_t session_queue_missed(struct session_queue *q);

/* For the writer: wait for records, or for something to do. */
const struct session_batch *session_queue_take(struct session_queue *q);
/* False: it was told to end, and that time is over. */
bool session_queue_has_time(struct session_queue *q);
/* The record of B that comes after BEFORE, or first if that is NULL; NULL: none. */
const struct session_record *session_batch_next(const struct session_batch *b,
						const struct session_record *before);

#endif
