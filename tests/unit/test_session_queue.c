// SPDX-License-Identifier: BSD-2-Clause
/* What workers leave and the writer finds: all of it, once, in order; and what it is to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>

#include "relay/session_queue.h"

#define THREADS 4
#define EACH 5000

static struct session_queue queue;

static int open_queue(void **state)
{
	(void)state;
	return session_queue_open(&queue, 100);
}

static int close_queue(void **state)
{
	(void)state;
	session_queue_close(&queue);
	return 0;
}

/* A record that can be told by NUMBER; PORT tells who has left it. */
static void leave(uint16_t port, uint64_t number)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	union session_record_room room;

	session_record_refused(&room, "web", (struct sockaddr *)&a, number, CAUSE_DENIED);
	session_queue_add(&queue, &room.record);
}

/* Those of a batch must be FIRST, FIRST + 1, ...; returns how many there are. */
static unsigned int check_batch(const struct session_batch *b, uint64_t first)
{
	const struct session_record *r = NULL;
	unsigned int n = 0;

	for (; (r = session_batch_next(b, r)); n++)
		assert_int_equal(r->ended_ms, first + n);
	return n;
}

static void test_order(void **state)
{
	const struct session_batch *b;

	(void)state;
	for (uint64_t i = 0; i < 10; i++)
		leave(1, i);
	b = session_queue_take(&queue);
	assert_int_equal(check_batch(b, 0), 10);
	assert_false(b->last || b->reopen || b->missed);
	for (uint64_t i = 10; i < 13; i++) /* while the first batch is worked on */
		leave(1, i);
	assert_int_equal(check_batch(b, 0), 10);
	b = session_queue_take(&queue);
	assert_int_equal(check_batch(b, 10), 3);
}

static void test_reopen(void **state)
{
	const struct session_batch *b;

	(void)state;
	leave(1, 0);
	session_queue_reopen(&queue);
	b = session_queue_take(&queue);
	assert_int_equal(check_batch(b, 0), 1);
	assert_true(b->reopen);
	leave(1, 1);
	b = session_queue_take(&queue);
	assert_false(b->reopen);
	session_queue_reopen(&queue); /* is something to do, without a record */
	b = session_queue_take(&queue);
	assert_true(b->reopen);
	assert_int_equal(check_batch(b, 0), 0);
}

/* What does not fit is counted; after a batch there is room again. */
static void test_full(void **state)
{
	const struct session_batch *b;
	unsigned int n;

	(void)state;
	for (uint64_t i = 0; i < 20000; i++)
		leave(1, i);
	b = session_queue_take(&queue);
	n = check_batch(b, 0);
	assert_in_range(n, 100, 19999);
	assert_int_equal(b->missed, 20000 - n);
	assert_int_equal(session_queue_missed(&queue), 20000 - n);
	for (uint64_t i = 0; i < n; i++)
		leave(1, i);
	assert_int_equal(session_queue_missed(&queue), 20000 - n);
}

static void test_end(void **state)
{
	const struct session_batch *b;

	(void)state;
	assert_true(session_queue_has_time(&queue));
	leave(1, 7);
	session_queue_end(&queue, 100000);
	assert_true(session_queue_has_time(&queue));
	b = session_queue_take(&queue);
	assert_true(b->last);
	assert_int_equal(check_batch(b, 7), 1);
	session_queue_end(&queue, 0);
	assert_false(session_queue_has_time(&queue));
}

static void *leave_many(void *arg)
{
	uint16_t port = *(const uint16_t *)arg;

	for (uint64_t i = 0; i < EACH; i++) {
		leave(port, i);
		if (i % 100 == 0)
			poll(NULL, 0, 1); /* or the writer would have no chance */
	}
	return NULL;
}

/* What several threads leave is taken, in the order of each, or counted. */
static void test_threads(void **state)
{
	uint64_t next[THREADS] = { 0 }, taken = 0;
	pthread_t threads[THREADS];
	uint16_t ports[THREADS];

	(void)state;
	for (uint16_t i = 0; i < THREADS; i++) {
		ports[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, leave_many, &ports[i]), 0);
	}
	while (taken + session_queue_missed(&queue) < THREADS * EACH) {
		const struct session_batch *b = session_queue_take(&queue);
		const struct session_record *r = NULL;

		for (; (r = session_batch_next(b, r)); taken++) {
			unsigned int i = ntohs(r->client.in.sin_port);

			assert_in_range(i, 0, THREADS - 1);
			assert_true(r->ended_ms >= next[i]);
			next[i] = r->ended_ms + 1;
		}
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(taken + session_queue_missed(&queue), THREADS * EACH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_order, open_queue, close_queue),
		cmocka_unit_test_setup_teardown(test_reopen, open_queue, close_queue),
		cmocka_unit_test_setup_teardown(test_full, open_queue, close_queue),
		cmocka_unit_test_setup_teardown(test_end, open_queue, close_queue),
		cmocka_unit_test_setup_teardown(test_threads, open_queue, close_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
