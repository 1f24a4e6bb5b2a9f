// SPDX-License-Identifier: BSD-2-Clause
/* Many sessions that are to end at once: a few in each call, and only those. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "relay/forward.h"
#include "relay/limits.h"
#include "relay/session.h"

#define MEANT 200
#define OTHERS 10

static struct config config = { .workers = 1, .max_sessions = 1000,
				.defaults.copy_buffer = 4096 };
static struct forward_conf confs[2] = {
	{ .name = "db", .engine = ENGINE_COPY, .max_sessions = 1000 },
	{ .name = "web", .engine = ENGINE_COPY, .max_sessions = 1000 },
};
static struct forward *forwards[2];
static struct shared shared = { .config = &config };
static struct worker worker;

/* An open session of forward number FORWARD, without sockets. */
static void add(unsigned int forward)
{
	struct session *s = calloc(1, sizeof(*s));
	enum cause why;

	if (!s) /* for the analysis, which does not know that cmocka does not return */
		abort();
	*s = (struct session){ .worker = &worker, .forward = forwards[forward], .pair = NO_PAIR,
			       .state = SESSION_OPEN, .sides = { { .fd = -1 }, { .fd = -1 } },
			       .prev = &worker.sessions, .next = worker.sessions };
	s->client.sa.sa_family = AF_INET;
	assert_true(admission_enter(shared.admission, s->forward, &why));
	assert_true(admission_enter_client(shared.admission, s->forward, &s->client.sa, &why));
	if (s->next)
		s->next->prev = &s->next;
	worker.sessions = s;
	worker.n_sessions++;
}

static bool is_of(const void *arg, const struct session *s)
{
	return s->forward == arg;
}

static void test_in_turns(void **state)
{
	unsigned int n, left = MEANT;

	(void)state;
	for (unsigned int i = 0; i < 2; i++)
		assert_int_equal(forward_new(&confs[i], &config, NULL, NULL, &forwards[i]), 0);
	shared.admission = admission_open(&config);
	assert_int_equal(worker_open(&worker, &shared, 0), 0);
	for (unsigned int i = 0; i < MEANT; i++) {
		add(0);
		if (i < OTHERS)
			add(1);
	}
	do {
		n = session_end_some(&worker, is_of, forwards[0], CAUSE_KILLED);
		assert_int_equal(n, left < SESSION_ENDS ? left : SESSION_ENDS);
		left -= n;
		assert_int_equal(worker.n_sessions, left + OTHERS);
		assert_int_equal(admission_sessions(shared.admission), left + OTHERS);
		session_reap(&worker);
	} while (n);
	assert_int_equal(left, 0);
	assert_int_equal(count_get(&worker.stats.errors[CAUSE_KILLED]), MEANT);
	for (const struct session *s = worker.sessions; s; s = s->next)
		assert_ptr_equal(s->forward, forwards[1]);

	while (worker.sessions)
		session_reset(worker.sessions, CAUSE_INTERNAL);
	session_reap(&worker);
	worker_close(&worker);
	for (unsigned int i = 0; i < 2; i++)
		forward_free(forwards[i]);
	admission_close(shared.admission);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
