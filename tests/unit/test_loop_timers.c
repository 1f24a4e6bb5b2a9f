/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
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

static struct loop *the_loop;

#define LOG_SIZE 4096

static struct timer *fired[LOG_SIZE];
static unsigned int n_fired;

static void note(struct timer *t)
{
	assert_int_equal(t->at, 0); /* it may set itself again */
	fired[n_fired++ % LOG_SIZE] = t;
}

static void test_timer_order(void **state)
{
	static const int due[] = { 5, 3, 9, 1, 7, 3, 8, 2, 6, 4, 3 };
	enum { N = sizeof(due) / sizeof(due[0]) };
	struct rig *rig = *state;
	struct timer t[N] = { 0 };

	n_fired = 0;
	for (int i = 0; i < N; i++) {
		t[i].fire = note;
		timer_set(&rig->loop, &t[i], rig->loop.now_ms - 100 + (uint64_t)due[i]);
	}
	run_batches(rig, 1);
	assert_int_equal(n_fired, N);
	for (int i = 1; i < N; i++)
		assert_true(fired[i - 1]->due_ms <= fired[i]->due_ms);
	assert_int_equal(rig->loop.n_timers, 0);
}

static void test_timer_is_not_early(void **state)
{
	struct rig *rig = *state;
	struct timer t = { .fire = note };
	uint64_t due = clock_now_ms() + 30;

	n_fired = 0;
	timer_set(&rig->loop, &t, due);
	while (!n_fired) {
		run_batches(rig, 1);
		assert_int_equal(n_fired, rig->loop.now_ms >= due);
	}
	assert_true(clock_now_ms() >= due);
}

static void test_timer_move_and_cancel(void **state)
{
	struct rig *rig = *state;
	struct timer a = { .fire = note }, b = { .fire = note }, c = { .fire = note };
	uint64_t now = rig->loop.now_ms;

	n_fired = 0;
	timer_cancel(&rig->loop, &a); /* not set: nothing happens */
	timer_set(&rig->loop, &a, now - 3);
	timer_set(&rig->loop, &b, now - 2);
	timer_set(&rig->loop, &c, now - 1);
	timer_set(&rig->loop, &a, now + FAR); /* later */
	timer_set(&rig->loop, &c, now - 9);   /* earlier */
	timer_set(&rig->loop, &c, now - 9);   /* the same again: set once */
	run_batches(rig, 1);
	assert_int_equal(n_fired, 2);
	assert_ptr_equal(fired[0], &c);
	assert_ptr_equal(fired[1], &b);
	assert_int_equal(rig->loop.n_timers, 1);
	timer_cancel(&rig->loop, &a);
	timer_cancel(&rig->loop, &a);
	assert_int_equal(rig->loop.n_timers, 0);
}

static struct timer *victim;

static void cancel_victim(struct timer *t)
{
	note(t);
	timer_cancel(the_loop, victim);
}

static void set_victim_now(struct timer *t)
{
	note(t);
	timer_set(the_loop, victim, the_loop->now_ms);
}

/* A handler ends a session whose own timer is due in the same batch. */
static void test_timer_cancelled_by_another(void **state)
{
	struct rig *rig = *state;
	struct timer killer = { .fire = cancel_victim }, other = { .fire = note };

	n_fired = 0;
	the_loop = &rig->loop;
	victim = &other;
	timer_set(&rig->loop, &other, rig->loop.now_ms - 1);
	timer_set(&rig->loop, &killer, rig->loop.now_ms - 2);
	run_batches(rig, 1);
	assert_int_equal(n_fired, 1);
	assert_int_equal(rig->loop.n_timers, 0);
}

static void test_timer_set_by_another(void **state)
{
	struct rig *rig = *state;
	struct timer first = { .fire = set_victim_now }, second = { .fire = note };

	n_fired = 0;
	the_loop = &rig->loop;
	victim = &second;
	timer_set(&rig->loop, &first, rig->loop.now_ms - 1);
	run_batches(rig, 2); /* in this batch or the next, as it comes */
	assert_int_equal(n_fired, 2);
	assert_ptr_equal(fired[1], &second);
}

/* --- timers against a model: the due time of each, 0 if it is not set --- */

#define N_MODEL 300

static struct timer timers[N_MODEL];
static uint64_t model[N_MODEL];

static void check_heap(const struct loop *l)
{
	unsigned int set = 0;

	for (unsigned int i = 0; i < N_MODEL; i++) {
		set += model[i] != 0;
		if (!model[i]) {
			assert_int_equal(timers[i].at, 0);
			continue;
		}
		assert_int_equal(timers[i].due_ms, model[i]);
		assert_true(timers[i].at >= 1 && timers[i].at <= l->n_timers);
		assert_ptr_equal(l->heap[timers[i].at - 1], &timers[i]);
	}
	assert_int_equal(l->n_timers, set);
	for (unsigned int i = 1; i < l->n_timers; i++)
		assert_true(l->heap[(i - 1) / 2]->due_ms <= l->heap[i]->due_ms);
}

/* Everything that is due fires, once, in order; nothing else does. */
static void run_model(struct rig *rig)
{
	unsigned int due = 0;

	n_fired = 0;
	for (unsigned int i = 0; i < N_MODEL; i++)
		due += model[i] && model[i] <= rig->loop.now_ms;
	if (!due)
		return; /* the loop would wait */
	run_batches(rig, 1);
	assert_int_equal(n_fired, due);
	for (unsigned int i = 0; i < due; i++) {
		uint64_t *m = &model[fired[i] - timers];

		assert_true(*m && *m <= rig->loop.now_ms);
		assert_true(i == 0 || fired[i - 1]->due_ms <= fired[i]->due_ms);
		*m = 0;
	}
}

static void test_timer_fuzz(void **state)
{
	struct seeded r = { 5 };
	struct rig *rig = *state;
	unsigned int runs = 0;

	memset(timers, 0, sizeof(timers));
	memset(model, 0, sizeof(model));
	assert_int_equal(loop_reserve_timers(&rig->loop, N_MODEL), 0);
	for (unsigned int op = 0; op < 10000; op++) {
		unsigned int i = (unsigned int)seeded_below(&r, N_MODEL);
		uint64_t spread = seeded_below(&r, 4) ? 50 : 5000; /* many ties, and few */

		if (seeded_below(&r, 100) < 60) {
			/* past or far away: what is due does not hang on the speed of this test */
			model[i] = rig->loop.now_ms - seeded_below(&r, spread) +
				   (seeded_below(&r, 2) ? FAR : 0);
			timers[i].fire = note;
			timer_set(&rig->loop, &timers[i], model[i]);
		} else {
			model[i] = 0;
			timer_cancel(&rig->loop, &timers[i]);
		}
		if (op % 16 == 0)
			check_heap(&rig->loop);
		if (seeded_below(&r, 100) == 0) {
			run_model(rig);
			check_heap(&rig->loop);
			runs++;
		}
	}
	assert_true(runs > 50);
	for (unsigned int i = 0; i < N_MODEL; i++)
		timer_cancel(&rig->loop, &timers[i]);
	assert_int_equal(rig->loop.n_timers, 0);
}

static void test_reserve_keeps_timers(void **state)
{
	struct rig *rig = *state;
	struct timer t[16] = { 0 };

	n_fired = 0;
	for (unsigned int i = 0; i < 16; i++) {
		t[i].fire = note;
		timer_set(&rig->loop, &t[i], rig->loop.now_ms - i);
	}
	for (uint32_t n = 1; n < 100000; n *= 3)
		assert_int_equal(loop_reserve_timers(&rig->loop, n), 0);
	assert_true(rig->loop.heap_size >= 59049);
	run_batches(rig, 1);
	assert_int_equal(n_fired, 16);
}

/* --- a timer that sets itself to now --- */

static unsigned int fires_since_event, worst, n_events;

static void rearm(struct timer *t)
{
	timer_set(the_loop, t, the_loop->now_ms);
	if (++fires_since_event > worst)
		worst = fires_since_event;
}

static void on_event(struct source *s, uint32_t events)
{
	(void)s;
	(void)events;
	n_events++;
	fires_since_event = 0;
}

/* The most often that the timer fires between two looks at a descriptor that is always ready. */
static unsigned int starvation(struct rig *rig, struct timer *idle, unsigned int n_idle)
{
	struct source s = { .fd = eventfd(1, EFD_CLOEXEC), .handle = on_event };
	struct timer t = { .fire = rearm };

	the_loop = &rig->loop;
	fires_since_event = worst = n_events = 0;
	assert_int_equal(loop_reserve_timers(&rig->loop, n_idle + 1), 0);
	assert_int_equal(loop_watch(&rig->loop, &s, EPOLLIN, true), 0);
	for (unsigned int i = 0; i < n_idle; i++)
		timer_set(&rig->loop, &idle[i], rig->loop.now_ms + FAR);
	timer_set(&rig->loop, &t, rig->loop.now_ms);
	run_batches(rig, 20);
	assert_int_equal(n_events, 20);
	assert_true(worst > 0);
	assert_int_equal(rig->loop.n_timers, n_idle + 1);
	timer_cancel(&rig->loop, &t);
	for (unsigned int i = 0; i < n_idle; i++)
		timer_cancel(&rig->loop, &idle[i]);
	loop_watch(&rig->loop, &s, 0, false);
	close(s.fd);
	return worst;
}

static void test_rearm_alone(void **state)
{
	assert_int_equal(starvation(*state, NULL, 0), 1);
}

/* "comes again after the next batch of events, not at once": however many other timers there are */
static void test_rearm_beside_idle_timers(void **state)
{
	memset(timers, 0, sizeof(timers));
	assert_int_equal(starvation(*state, timers, N_MODEL), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_LOOP(test_timer_order),
		ON_LOOP(test_timer_is_not_early),
		ON_LOOP(test_timer_move_and_cancel),
		ON_LOOP(test_timer_cancelled_by_another),
		ON_LOOP(test_timer_set_by_another),
		ON_LOOP(test_timer_fuzz),
		ON_LOOP(test_reserve_keeps_timers),
		ON_LOOP(test_rearm_alone),
		ON_LOOP(test_rearm_beside_idle_timers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
