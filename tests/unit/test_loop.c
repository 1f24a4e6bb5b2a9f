// SPDX-License-Identifier: BSD-2-Clause
/*
 * The event loop: events that a handler makes void, timers against a model, and calls from other
 * threads that race with their time-out.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "unit.h"
#include "base/clock.h"
#include "base/loop.h"
#include "seeded.h"

#define FAR 3600000 /* ms: does not come in this test */

/* It runs so many batches and stops. */
static struct loop loop;
static unsigned int batches, stop_after;
static struct source pair[2];
static unsigned int pair_events, n_fired; /* since the test began */

static void count_batch(void *arg)
{
	(void)arg;
	if (++batches >= stop_after)
		loop.stop = true;
}

static int rig_setup(void **state)
{
	(void)state;
	memset(&loop, 0, sizeof(loop));
	pair_events = n_fired = 0;
	return loop_open(&loop, count_batch, NULL);
}

/* Runs N batches.  Something must be due or readable, or this blocks. */
static void run_batches(unsigned int n)
{
	loop.stop = false;
	batches = 0;
	stop_after = n;
	assert_int_equal(loop_run(&loop), 0);
	assert_int_equal(batches, n);
}

/* --- sources --- */

/* The other one of the pair that S, which has an event, is of. */
static struct source *other_of(struct source *s, uint32_t events)
{
	assert_true(events & EPOLLIN);
	pair_events++;
	return s == &pair[0] ? &pair[1] : &pair[0];
}

static void unwatch_other(struct source *s, uint32_t events)
{
	loop_watch(&loop, other_of(s, events), 0, false);
}

static void open_pair(void (*handle)(struct source *s, uint32_t events))
{
	for (int i = 0; i < 2; i++) {
		pair[i] = (struct source){ .fd = eventfd(1, EFD_CLOEXEC), .handle = handle };
		assert_int_equal(loop_watch(&loop, &pair[i], EPOLLIN, true), 0);
	}
}

#define ON_LOOP(f) TEST_WITH(f, rig_setup, NULL)

/* An event that is already in the batch does not reach a source that is not watched any more. */
ON_LOOP(test_unwatched_within_batch)
{
	open_pair(unwatch_other);
	run_batches(1);
	assert_int_equal(pair_events, 1);
	for (int i = 0; i < 2; i++)
		close(pair[i].fd);
}

static void replace_other(struct source *s, uint32_t events)
{
	struct source *other = other_of(s, events);

	if (pair_events > 1)
		return;
	close(other->fd);
	other->registered = false;
	other->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_int_equal(loop_watch(&loop, other, EPOLLIN, true), 0);
}

/* Nor one that has another descriptor by now; what happens to that comes with the next batch. */
ON_LOOP(test_replaced_within_batch)
{
	uint64_t one = 1, taken;

	open_pair(replace_other);
	run_batches(1);
	assert_int_equal(pair_events, 1);
	for (int i = 0; i < 2; i++) /* the one that was handled has its event still */
		if (read(pair[i].fd, &taken, sizeof(taken)) != sizeof(taken))
			assert_int_equal(write(pair[i].fd, &one, sizeof(one)), sizeof(one));
	run_batches(1);
	assert_int_equal(pair_events, 2);
	for (int i = 0; i < 2; i++)
		close(pair[i].fd);
}

/* --- timers --- */

#define LOG_SIZE 4096

static struct timer *fired[LOG_SIZE];

static void note(struct timer *t)
{
	assert_null(t->prev); /* it may set itself again */
	fired[n_fired++ % LOG_SIZE] = t;
}

static struct timer *victim;

static void cancel_victim(struct timer *t)
{
	note(t);
	timer_cancel(victim);
}

/* A handler ends a session whose own timer is due in the same batch. */
ON_LOOP(test_timer_cancelled_by_another)
{
	struct timer killer = { .fire = cancel_victim }, other = { .fire = note };

	victim = &other;
	timer_set(&loop, &other, loop.now_ms - 1);
	timer_set(&loop, &killer, loop.now_ms - 2);
	run_batches(1);
	assert_int_equal(n_fired, 1);
	assert_null(loop.timers);
}

/* The due time of each timer; 0: it is not set. */

#define N_MODEL 300

static struct timer timers[N_MODEL];
static uint64_t model[N_MODEL];

/* How many are in the heap T, none of them due before BEFORE. */
// NOLINTNEXTLINE(misc-no-recursion): a heap is a tree
static unsigned int heap_size(const struct timer *t, uint64_t before)
{
	if (!t)
		return 0;
	assert_true(before <= t->due_ms);
	return 1 + heap_size(t->left, t->due_ms) + heap_size(t->right, t->due_ms);
}

static void check_heap(void)
{
	unsigned int set = 0;

	for (unsigned int i = 0; i < N_MODEL; i++) {
		set += model[i] != 0;
		assert_int_equal(timers[i].prev != NULL, model[i] != 0);
		if (!model[i] || !timers[i].prev)
			continue;
		assert_int_equal(timers[i].due_ms, model[i]);
		assert_ptr_equal(*timers[i].prev, &timers[i]);
	}
	assert_int_equal(heap_size(loop.timers, 0), set);
}

/* Everything that is due fires, once, in order; nothing else does. */
static void run_model(void)
{
	unsigned int due = 0;

	n_fired = 0;
	for (unsigned int i = 0; i < N_MODEL; i++)
		due += model[i] && model[i] <= loop.now_ms;
	if (!due)
		return; /* the loop would wait */
	run_batches((due + TIMERS_A_BATCH - 1) / TIMERS_A_BATCH);
	assert_int_equal(n_fired, due);
	for (unsigned int i = 0; i < due; i++) {
		uint64_t *m = &model[fired[i] - timers];

		assert_true(*m && *m <= loop.now_ms);
		assert_true(i == 0 || fired[i - 1]->due_ms <= fired[i]->due_ms);
		*m = 0;
	}
}

ON_LOOP(test_timer_fuzz)
{
	struct seeded r = { 5 };
	unsigned int runs = 0;

	memset(timers, 0, sizeof(timers));
	memset(model, 0, sizeof(model));
	for (unsigned int op = 0; op < 10000; op++) {
		unsigned int i = (unsigned int)seeded_below(&r, N_MODEL);
		uint64_t spread = seeded_below(&r, 4) ? 50 : 5000; /* many ties, and few */

		if (seeded_below(&r, 100) < 60) {
			/* past or far away: what is due does not hang on the speed of this test */
			model[i] = loop.now_ms - seeded_below(&r, spread) +
				   (seeded_below(&r, 2) ? FAR : 0);
			timers[i].fire = note;
			timer_set(&loop, &timers[i], model[i]);
		} else {
			model[i] = 0;
			timer_cancel(&timers[i]);
		}
		if (op % 16 == 0)
			check_heap();
		if (seeded_below(&r, 100) == 0) {
			run_model();
			check_heap();
			runs++;
		}
	}
	assert_true(runs > 50);
	for (unsigned int i = 0; i < N_MODEL; i++)
		timer_cancel(&timers[i]);
	assert_null(loop.timers);
}

static void rearm(struct timer *t)
{
	n_fired++;
	timer_set(&loop, t, loop.now_ms);
}

/* One that sets itself to now does not keep the loop from its events. */
ON_LOOP(test_timer_rearms)
{
	struct timer t = { .fire = rearm };

	timer_set(&loop, &t, loop.now_ms);
	run_batches(20);
	assert_int_equal(n_fired, 20 * TIMERS_A_BATCH);
}

/* --- after a pause of the machine --- */

#define N_ANSWERS 600 /* several batches */

/* A timer that gives up, and the source whose event makes that needless. */
struct answer {
	struct source source;
	struct timer timer;
};

static struct answer answers[N_ANSWERS];

static void take_answer(struct source *s, uint32_t events)
{
	(void)events;
	timer_cancel(&container_of(s, struct answer, source)->timer);
	loop_watch(&loop, s, 0, false);
}

/* SIGSTOP in a handler, say: all the answers come meanwhile, and all timers are due afterwards. */
static void pause_machine(struct source *s, uint32_t events)
{
	uint64_t end = clock_ms() + 300, one = 1;

	(void)events;
	loop_watch(&loop, s, 0, false);
	for (int i = 0; i < N_ANSWERS; i++)
		assert_int_equal(write(answers[i].source.fd, &one, sizeof(one)), sizeof(one));
	while (clock_ms() < end)
		short_pause();
}

ON_LOOP(test_answers_come_before_timers)
{
	struct source machine = { .fd = eventfd(1, EFD_CLOEXEC), .handle = pause_machine };
	uint64_t due = loop.now_ms + 200;
	struct timer last = { .fire = note };

	assert_int_equal(loop_watch(&loop, &machine, EPOLLIN, true), 0);
	for (int i = 0; i < N_ANSWERS; i++) {
		struct answer *a = &answers[i];

		*a = (struct answer){ .source = { .fd = eventfd(0, EFD_CLOEXEC),
						  .handle = take_answer },
				      .timer = { .fire = note } };
		assert_int_equal(loop_watch(&loop, &a->source, EPOLLIN, true), 0);
		timer_set(&loop, &a->timer, due);
	}
	timer_set(&loop, &last, due); /* nobody answers */
	run_batches(N_ANSWERS / 100);
	for (unsigned int i = 0; i < n_fired; i++)
		assert_ptr_equal(fired[i], &last);
	while (!n_fired)
		run_batches(1);
	for (int i = 0; i < N_ANSWERS; i++)
		close(answers[i].source.fd);
	close(machine.fd);
}

/* --- calls from other threads --- */

/* The loop on a thread of its own. */
struct runner {
	struct loop loop;
	pthread_t thread;
};

static void *run_loop(void *arg)
{
	// NOLINTNEXTLINE(performance-no-int-to-ptr): a thread's result
	return (void *)(intptr_t)loop_run(&((struct runner *)arg)->loop);
}

static void runner_start(struct runner *r)
{
	memset(r, 0, sizeof(*r));
	assert_int_equal(loop_open(&r->loop, NULL, NULL), 0);
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
}

static void count(void *arg)
{
	++*(unsigned int *)arg;
}

struct caller {
	struct loop *loop;
	pthread_t thread;
	int timeout_ms;
	unsigned int returned, ran, wrong;
};

static void *call_often(void *arg)
{
	struct caller *c = arg;

	for (int i = 0; i < 300; i++) {
		unsigned int ran = 0;
		int r = loop_call(c->loop, count, &ran, c->timeout_ms);

		/* 0: it ran, once.  -ETIMEDOUT: it has not and will not, for RAN is gone. */
		c->wrong += !(r == 0 && ran == 1) && !(r == -ETIMEDOUT && ran == 0);
		c->returned += r == 0;
		c->ran += ran;
	}
	return NULL;
}

/*
 * Time-outs that race with the loop: run or not, but never both.  One that came late would count in
 * the next call's RAN, which is at the same place.
 */
TEST(test_calls_on_the_brink)
{
	struct caller c[4];
	static struct runner r;

	runner_start(&r);
	for (int i = 0; i < 4; i++) {
		c[i] = (struct caller){ .loop = &r.loop, .timeout_ms = i % 2 };
		assert_int_equal(pthread_create(&c[i].thread, NULL, call_often, &c[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(c[i].thread, NULL), 0);
		assert_int_equal(c[i].wrong, 0);
		assert_int_equal(c[i].returned, c[i].ran);
	}
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
	while (clock_ms() < c->until)
		short_pause();
	c->ended = true;
}

/* The time-out is for the beginning: what runs uses the caller's stack and is waited for. */
TEST(test_call_that_takes_longer)
{
	struct long_call c = { 0 };
	static struct runner r;
	int result;

	runner_start(&r);
	c.until = clock_ms() + 150;
	result = loop_call(&r.loop, take_long, &c, 100);
	if (c.begun) {
		assert_int_equal(result, 0);
		assert_true(c.ended);
		assert_true(clock_ms() >= c.until);
	} else {
		assert_int_equal(result, -ETIMEDOUT); /* a very busy machine */
	}
	runner_end(&r);
}

UNIT_MAIN(NULL, NULL)
