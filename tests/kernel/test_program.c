/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What culvert's own program does where no peer can make it do so at will: the daemon's half of the
 * contract (include/culvert.h) is played by hand here.
 */
#include "kernel.h"
#include "kt.h"

#define CLIENT 0 /* slots */
#define UPSTREAM 1
#define SENT 100
#define AGAIN 40 /* of SENT */
#define FRESH 10

static uint64_t cookies[2]; /* by slot */

/* Make the program know the session; neither flow is in rx yet. */
static struct kt_session *admit(struct kt_session *s)
{
	assert_int_equal(kernel_admit(kt_culvert, CLIENT, s->a, &cookies[CLIENT]), 0);
	assert_int_equal(kernel_admit(kt_culvert, UPSTREAM, s->b, &cookies[UPSTREAM]), 0);
	return s;
}

/* Close the session: its slots are free for the next one. */
static void forget(struct kt_session *s)
{
	kt_close(&s->a);
	kt_close(&s->b);
	kernel_forget(kt_culvert, CLIENT, cookies[CLIENT], true);
	kernel_forget(kt_culvert, UPSTREAM, cookies[UPSTREAM], true);
}

/* The flow from the client, with all that was passed before written. */
static volatile struct culvert_ctl *enter(const struct kt_session *s)
{
	volatile struct culvert_ctl *ctl = kernel_ctl(kt_culvert, CLIENT);

	ctl->soft_limit = ctl->hard_limit = UINT64_MAX;
	ctl->bulk_bytes = 0;
	ctl->no_pass = 0;
	ctl->credit = kernel_stat(kt_culvert, CLIENT)->passed;
	ctl->epoch++;
	assert_int_equal(kernel_rx_add(kt_culvert, CLIENT, s->a), 0);
	kt_kick(s->a);
	return ctl;
}

static uint64_t redirected(void)
{
	return kernel_stat(kt_culvert, CLIENT)->bytes;
}

static uint64_t passed(void)
{
	return kernel_stat(kt_culvert, CLIENT)->passed;
}

/*
 * Bytes that the daemon has read ahead and not yet written come first, whatever it asks for: a
 * segment that slips past the fence while a flow is taken out of rx must not overtake them.
 */
static void no_pass_lets_nothing_overtake_passed_bytes(void **state)
{
	struct kt_session *s = admit(kt_open(0));
	volatile struct culvert_ctl *ctl = enter(s);
	uint64_t bytes = redirected(), before = passed();

	(void)state;
	ctl->credit = before - 1; /* as if a byte were still to be written */
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_true(KT_WAIT(passed() == before + SENT));
	ctl->no_pass = 1;
	assert_int_equal(kt_send(s->client, SENT, FRESH), 0);
	assert_true(KT_WAIT(passed() + redirected() == before + bytes + SENT + FRESH));
	assert_int_equal(redirected(), bytes);
	assert_int_equal(passed(), before + SENT + FRESH);
	assert_int_equal(kt_expect(s->a, 0, SENT + FRESH), 0);

	/* once they are written, it redirects */
	ctl->credit = passed();
	assert_int_equal(kt_send(s->client, SENT + FRESH, FRESH), 0);
	assert_int_equal(kt_expect(s->server, SENT + FRESH, FRESH), 0);
	assert_int_equal(redirected(), bytes + FRESH);
	forget(s);
}

/* T17: what has come before is cut off. */
static void an_overlap_is_cut_off(void **state)
{
	struct kt_session *s = admit(kt_open(0));
	uint64_t bytes = redirected(), overlap = kernel_stat(kt_culvert, CLIENT)->overlap;

	(void)state;
	enter(s);
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_int_equal(kt_expect(s->server, 0, SENT), 0);
	assert_int_equal(kt_inject(s->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_int_equal(kt_expect(s->server, SENT, FRESH), 0);
	assert_true(kt_quiet(s->server));
	assert_int_equal(redirected(), bytes + SENT + FRESH);
	assert_int_equal(kernel_stat(kt_culvert, CLIENT)->overlap, overlap + AGAIN);
	assert_int_equal(kernel_stat(kt_culvert, CLIENT)->dropped, 0);
	forget(s);
}

/* T3, which the daemon avoids: the cut holds for many pages and odd lengths as well. */
static void a_large_part_is_cut_off(void **state)
{
	static const size_t parts[] = { 1, 4094, 4095, 4096, 8190, 20001, 48 * KIB - 1 };
	const size_t size = 48 * KIB;

	(void)state;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		struct kt_session *s = kt_open(0);
		uint64_t bytes = redirected();

		assert_int_equal(kt_send(s->client, 0, size), 0);
		assert_true(KT_WAIT(kt_inq(s->a) == (int)size));
		assert_int_equal(kt_expect(s->a, 0, parts[i]), 0);
		admit(s);
		enter(s);
		assert_int_equal(kt_expect(s->server, parts[i], size - parts[i]), 0);
		assert_int_equal(redirected(), bytes + size - parts[i]);
		assert_int_equal(kernel_stat(kt_culvert, CLIENT)->dropped, 0);
		forget(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(no_pass_lets_nothing_overtake_passed_bytes),
		kt_test(an_overlap_is_cut_off),
		kt_test(a_large_part_is_cut_off),
	};

	kt_enter();
	return cmocka_run_group_tests(tests, kt_load_culvert, kt_unload_culvert);
}
