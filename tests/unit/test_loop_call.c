/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/loop.h"
#include "loop_rig.h"
#include "seeded.h"

static void no_fire(struct timer *t)
{
	(void)t;
}

static void no_event(struct source *s, uint32_t events)
{
	(void)s;
	(void)events;
}

/* The loop on a thread of its own, with an event in every batch and a timer that is always due. */
struct runner {
	struct loop loop;
	pthread_t thread;
	struct source busy;
	struct timer rearm;
	_Atomic unsigned int batches;
};

static void *run_loop(void *arg)
{
	// NOLINTNEXTLINE(performance-no-int-to-ptr): a thread's result
	return (void *)(intptr_t)loop_run(&((struct runner *)arg)->loop);
}

static void count_runner(void *arg)
{
	atomic_fetch_add(&((struct runner *)arg)->batches, 1);
}

static void rearm_now(struct timer *t)
{
	struct runner *r = (struct runner *)((char *)t - offsetof(struct runner, rearm));

	timer_set(&r->loop, t, r->loop.now_ms);
}

static void runner_start(struct runner *r, bool busy)
{
	memset(r, 0, sizeof(*r));
	assert_int_equal(loop_open(&r->loop, count_runner, r), 0);
	r->busy = (struct source){ .fd = eventfd(1, EFD_CLOEXEC), .handle = no_event };
	r->rearm.fire = rearm_now;
	if (busy) {
		assert_int_equal(loop_watch(&r->loop, &r->busy, EPOLLIN, true), 0);
		timer_set(&r->loop, &r->rearm, r->loop.now_ms);
	}
	assert_int_equal(pthread_create(&r->thread, NULL, run_loop, r), 0);
}

static void set_stop(void *arg)
{
	((struct loop *)arg)->stop = true;
}

static void runner_end(struct runner *r)
{
	void *result;

	assert_int_equal(loop_call(&r->loop, set_stop, &r->loop, 5000), 0);
	assert_int_equal(pthread_join(r->thread, &result), 0);
	assert_null(result);
	close(r->busy.fd);
	loop_close(&r->loop);
}

static void note_thread(void *arg)
{
	*(pthread_t *)arg = pthread_self();
}

static void test_call(void **state)
{
	static struct runner r;

	(void)state;
	for (int busy = 0; busy < 2; busy++) {
		runner_start(&r, busy);
		for (int i = 0; i < 100; i++) {
			pthread_t where = pthread_self();

			assert_int_equal(loop_call(&r.loop, note_thread, &where, 5000), 0);
			assert_true(pthread_equal(where, r.thread));
		}
		runner_end(&r);
		/* ended by the call itself, after its batch was completed */
		assert_true(atomic_load(&r.batches) > 0);
	}
}

static void count(void *arg)
{
	++*(unsigned int *)arg;
}

/* Nobody runs the loop: the call is taken back and never comes. */
static void test_call_times_out(void **state)
{
	struct rig *rig = *state;
	struct timer t = { .fire = no_fire };
	unsigned int n = 0;
	uint64_t before = clock_now_ms();

	assert_int_equal(loop_call(&rig->loop, count, &n, 20), -ETIMEDOUT);
	assert_true(clock_now_ms() - before >= 20);
	assert_int_equal(loop_call(&rig->loop, count, &n, 0), -ETIMEDOUT);
	timer_set(&rig->loop, &t, 1);
	run_batches(rig, 1);
	assert_int_equal(n, 0);
}

struct caller {
	struct loop *loop;
	pthread_t thread;
	int timeout_ms, calls;
	unsigned int returned, ran, wrong;
};

static void *call_often(void *arg)
{
	struct caller *c = arg;

	for (int i = 0; i < c->calls; i++) {
		unsigned int ran = 0;
		int r = loop_call(c->loop, count, &ran, c->timeout_ms);

		/* 0: it ran, once.  -ETIMEDOUT: it has not and will not, for RAN is gone. */
		c->wrong += !(r == 0 && ran == 1) && !(r == -ETIMEDOUT && ran == 0);
		c->returned += r == 0;
		c->ran += ran;
	}
	return NULL;
}

static void run_callers(struct loop *l, struct caller *c, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		c[i].loop = l;
		assert_int_equal(pthread_create(&c[i].thread, NULL, call_often, &c[i]), 0);
	}
	for (unsigned int i = 0; i < n; i++) {
		assert_int_equal(pthread_join(c[i].thread, NULL), 0);
		assert_int_equal(c[i].wrong, 0);
		assert_int_equal(c[i].returned, c[i].ran);
	}
}

/* Calls that leave the list from any place in it. */
static void test_many_calls_time_out(void **state)
{
	struct rig *rig = *state;
	struct caller c[4] = { 0 };

	for (int i = 0; i < 4; i++) {
		c[i].timeout_ms = 5 + i * 7 % 4 * 5;
		c[i].calls = 4;
	}
	run_callers(&rig->loop, c, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(c[i].returned, 0);
	assert_null(rig->loop.calls);
}

static void test_many_calls(void **state)
{
	static struct runner r;

	(void)state;
	for (int busy = 0; busy < 2; busy++) {
		struct caller c[4] = { 0 };

		runner_start(&r, busy);
		for (int i = 0; i < 4; i++) {
			c[i].timeout_ms = 5000;
			c[i].calls = 100;
		}
		run_callers(&r.loop, c, 4);
		for (int i = 0; i < 4; i++)
			assert_int_equal(c[i].returned, 100);
		runner_end(&r);
	}
}

/* Time-outs that race with the loop: run or not, but never both. */
static void test_calls_on_the_brink(void **state)
{
	struct caller c[4] = { 0 };
	static struct runner r;

	(void)state;
	runner_start(&r, false);
	for (int i = 0; i < 4; i++) {
		c[i].timeout_ms = i % 2;
		c[i].calls = 300;
	}
	run_callers(&r.loop, c, 4);
	runner_end(&r);
}

struct long_call {
	uint64_t until;
	bool begun, ended;
};

static void take_long(void *arg)
{
	struct long_call *c = arg;

	c->begun = true;
	while (clock_now_ms() < c->until)
		short_pause();
	c->ended = true;
}

/* The time-out is for the beginning: what runs uses the caller's stack and is waited for. */
static void test_call_that_takes_longer(void **state)
{
	struct long_call c = { 0 };
	static struct runner r;
	int result;

	(void)state;
	runner_start(&r, false);
	c.until = clock_now_ms() + 150;
	result = loop_call(&r.loop, take_long, &c, 100);
	if (c.begun) {
		assert_int_equal(result, 0);
		assert_true(c.ended);
		assert_true(clock_now_ms() >= c.until);
	} else {
		assert_int_equal(result, -ETIMEDOUT); /* a very busy machine */
	}
	runner_end(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_call),
		ON_LOOP(test_call_times_out),
		ON_LOOP(test_many_calls_time_out),
		cmocka_unit_test(test_many_calls),
		cmocka_unit_test(test_calls_on_the_brink),
		cmocka_unit_test(test_call_that_takes_longer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
