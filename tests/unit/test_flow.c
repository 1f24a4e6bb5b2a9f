/* SPDX-License-Identifier: BSD-2-Clause */
/* A flow: which steps between phases may be, what it waits for, and how its books add up. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "datapath/flow.h"
#include "seeded.h"

/* --- phases --- */

struct step {
	enum flow_phase from, to;
};

static void take(struct step step)
{
	struct flow f = { .phase = (uint8_t)step.from };

	flow_set_phase(&f, step.to);
}

/* True if the step ends its process by abort(3). */
static bool aborts(struct step step)
{
	struct rlimit no_core = { 0, 0 };
	int status;
	pid_t pid = fork();

	if (!pid) {
		setrlimit(RLIMIT_CORE, &no_core);
		signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		take(step);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* Each of these would lose bytes, or bring them out of order. */
TEST(test_forbidden_steps)
{
	static const struct step steps[] = {
		{ FLOW_KERNEL, FLOW_USER },    { FLOW_KERNEL, FLOW_DRAINING },
		{ FLOW_KERNEL, FLOW_DONE },    { FLOW_LEAVING, FLOW_USER },
		{ FLOW_LEAVING, FLOW_DONE },   { FLOW_LEAVING, FLOW_KERNEL },
		{ FLOW_DRAINING, FLOW_DONE },  { FLOW_DRAINING, FLOW_KERNEL },
		{ FLOW_FINISHING, FLOW_USER }, { FLOW_DONE, FLOW_USER },
		{ FLOW_USER, FLOW_USER },      { FLOW_USER, FLOW_PHASES },
	};

#ifdef NDEBUG
	print_message("skipped: built with NDEBUG, nothing asserts\n");
	skip();
#endif
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		if (!aborts(steps[i]))
			fail_msg("%s -> %s is let through", flow_phase_names[steps[i].from],
				 flow_phase_names[steps[i].to]);
}

/* --- what a flow waits for --- */

/* Until it is done a flow waits for something, and never for what would make it spin. */
TEST(test_wants_something)
{
	struct flow f = { 0 };

	for (unsigned int i = 0; i < FLOW_DONE * 8; i++) {
		unsigned int wants;

		f.phase = (uint8_t)(i / 8);
		f.pending = i & 1;
		f.starved = i & 2;
		f.blocked = i & 4;
		wants = flow_wants(&f);
		assert_int_not_equal(wants, 0);
		/* only user space reads, and what is pending goes first: one place to keep it */
		assert_int_equal((wants & FLOW_WANT_READ) != 0,
				 f.phase == FLOW_USER && !f.pending && !f.starved);
		/* what redirects may see FIN at any time; what is out of rx reads it as EOF */
		assert_int_equal((wants & FLOW_WANT_FIN) != 0,
				 f.phase == FLOW_KERNEL || f.phase == FLOW_LEAVING);
		/* a starved flow on a writable socket would spin */
		assert_false(f.starved && wants & FLOW_WANT_WRITE);
		/* in the kernel there is nothing to look at */
		assert_true(f.phase != FLOW_KERNEL || wants == FLOW_WANT_FIN);
		/* a flow that settles either looks again or waits for room */
		if (f.phase > FLOW_KERNEL)
			assert_int_equal((wants & FLOW_WANT_WRITE) != 0, f.blocked && !f.starved);
	}
}

/* A target that has been full for long is waited for, and not looked at for ever. */
TEST(test_await_target)
{
	struct flow f = { .phase = FLOW_DRAINING };
	uint64_t now = 1000;
	unsigned int looks = 0;

	for (int stall = 0; stall < 2; stall++) {
		for (looks = 0; flow_wants(&f) == FLOW_WANT_TIMER && looks < 100; looks++) {
			if (f.due_ms)
				now = f.due_ms;
			flow_await_target(&f, now);
		}
		assert_in_range(looks, 8, 10);
		assert_int_equal(flow_wants(&f), FLOW_WANT_WRITE);
		flow_await_target(&f, now); /* it has room, and the backlog goes there first */
		assert_int_equal(flow_wants(&f), FLOW_WANT_TIMER);
		assert_int_equal(f.due_ms, now + 1);
	}
}

/* --- the books of a flow: what has drained, and what is lost --- */

/* Differences that arithmetic in too few bits, or with a sign, would miss. */
static void check_differences(const struct flow *f, const struct flow_books *right)
{
	static const uint64_t diffs[] = {
		1, 255, 65536, UINT32_MAX, UINT64_C(1) << 32, UINT64_C(1) << 62
	};

	for (size_t i = 0; i < sizeof(diffs) / sizeof(diffs[0]); i++) {
		struct flow_books more = *right, less = *right;

		more.received += diffs[i];
		more.accepted = right->redirected + f->user_out + diffs[i];
		assert_false(flow_accounted(f, &more));
		assert_false(flow_drained(f, &more));
		if (right->received < diffs[i])
			continue;
		less.received -= diffs[i];
		less.accepted = right->redirected + f->user_out - diffs[i];
		assert_false(flow_accounted(f, &less));
		assert_false(flow_drained(f, &less));
	}
}

/* Follow bytes from place to place: the books tell what happened, whatever the order. */
TEST(test_books_of_a_life)
{
	struct seeded r = { 2 };

	for (int life = 0; life < 200; life++) {
		struct flow f = { 0 };
		struct flow_books b = { 0 };
		uint64_t backlog = 0;

		for (int i = 0; i < 50; i++) {
			uint64_t n = seeded_size(&r, 40);

			switch (seeded_below(&r, 5)) {
			case 0: /* TCP receives, the program redirects */
				b.received += n;
				b.redirected += n;
				backlog += n;
				break;
			case 1: /* TCP receives */
				b.received += n;
				b.unread += n;
				break;
			case 2: /* user space reads */
				n = n > b.unread ? b.unread : n;
				b.unread -= n;
				f.user_in += n;
				break;
			case 3: /* the kernel's worker writes */
				n = n > backlog ? backlog : n;
				backlog -= n;
				b.accepted += n;
				break;
			default: /* user space writes */
				n = n > f.user_in - f.user_out ? f.user_in - f.user_out : n;
				f.user_out += n;
				b.accepted += n;
			}
			assert_true(flow_accounted(&f, &b));
			assert_int_equal(flow_drained(&f, &b), backlog == 0);
			check_differences(&f, &b);
		}
	}
}

UNIT_MAIN(NULL, NULL)
