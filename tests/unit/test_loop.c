/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/loop.h"
#include "loop_rig.h"
#include "seeded.h"

static struct loop *the_loop;
static unsigned int n_fired;

static void note(struct timer *t)
{
	(void)t;
	n_fired++;
}

static void no_event(struct source *s, uint32_t events)
{
	(void)s;
	(void)events;
}

/* --- sources --- */

/* What epoll has been told of FD: 0 and false if it is not watched. */
static bool watched(const struct loop *l, int fd, uint32_t *ret_events)
{
	char path[64], line[256];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", l->epoll);
	f = fopen(path, "re");
	assert_non_null(f);
	*ret_events = 0;
	while (fgets(line, sizeof(line), f)) {
		unsigned int events;
		int tfd;

		if (sscanf(line, "tfd: %d events: %x", &tfd, &events) == 2 && tfd == fd) {
			*ret_events = events;
			found = true;
		}
	}
	fclose(f);
	return found;
}

static void expect_watched(const struct loop *l, const struct source *s, bool want, uint32_t events)
{
	uint32_t got;

	assert_int_equal(watched(l, s->fd, &got), want);
	assert_int_equal(s->registered, want);
	if (!want)
		return;
	assert_int_equal(got & ~(uint32_t)(EPOLLERR | EPOLLHUP), events);
	assert_int_equal(s->events, events);
}

static void test_watch(void **state)
{
	struct rig *rig = *state;
	struct loop *l = &rig->loop;
	struct source s = { .fd = eventfd(0, EFD_CLOEXEC), .handle = no_event };

	expect_watched(l, &s, false, 0);
	assert_int_equal(loop_watch(l, &s, EPOLLIN, false), 0);
	expect_watched(l, &s, false, 0);
	assert_int_equal(loop_watch(l, &s, EPOLLIN, true), 0);
	expect_watched(l, &s, true, EPOLLIN);
	assert_int_equal(loop_watch(l, &s, EPOLLIN | EPOLLOUT, true), 0);
	expect_watched(l, &s, true, EPOLLIN | EPOLLOUT);
	assert_int_equal(loop_watch(l, &s, 0, true), 0); /* errors only */
	expect_watched(l, &s, true, 0);
	assert_int_equal(loop_watch(l, &s, 0, false), 0);
	expect_watched(l, &s, false, 0);
	/* the flags of the last time do not count once it is out */
	assert_int_equal(loop_watch(l, &s, EPOLLRDHUP | EPOLLET, true), 0);
	expect_watched(l, &s, true, EPOLLRDHUP | EPOLLET);
	assert_int_equal(loop_watch(l, &s, EPOLLRDHUP | EPOLLET, false), 0);
	assert_int_equal(loop_watch(l, &s, EPOLLRDHUP | EPOLLET, true), 0);
	expect_watched(l, &s, true, EPOLLRDHUP | EPOLLET);
	loop_watch(l, &s, 0, false);
	close(s.fd);
}

/* No system call if nothing changes: a wrong descriptor goes unnoticed.  Otherwise it is told. */
static void test_watch_without_change(void **state)
{
	struct rig *rig = *state;
	struct loop *l = &rig->loop;
	struct source s = { .fd = eventfd(0, EFD_CLOEXEC), .handle = no_event };
	int fd = s.fd;

	s.fd = -1;
	assert_int_equal(loop_watch(l, &s, EPOLLIN, false), 0);
	assert_int_equal(loop_watch(l, &s, EPOLLIN, true), -EBADF);
	assert_false(s.registered);
	s.fd = fd;
	assert_int_equal(loop_watch(l, &s, EPOLLIN, true), 0);
	s.fd = -1;
	assert_int_equal(loop_watch(l, &s, EPOLLIN, true), 0);
	assert_int_equal(loop_watch(l, &s, EPOLLOUT, true), -EBADF);
	s.fd = fd;
	expect_watched(l, &s, true, EPOLLIN);
	s.fd = -1;
	assert_int_equal(loop_watch(l, &s, EPOLLIN, false), -EBADF);
	s.fd = fd;
	expect_watched(l, &s, true, EPOLLIN);
	loop_watch(l, &s, 0, false);
	close(s.fd);
}

static struct source pair[2];
static unsigned int pair_events;

static void unwatch_other(struct source *s, uint32_t events)
{
	struct source *other = s == &pair[0] ? &pair[1] : &pair[0];

	assert_true(events & EPOLLIN);
	pair_events++;
	loop_watch(the_loop, other, 0, false);
}

/* An event that is already in the batch does not reach a source that is not watched any more. */
static void test_unwatched_within_batch(void **state)
{
	struct rig *rig = *state;

	the_loop = &rig->loop;
	pair_events = 0;
	for (int i = 0; i < 2; i++) {
		pair[i] = (struct source){ .fd = eventfd(1, EFD_CLOEXEC), .handle = unwatch_other };
		assert_int_equal(loop_watch(&rig->loop, &pair[i], EPOLLIN, true), 0);
	}
	run_batches(rig, 1);
	assert_int_equal(pair_events, 1);
	for (int i = 0; i < 2; i++)
		close(pair[i].fd);
}

static void replace_other(struct source *s, uint32_t events)
{
	struct source *other = s == &pair[0] ? &pair[1] : &pair[0];

	assert_true(events & EPOLLIN);
	pair_events++;
	if (pair_events > 1)
		return;
	close(other->fd);
	other->registered = false;
	other->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_int_equal(loop_watch(the_loop, other, EPOLLIN, true), 0);
}

/* Nor one that has another descriptor by now; what happens to that comes with the next batch. */
static void test_replaced_within_batch(void **state)
{
	struct rig *rig = *state;
	uint64_t one = 1, taken;

	the_loop = &rig->loop;
	pair_events = 0;
	for (int i = 0; i < 2; i++) {
		pair[i] = (struct source){ .fd = eventfd(1, EFD_CLOEXEC), .handle = replace_other };
		assert_int_equal(loop_watch(&rig->loop, &pair[i], EPOLLIN, true), 0);
	}
	run_batches(rig, 1);
	assert_int_equal(pair_events, 1);
	for (int i = 0; i < 2; i++) /* the one that was handled has its event still */
		if (read(pair[i].fd, &taken, sizeof(taken)) != sizeof(taken))
			assert_int_equal(write(pair[i].fd, &one, sizeof(one)), sizeof(one));
	run_batches(rig, 1);
	assert_int_equal(pair_events, 2);
	for (int i = 0; i < 2; i++)
		close(pair[i].fd);
}

/* --- the loop itself --- */

static void test_now(void **state)
{
	struct rig *rig = *state;
	struct timer t = { .fire = note };
	uint64_t before = clock_now_ms();

	timer_set(&rig->loop, &t, 1);
	run_batches(rig, 1);
	assert_true(rig->loop.now_ms >= before && rig->loop.now_ms <= clock_now_ms());
}

static void test_error(void **state)
{
	struct rig *rig = *state;

	close(rig->loop.epoll);
	assert_int_equal(loop_run(&rig->loop), -EBADF);
	rig->loop.epoll = -1;
}

static volatile sig_atomic_t signals;

static void on_alarm(int sig)
{
	(void)sig;
	signals++;
}

static void test_signals(void **state)
{
	struct sigaction sa = { .sa_handler = on_alarm }, old;
	struct itimerval each_ms = { { 0, 1000 }, { 0, 1000 } }, off = { { 0, 0 }, { 0, 0 } };
	struct rig *rig = *state;
	struct timer t = { .fire = note };

	n_fired = 0;
	assert_int_equal(sigaction(SIGALRM, &sa, &old), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &each_ms, NULL), 0);
	timer_set(&rig->loop, &t, clock_now_ms() + 30);
	while (!n_fired)
		run_batches(rig, 1);
	setitimer(ITIMER_REAL, &off, NULL);
	sigaction(SIGALRM, &old, NULL);
	assert_true(signals > 0);
}

/* Out of descriptors at any point: an error, and nothing is left behind. */
static void test_open_fails(void **state)
{
	unsigned int before = count_descriptors(), failures = 0;
	struct rlimit old, tight;
	int r = -EMFILE;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	tight = old;
	for (tight.rlim_cur = 1; r == -EMFILE; tight.rlim_cur++) {
		struct loop l;

		assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
		r = loop_open(&l, NULL, NULL);
		loop_close(&l);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
		failures += r != 0;
		assert_int_equal(count_descriptors(), before);
	}
	assert_int_equal(r, 0);
	assert_true(failures >= 2);
}

static void stop_loop(struct timer *t)
{
	note(t);
	the_loop->stop = true;
}

/* The batch in which stop is set is completed, after_batch() included; then nothing more runs. */
static void test_stop(void **state)
{
	struct rig *rig = *state;
	struct timer first = { .fire = stop_loop }, second = { .fire = note };

	n_fired = 0;
	the_loop = &rig->loop;
	rig->stop_after = 1000;
	timer_set(&rig->loop, &first, 1);
	timer_set(&rig->loop, &second, 2);
	assert_int_equal(loop_run(&rig->loop), 0);
	assert_int_equal(n_fired, 2);
	assert_int_equal(rig->batches, 1);
	assert_int_equal(loop_run(&rig->loop), 0); /* stopped it stays */
	assert_int_equal(rig->batches, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_LOOP(test_watch),
		ON_LOOP(test_watch_without_change),
		ON_LOOP(test_unwatched_within_batch),
		ON_LOOP(test_replaced_within_batch),
		ON_LOOP(test_now),
		ON_LOOP(test_error),
		ON_LOOP(test_signals),
		cmocka_unit_test(test_open_fails),
		ON_LOOP(test_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
