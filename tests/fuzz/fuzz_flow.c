// SPDX-License-Identifier: BSD-2-Clause
/*
 * The pure state machine of a session (user/flow.c, user/policy.c), driven by random events against
 * an oracle: flow_model.c and policy_model.c, which know the rules but share no code.
 *
 * An input is a session: a byte for the engine (and a bit of it for a kernel without splice), two
 * for --settle, then events, each a byte and its arguments.  What the session does with the answers
 * is what session_flow.c does.  After every event all that can be asked is asked, and compared with
 * what the model says.
 */
#include <assert.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "culvert.h"
#include "flow_model.h"
#include "fuzz.h"
#include "policy.h"
#include "policy_model.h"

/* Few enough that no sum of them overflows. */
#define BYTES_MAX ((UINT64_C(1) << 40) - 1)
#define READS_MAX 65535

struct world {
	struct policy policy;
	struct flow flows[2];
	struct habit habit;
	struct load load;
	uint64_t now_ms, watched_ms, events, wakeups;

	struct model_rules rules;
	struct model_flow model[2];
	struct model_habit *model_habit;
	struct model_load model_load;
};

/* --- what must hold --- */

static bool same(struct decision a, struct decision b)
{
	return a.carrier == b.carrier && a.reason == b.reason;
}

static void check_flow(const struct flow *f, const struct model_flow *m)
{
	struct flow before;
	struct flow_books books = model_books(m);

	memcpy(&before, f, sizeof(before));
	must(f->phase == m->phase, "%s, not %s", flow_phase_name(f->phase),
	     flow_phase_name(m->phase));
	must(flow_wants(f) == model_wants(m), "%s waits for %x, not %x", flow_phase_name(m->phase),
	     flow_wants(f), model_wants(m));
	must(flow_carrier(f) == model_carrier(m), "%s: %s", flow_phase_name(m->phase),
	     carrier_name(flow_carrier(f)));
	must(f->due_ms == m->due_ms && f->stuck == m->stuck, "looks at %llu, not %llu",
	     (unsigned long long)f->due_ms, (unsigned long long)m->due_ms);
	must(f->blocked == m->blocked && f->starved == m->starved, "blocked %d", f->blocked);
	must(flow_drained(f, &books) == model_drained(m), "drained: %d", model_drained(m));
	must(flow_audit_left(f, &books) == model_audit_left(m), "audit: %d", model_audit_left(m));
	must(flow_audit_fin(f, &books) == model_audit_fin(m), "at FIN: %d", model_audit_fin(m));
	/* padding included: nobody writes to it */
	// NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
	must(!memcmp(&before, f, sizeof(before)), "a question has changed the flow");
}

static void check_habit(const struct world *w)
{
	const struct habit *h = &w->habit;
	struct model_sums s = model_sums(w->model_habit);

	for (unsigned int dir = 0; dir < 2; dir++)
		must(h->bytes[dir] == s.bytes[dir] && h->reads[dir] == s.reads[dir], "flow %u",
		     dir);
	must(h->turns == s.turns, "%u turns, not %llu", h->turns, (unsigned long long)s.turns);
	must(h->run == s.run && h->run_reads == s.run_reads, "a run of %llu, not %llu",
	     (unsigned long long)h->run, (unsigned long long)s.run);
	must(s.last == 2 || h->last_dir == s.last, "flow %u spoke last", s.last);
	must(1U << h->demotions == model_factor(w->model_habit), "%u demotions", h->demotions);
	must(habit_full(&w->policy, h) == model_full(w->model_habit), "full: %d",
	     model_full(w->model_habit));
}

static struct decision decide(const struct world *w, unsigned int dir, struct setting around)
{
	const struct flow *f = &w->flows[dir];
	struct decision own = { w->model[dir].user_carrier, w->model[dir].reason };
	struct decision due = model_user(&w->rules, w->model_habit, dir, own, around);
	struct habit habit_before;
	struct flow flow_before;
	struct decision is;

	memcpy(&habit_before, &w->habit, sizeof(habit_before));
	memcpy(&flow_before, f, sizeof(flow_before));
	is = policy_user(&w->policy, &w->habit, dir, f, around);
	must(same(is, due), "%s (%s), not %s (%s)", carrier_name(is.carrier),
	     reason_name(is.reason), carrier_name(due.carrier), reason_name(due.reason));
	/* padding as well: both are copies of the same bytes */
	/* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
	must(!memcmp(&habit_before, &w->habit, sizeof(habit_before)) &&
	     !memcmp(&flow_before, f, sizeof(flow_before)), "a decision has changed something");
	must(is.carrier != CARRIER_SOCKMAP || around.kernel_ok, "into a kernel that is not there");
	return is;
}

static void check_all(const struct world *w)
{
	static const struct setting settings[] = {
		{ true, false, UINT32_MAX, false }, { true, true, UINT32_MAX, false },
		{ false, false, 0, false }, { true, false, UINT32_MAX, true },
	};
	bool busy = model_busy(&w->model_load, w->rules.settle_ms, w->now_ms);

	for (unsigned int dir = 0; dir < 2; dir++) {
		check_flow(&w->flows[dir], &w->model[dir]);
		for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
			decide(w, dir, settings[i]);
	}
	check_habit(w);
	must(load_busy(&w->policy, &w->load, w->now_ms) == busy, "busy: %d", busy);
}

/* --- events: bytes --- */

static void event_receive(struct world *w, unsigned int dir, struct input *in)
{
	struct model_flow *m = &w->model[dir];
	bool in_rx = m->phase == FLOW_KERNEL || m->phase == FLOW_LEAVING ||
		     m->phase == FLOW_FINISHING;
	bool redirect = input_byte(in) % 2 && in_rx;

	model_receive(m, input_size(in) & BYTES_MAX, redirect);
}

static void note_read(struct world *w, unsigned int dir, uint64_t bytes, uint32_t reads)
{
	struct model_habit *h = w->model_habit;

	if (h->n == MODEL_WORDS_MAX)
		return;
	habit_read(&w->habit, dir, bytes, reads);
	if (reads)
		model_add(h, (struct model_word){ (uint8_t)dir, reads, bytes });
}

/* Passed bytes, which user space reads while the flow is in rx, are no part of the habit. */
static void event_read(struct world *w, unsigned int dir, struct input *in)
{
	uint64_t n = model_read(&w->model[dir], input_size(in) & UINT32_MAX);
	uint32_t reads = (uint32_t)input_size(in) & READS_MAX;

	if (w->model[dir].pending > UINT32_MAX)
		model_write(&w->model[dir], w->model[dir].pending - n);
	if (reads > n)
		reads = (uint32_t)n;
	if (n && !reads)
		reads = 1;
	if (w->model[dir].phase == FLOW_USER)
		note_read(w, dir, n, reads);
	w->flows[dir].user_in = w->model[dir].read;
}

/* The two take turns, N times. */
static void event_talk(struct world *w, unsigned int dir, struct input *in)
{
	unsigned int n = (input_byte(in) + 1U) * (input_byte(in) % 16 + 1U);
	uint64_t bytes = (input_size(in) & UINT32_MAX) + 1;
	bool turns = input_byte(in) % 2;

	for (unsigned int i = 0; i < n; i++)
		note_read(w, turns ? (dir + i) % 2 : dir, bytes, 1);
}

static void event_write(struct world *w, unsigned int dir, struct input *in)
{
	model_write(&w->model[dir], input_size(in));
}

static void event_drain(struct world *w, unsigned int dir, struct input *in)
{
	model_drain(&w->model[dir], input_size(in));
}

static void event_misfortune(struct world *w, unsigned int dir, struct input *in)
{
	static void (*const kinds[])(struct model_flow *, uint64_t) = {
		model_vanish, model_double, model_spill,
	};

	kinds[input_byte(in) % 3](&w->model[dir], input_size(in) & BYTES_MAX);
}

/* --- events: phases and looks --- */

static jmp_buf refused;
static bool may_refuse;

/* Takes the place of the C library's. */
_Noreturn void __assert_fail(const char *assertion, const char *file, unsigned int line,
			     const char *function)
{
	if (may_refuse)
		longjmp(refused, 1);
	fuzz_fail(file, (int)line, assertion, "asserted by %s()", function);
}

static void set_phase(struct world *w, unsigned int dir, enum flow_phase to)
{
	flow_set_phase(&w->flows[dir], to);
	model_phase(&w->model[dir], to);
}

static void event_phase(struct world *w, unsigned int dir, struct input *in)
{
	unsigned int from = w->model[dir].phase, to = input_byte(in) % (FLOW_PHASES + 2);
	struct flow copy = w->flows[dir];

	must(flow_may(from, to) == model_may(from, to), "%s to %s", flow_phase_name(from),
	     flow_phase_name(to));
	if (model_may(from, to)) {
		set_phase(w, dir, to);
		return;
	}
	may_refuse = true;
	if (!setjmp(refused)) {
		flow_set_phase(&copy, to);
		fuzz_fail(__FILE__, __LINE__, "refused", "%s to %s", flow_phase_name(from),
			  flow_phase_name(to));
	}
	may_refuse = false;
}

static void event_flags(struct world *w, unsigned int dir, struct input *in)
{
	struct flow *f = &w->flows[dir];
	struct model_flow *m = &w->model[dir];
	uint8_t bits = input_byte(in);

	f->starved = m->starved = bits & 1;
	f->blocked = m->blocked = bits & 2;
	f->eof = m->eof = bits & 4;
	if (bits & 8)
		f->stuck = (uint16_t)++m->stuck;
}

static void event_look(struct world *w, unsigned int dir, struct input *in)
{
	struct flow *f = &w->flows[dir];
	struct model_flow *m = &w->model[dir];

	switch (input_byte(in) % 4) {
	case 0:
		flow_look_soon(f, w->now_ms);
		model_look_soon(m, w->now_ms);
		break;
	case 1:
		flow_look_reset(f);
		model_phase(m, m->phase);
		break;
	default:
		flow_look_later(f, w->now_ms);
		model_look_later(m, w->now_ms);
	}
}

/* --- events: decisions --- */

static void restart_habit(struct world *w)
{
	habit_restart(&w->habit);
	model_restart(w->model_habit);
}

static void carry(struct world *w, unsigned int dir, struct decision d)
{
	w->flows[dir].user_carrier = (uint8_t)d.carrier;
	w->model[dir].user_carrier = d.carrier;
	w->flows[dir].reason = (uint8_t)d.reason;
	w->model[dir].reason = d.reason;
}

static void enter(struct world *w, unsigned int dir, enum reason reason)
{
	if (w->model[dir].phase != FLOW_USER || w->model[dir].pending || w->model[dir].starved)
		return;
	w->flows[dir].reason = (uint8_t)reason;
	w->model[dir].reason = reason;
	set_phase(w, dir, FLOW_KERNEL);
}

static void event_judge(struct world *w, unsigned int dir, struct input *in)
{
	uint8_t bits = input_byte(in);
	struct setting around = {
		.kernel_ok = !(bits & 1),
		.busy = load_busy(&w->policy, &w->load, w->now_ms) != !!(bits & 2),
		.watch_ms = w->now_ms - w->watched_ms,
		.limited = bits & 4,
	};
	struct decision d = decide(w, dir, around);

	if (w->model[dir].phase != FLOW_USER)
		return;
	if (d.carrier == CARRIER_SOCKMAP) {
		enter(w, dir, d.reason);
		if (d.reason != REASON_SMALL_READS)
			enter(w, !dir, d.reason);
	} else if (d.carrier != w->model[dir].user_carrier && !w->model[dir].pending) {
		carry(w, dir, d);
		restart_habit(w);
	} else if (model_full(w->model_habit)) {
		restart_habit(w);
	}
}

/* The program wants the flow out of the kernel. */
static void event_program(struct world *w, unsigned int dir, struct input *in)
{
	unsigned int kind = input_byte(in) % (CULVERT_EVENT_LOST + 2);
	struct decision d = policy_kernel(&w->policy, kind);

	must(same(d, model_kernel(&w->rules, kind)), "event %u: %s (%s)", kind,
	     carrier_name(d.carrier), reason_name(d.reason));
	if (w->model[dir].phase != FLOW_KERNEL)
		return;
	habit_demoted(&w->policy, &w->habit);
	w->model_habit->returns++;
	model_restart(w->model_habit);
	carry(w, dir, d);
	set_phase(w, dir, FLOW_LEAVING);
}

static void event_review(struct world *w, unsigned int dir, struct input *in)
{
	struct decision d = policy_review();

	(void)in;
	must(same(d, (struct decision){ CARRIER_COPY, REASON_REVIEW }), "%s (%s)",
	     carrier_name(d.carrier), reason_name(d.reason));
	if (w->model[dir].phase != FLOW_KERNEL)
		return;
	restart_habit(w);
	w->watched_ms = w->now_ms;
	carry(w, dir, d);
	set_phase(w, dir, FLOW_LEAVING);
}

/* --- events: time and load --- */

static void event_time(struct world *w, unsigned int dir, struct input *in)
{
	(void)dir;
	w->now_ms += input_size(in) & UINT32_MAX;
}

static void event_load(struct world *w, unsigned int dir, struct input *in)
{
	(void)dir;
	w->events += input_size(in) & BYTES_MAX;
	w->wakeups += input_size(in) & BYTES_MAX;
	load_look(&w->policy, &w->load, w->events, w->wakeups, w->now_ms);
	model_load_look(&w->model_load, w->events, w->wakeups, w->now_ms);
}

static void event_names(struct world *w, unsigned int dir, struct input *in)
{
	unsigned int i = (unsigned int)input_size(in);

	(void)w;
	(void)dir;
	must((i < CARRIERS) == !!strcmp(carrier_name(i), "?"), "carrier %u", i);
	must((i < FLOW_PHASES) == !!strcmp(flow_phase_name(i), "?"), "phase %u", i);
	must((i < REASONS) == !!strcmp(reason_name(i), "?"), "reason %u", i);
	must(!flow_may(i, 0) == !model_may(i, 0), "from phase %u", i);
	must(!flow_may(0, i) == !model_may(0, i), "to phase %u", i);
}

static void (*const events[])(struct world *, unsigned int dir, struct input *) = {
	event_receive, event_read,  event_write,   event_drain,  event_misfortune,
	event_phase,   event_flags, event_look,    event_judge,  event_program,
	event_review,  event_time,  event_load,    event_names,  event_talk,
};

#define N_EVENTS (sizeof(events) / sizeof(events[0]))

/* What the carriers keep in step. */
static void copy_books(struct world *w)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		w->flows[dir].pending = (uint32_t)w->model[dir].pending;
		w->flows[dir].user_in = w->model[dir].read;
		w->flows[dir].user_out = w->model[dir].written;
	}
}

static void start(struct world *w, struct input *in)
{
	uint8_t first = input_byte(in);
	struct decision d;

	w->rules.engine = first % 4;
	w->rules.no_splice = first & 4;
	w->rules.settle_ms = (uint32_t)input_number(in, 2);
	w->now_ms = w->watched_ms = 1000; /* CLOCK_MONOTONIC: never 0 */
	policy_init(&w->policy, w->rules.engine, w->rules.settle_ms, 1000000);
	w->policy.no_splice = w->rules.no_splice;
	d = policy_start(&w->policy);
	must(same(d, model_start(&w->rules)), "starts with %s (%s)", carrier_name(d.carrier),
	     reason_name(d.reason));
	carry(w, 0, d);
	carry(w, 1, d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct model_habit habit;
	struct input in = { data, size };
	struct world w;

	memset(&w, 0, sizeof(w)); /* padding, too: flows are compared as bytes */
	model_begin(&habit);
	w.model_habit = &habit;
	start(&w, &in);
	while (in.left) {
		uint8_t event = input_byte(&in);

		events[event % 16 % N_EVENTS](&w, event >> 7, &in);
		copy_books(&w);
		check_all(&w);
	}
	return 0;
}
