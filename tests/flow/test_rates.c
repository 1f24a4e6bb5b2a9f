// SPDX-License-Identifier: BSD-2-Clause
/*
 * accept-rate, bandwidth and bandwidth-per-client.  What is asserted exactly is that no more
 * passes, ever: that holds on a slow machine, too.  That no less passes is asserted with much room.
 */
#include "forward_rig.h"

#include "taps.h"

#define TEST_SECONDS 120
#define SETTLE "[culvert]\nsettle = 0.05\n"

/* --- accept-rate --- */

#define PER_SECOND 20
#define BURST 2 /* a tenth of it */
#define CLIENTS 24

/* The workers share the rate; other forwards have none. */
ROW(accept_rate)
{
	struct daemon *d = rig_start(*state, "[culvert]\nworkers = 2\n"
					     "[forward any]\nlisten = 127.0.0.1:9001\n" TO_UPSTREAM
					     "[forward slow]\nlisten = 127.0.0.1:9002\n" TO_UPSTREAM
					     "accept-rate = 20\n");
	int64_t begin = now_ms();
	int clients[CLIENTS];

	for (int i = 0; i < CLIENTS; i++)
		clients[i] = rig_dial(NULL, TWO); /* it waits in the backlog */
	for (int i = 0; i < CLIENTS; i++) {
		int64_t so_far;

		rig_accept();
		so_far = now_ms() - begin;
		if (i + 1 > so_far * PER_SECOND / 1000 + BURST)
			fail_msg("%d were accepted within %lld ms", i + 1, (long long)so_far);
	}
	assert_true(rig_status(d, "errors.accept-rate") >= 1);
	assert_int_equal(rig_sessions(d, "slow", NULL), CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		rig_reset(clients[i]);
	for (int i = 0; i < CLIENTS; i++) {
		int client = rig_dial(NULL, ONE);

		rig_talk(client, rig_accept(), 1);
	}
	rig_stop(d);
}

/* --- bandwidth --- */

/* What `sessions` says of all flows of FORWARD. */
static void check_reasons(struct daemon *d, const char *engine, const char *forward)
{
	bool by_name = strcmp(engine, "auto") != 0 && strcmp(engine, "sockmap") != 0;
	struct json_object *s;

	for (size_t dir = 0; dir < 2; dir++) {
		assert_true(rig_sessions(d, forward, &s) > 0);
		assert_string_not_equal(json_text(flow_of(s, dir), "carrier"), "sockmap");
		assert_string_equal(json_text(flow_of(s, dir), "reason"),
				    by_name ? "engine" : "bandwidth limit");
		json_object_put(s);
	}
}

#define RATE (1U << 20)
#define SHARING 16

enum { BOTH_UP, BOTH_DOWN, SHARED, SHARED_BACK, CLIENT_A, A_BACK, CLIENT_B, B_BACK, GROUPS };

ROW(bandwidth)
{
	struct daemon *d = rig_start(*state, SETTLE
				     "workers = 2\n"
				     "[forward both]\nlisten = 127.0.0.1:9001\n" TO_UPSTREAM
				     "bandwidth = 1M\n"
				     "[forward shared]\nlisten = 127.0.0.1:9002\n" TO_UPSTREAM
				     "bandwidth = 2M\nbandwidth-per-client = 100M\n"
				     "[forward clients]\nlisten = 127.0.0.1:9003\n" TO_UPSTREAM
				     "bandwidth-per-client = 512K\n");
	struct group groups[GROUPS] = {
		[BOTH_UP] = { .rate = RATE },      [BOTH_DOWN] = { .rate = RATE },
		[SHARED] = { .rate = 2 * RATE },   [CLIENT_A] = { .rate = RATE / 2 },
		[CLIENT_B] = { .rate = RATE / 2 },
	};
	struct tap taps[2 * (1 + SHARING + 3)];
	size_t n = 0;
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < GROUPS; i++)
		groups[i].begin = now_ms();
	taps_open(&taps[n], NULL, 9001, true, true, BOTH_UP);
	for (n += 2; n < 2 * (1 + SHARING); n += 2)
		taps_open(&taps[n], NULL, 9002, true, false, SHARED);
	for (unsigned int i = 0; i < 3; i++, n += 2)
		taps_open(&taps[n], i < 2 ? "127.0.0.11:0" : "127.0.0.12:0", 9003, true, false,
			  i < 2 ? CLIENT_A : CLIENT_B);
	taps_run(taps, n, groups, GROUPS, 1000);
	for (size_t i = 2; i < 2 * (1 + SHARING); i += 2)
		least = taps[i + 1].got < least ? taps[i + 1].got : least;
	if (least < groups[SHARED].got / SHARING / 3)
		fail_msg("one of %d had %llu bytes of %llu", SHARING, (unsigned long long)least,
			 (unsigned long long)groups[SHARED].got);
	check_reasons(d, *state, "both");
	check_reasons(d, *state, "shared");
	check_reasons(d, *state, "clients");
	rig_stop(d);
}

/* Others are carried as ever; and what is limited ends as it should, with its last byte. */
ROW(content)
{
	struct daemon *d = rig_start(*state,
				     SETTLE "[forward any]\nlisten = 127.0.0.1:9001\n" TO_UPSTREAM
					    "[forward few]\nlisten = 127.0.0.1:9002\n" TO_UPSTREAM
					    "bandwidth = 1M\nbandwidth-per-client = 900K\n");
	int any[2], few[2];
	char out[5000], in[5000];
	int64_t begin;

	any[0] = rig_dial(NULL, ONE);
	any[1] = rig_accept();
	rig_talk_until(d, "any", rig_carrier(d, *state), any[0], any[1]);
	begin = now_ms();
	few[0] = rig_dial(NULL, TWO);
	few[1] = rig_accept();
	rig_talk(few[0], few[1], 100);
	for (int i = 0; i < 60; i++) {
		for (size_t k = 0; k < sizeof(out); k++)
			out[k] = (char)(i + k * 7 + k / 256);
		rig_send(few[0], out, sizeof(out));
	}
	assert_int_equal(shutdown(few[0], SHUT_WR), 0);
	for (int i = 0; i < 60; i++) {
		rig_receive(few[1], in, sizeof(in));
		for (size_t k = 0; k < sizeof(in); k++)
			assert_int_equal(in[k], (char)(i + k * 7 + k / 256));
	}
	assert_int_equal(rig_end(few[1], RIG_PATIENCE_MS), 0);
	assert_true(60 * sizeof(in) <=
		    PEAK_OF(900 * 1024) * (uint64_t)(now_ms() - begin + 1) / 1000 +
			    BURST_OF(900 * 1024));
	rig_talk(any[0], any[1], 10);
	rig_send(few[1], "end", 3);
	rig_receive(few[0], in, 3);
	forget(few[1]);
	assert_int_equal(rig_end(few[0], RIG_PATIENCE_MS), 0);
	rig_wait_status(d, "resources.sessions", 1);
	rig_stop(d);
}

#define SLOW 8192U
#define SLOW_TAPS 16

/*
 * Who waits for his turn for longer than a session may be idle is not idle; and who does so when he
 * is reset, or the daemon ends, leaves nothing behind.
 */
ROW(turns)
{
	struct daemon *d = rig_start(*state,
				     SETTLE "[forward few]\nlisten = 127.0.0.1:9002\n" TO_UPSTREAM
					    "bandwidth = 8K\nbandwidth-per-client = 8K\n"
					    "idle-timeout = 0.3\n");
	struct tap taps[SLOW_TAPS];
	struct group groups[2] = { { .rate = SLOW, .begin = now_ms() } };

	for (size_t i = 0; i < SLOW_TAPS; i += 2)
		taps_open(&taps[i], NULL, 9002, true, false, 0);
	taps_run(taps, SLOW_TAPS, groups, 1, 1200);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 0);
	assert_int_equal(rig_sessions(d, "few", NULL), SLOW_TAPS / 2);
	rig_reset(taps[0].fd);
	rig_wait_status(d, "resources.sessions", SLOW_TAPS / 2 - 1);
	rig_reset(taps[3].fd);
	rig_wait_status(d, "resources.sessions", SLOW_TAPS / 2 - 2);
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_rates", TEST_SECONDS);
}
