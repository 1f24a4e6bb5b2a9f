// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: workers append records to a piece of memory of fixed size, under a lock that
 * is held for as long as it takes to copy 200 bytes.  The writer exchanges it for the one that it
 * has worked off.  Of either only as much is ever touched as was once in use; what does not fit is
 * lost.
 *
 * To wake a thread costs more than to end a session, so the writer is woken by the first record
 * after a rest, and then waits for more to come before it works: ten wake-ups a second, at most,
 * and none while no session ends.
 */
#include "relay/session_queue.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"

#define GATHER_MS 100
#define RECORD_GUESS 256 /* most are smaller: see session_record.h */
#define SIZE_LEAST (256 << 10)
#define SIZE_MOST (32 << 20)

static size_t size_for(unsigned int sessions)
{
	size_t size = (size_t)sessions * RECORD_GUESS;

	if (size < SIZE_LEAST)
		return SIZE_LEAST;
	return size < SIZE_MOST ? size : SIZE_MOST;
}

/* Not malloc(): it may make the memory its own, and then all of it is touched when it is reused. */
static char *map_bytes(size_t size)
{
	/* cppcheck-suppress invalidFunctionArg ; no file */
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* cppcheck-suppress memleak ; it is returned */
	return p == MAP_FAILED ? NULL : p;
}

int session_queue_open(struct session_queue *q, unsigned int sessions)
{
	*q = (struct session_queue){ .size = size_for(sessions) };
	pthread_mutex_init(&q->lock, NULL);
	clock_cond_init(&q->wake);
	q->bytes = map_bytes(q->size);
	q->out.bytes = map_bytes(q->size);
	return q->bytes && q->out.bytes ? 0 : -ENOMEM;
}

void session_queue_close(struct session_queue *q)
{
	if (q->bytes)
		munmap(q->bytes, q->size);
	if (q->out.bytes)
		munmap(q->out.bytes, q->size);
	pthread_cond_destroy(&q->wake);
	pthread_mutex_destroy(&q->lock);
}

/* --- for those who leave something --- */

void session_queue_add(struct session_queue *q, const struct session_record *r)
{
	bool wake = false;

	pthread_mutex_lock(&q->lock);
	if (q->used + r->size > q->size) {
		q->missed++;
	} else {
		memcpy(q->bytes + q->used, r, r->size);
		q->used += r->size;
		wake = q->wait == SESSION_WAIT_RECORD ||
		       (q->wait == SESSION_WAIT_MORE && q->used >= q->size / 2);
		if (wake) /* once is enough */
			q->wait = SESSION_WAIT_NOT;
	}
	pthread_mutex_unlock(&q->lock);
	if (wake)
		pthread_cond_signal(&q->wake);
}

void session_queue_reopen(struct session_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->reopen = true;
	pthread_mutex_unlock(&q->lock);
	pthread_cond_signal(&q->wake);
}

void session_queue_end(struct session_queue *q, unsigned int ms)
{
	pthread_mutex_lock(&q->lock);
	q->last = true;
	q->end_ms = clock_ms() + ms;
	pthread_mutex_unlock(&q->lock);
	pthread_cond_signal(&q->wake);
}

uint64_t session_queue_missed(struct session_queue *q)
{
	uint64_t n;

	pthread_mutex_lock(&q->lock);
	n = q->missed;
	pthread_mutex_unlock(&q->lock);
	return n;
}

/* --- for the writer --- */

/* The lock is held. */
static void wait_for_records(struct session_queue *q)
{
	struct timespec until;
	int r = 0;

	while (!q->used && !q->reopen && !q->last) {
		q->wait = SESSION_WAIT_RECORD;
		pthread_cond_wait(&q->wake, &q->lock);
	}
	until = clock_timespec(clock_ms() + GATHER_MS);
	while (!r && q->used < q->size / 2 && !q->reopen && !q->last) {
		q->wait = SESSION_WAIT_MORE;
		r = pthread_cond_timedwait(&q->wake, &q->lock, &until);
	}
	q->wait = SESSION_WAIT_NOT;
}

const struct session_batch *session_queue_take(struct session_queue *q)
{
	char *worked_off = q->out.bytes;

	pthread_mutex_lock(&q->lock);
	wait_for_records(q);
	q->out = (struct session_batch){
		.bytes = q->bytes, .used = q->used, .missed = q->missed,
		.reopen = q->reopen, .last = q->last,
	};
	q->bytes = worked_off;
	q->used = 0;
	q->reopen = false;
	pthread_mutex_unlock(&q->lock);
	return &q->out;
}

bool session_queue_has_time(struct session_queue *q)
{
	uint64_t end_ms;

	pthread_mutex_lock(&q->lock);
	end_ms = q->last ? q->end_ms : UINT64_MAX;
	pthread_mutex_unlock(&q->lock);
	return clock_ms() < end_ms;
}

const struct session_record *session_batch_next(const struct session_batch *b,
						const struct session_record *before)
{
	const char *at = before ? (const char *)before + before->size : b->bytes;

	return at < b->bytes + b->used ? (const void *)at : NULL;
}
