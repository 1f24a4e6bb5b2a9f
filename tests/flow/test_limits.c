// SPDX-License-Identifier: BSD-2-Clause
/*
 * accept-rate, bandwidth and bandwidth-per-client; limits that a reload changes while sessions run;
 * and kernel-memory.  Every byte that is sent comes, and is the right one.  What is asserted
 * exactly is that no more passes than may, ever: that holds on a slow machine, too.  That no less
 * passes is asserted with much room.
 */
#include "forward_rig.h"

#include "taps.h"

#define TEST_SECONDS 120
#define CULVERT "[culvert]\nprobe = no\nsettle = 0.05\nworkers = 2\n"
#define ONE_OF(more) CULVERT FORWARD("one", ONE, more)
#define RATE (256U << 10)

/* Clients of unix sockets have no address, and no limit of their own. */
ROW_ONCE(unix_clients)
{
	const char *to = textf("unix:%s/limits", env_dir());
	struct daemon *d = rig_start(
		*state, textf(CULVERT FORWARD("one", "%s", "bandwidth-per-client = 1K\n"), to));

	rig_talk_on(connect_pair(NULL, to), 200);
	rig_stop(d);
}

/* --- reload --- */

/* Until GROUP has more than it could have at RATE. */
static void run_past(struct tap *taps, size_t n, struct group *groups, size_t n_groups,
		     size_t group)
{
	const struct group *g = &groups[group];
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	uint64_t most;

	do {
		taps_once(taps, n, groups, n_groups, 20);
		if (now_ms() > deadline)
			fail_msg("group %zu has no more than before the reload", group);
		most = PEAK_OF(RATE) * (uint64_t)(now_ms() - g->begin + 1) / 1000 + BURST_OF(RATE);
	} while (g->got <= most);
}

enum { OLD, OLD_BACK, NEW, NEW_BACK, LAST, LAST_BACK, RELOADED };

/*
 * A session that begins after the reload has the new limit.  Those before share it, so they are
 * only checked not to exceed it.
 */
ROW_ONCE(change_bandwidth)
{
	static const char *const before = ONE_OF("bandwidth-per-client = 256K\n");
	struct daemon *d = rig_start(*state, before);
	struct group groups[RELOADED] = {
		[OLD] = { .rate = RATE, .begin = now_ms() },
		[OLD_BACK] = { .rate = RATE, .begin = now_ms() },
	};
	struct tap taps[6];

	taps_open(&taps[0], NULL, ONE, true, true, OLD);
	taps_run(taps, 2, groups, 2, 100);
	rig_reload_good(d, ONE_OF("bandwidth-per-client = 4M\nbandwidth = 8M\n"));
	for (size_t i = OLD; i <= NEW_BACK; i++)
		groups[i].rate = 16 * RATE;
	for (size_t i = NEW; i <= NEW_BACK; i++)
		groups[i] = (struct group){ .rate = 16 * RATE, .begin = now_ms() };
	taps_open(&taps[2], NULL, ONE, true, true, NEW);
	run_past(taps, 4, groups, RELOADED, NEW);
	run_past(taps, 4, groups, RELOADED, NEW_BACK);
	rig_reload_good(d, before);
	for (size_t i = OLD; i <= NEW_BACK; i++)
		groups[i].rate = 0; /* they share with the last ones */
	for (size_t i = LAST; i <= LAST_BACK; i++)
		groups[i] = (struct group){ .rate = RATE, .begin = now_ms() };
	taps_open(&taps[4], NULL, ONE, true, true, LAST);
	taps_run(taps, 6, groups, RELOADED, 300);
	taps_finish(taps, 6, groups, RELOADED);
	rig_stop(d);
}

static bool flows_are(struct daemon *d, bool limited)
{
	for (size_t dir = 0; dir < 2; dir++) {
		const char *reason = rig_flow_text(d, "one", dir, "reason");

		if (!strcmp(reason, "bandwidth limit") != limited)
			return false;
	}
	return true;
}

/* A limit that appears keeps new sessions out of the kernel; one that vanishes lets them in. */
ROW(appear_and_vanish)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));
	bool asked = !strcmp(*state, "auto") || !strcmp(*state, "sockmap");
	const char *carrier = rig_carrier(d, *state);
	struct ends before = rig_open_carried(d, *state, "one", ONE), limited, after;

	rig_reload_good(d, ONE_OF("bandwidth = 1M\n"));
	rig_talk_on(before, 100);
	rig_talk_until(d, "one", carrier, before.client, before.server);
	assert_true(flows_are(d, false));
	rig_hang_up(before);
	rig_wait_status(d, "resources.sessions", 0);

	limited = connect_pair(NULL, ONE);
	rig_talk_on(limited, 100);
	assert_true(flows_are(d, asked));
	assert_string_not_equal(rig_flow_text(d, "one", 0, "carrier"), "sockmap");
	rig_reload_good(d, ONE_OF(""));
	rig_talk_on(limited, 100);
	assert_true(flows_are(d, asked));

	after = connect_pair(NULL, ONE);
	for (int64_t end = now_ms() + RIG_PATIENCE_MS;;) {
		rig_talk_on(after, 50);
		if ((rig_status(d, "resources.slots_used") > 0) == !strcmp(carrier, "sockmap"))
			break;
		assert_true(now_ms() < end);
	}
	rig_talk_on(limited, 100);
	rig_stop(d);
}

#define WAITING 30

/* A new max-sessions-per-client counts older sessions, too.  accept-rate: at once. */
ROW_ONCE(change_sessions)
{
	struct daemon *d = rig_start(*state, ONE_OF("max-sessions-per-client = 1\n"));
	int64_t begin;
	struct ends pairs[3];

	pairs[0] = rig_open(ONE);
	is_turned_away(NULL, ONE);
	rig_reload_good(d, ONE_OF("max-sessions-per-client = 2\n"));
	pairs[1] = rig_open(ONE);
	is_turned_away(NULL, ONE);
	rig_reload_good(d, ONE_OF("max-sessions-per-client = 1\n"));
	is_turned_away(NULL, ONE);
	rig_reload_good(d, ONE_OF("max-sessions-per-client = 3\naccept-rate = 1\n"));
	pairs[2] = rig_open(ONE);
	for (unsigned int i = 0; i < 3; i++)
		rig_talk_on(pairs[i], 20);

	/* those who wait for a slow rate need not wait any more */
	rig_reload_good(d, ONE_OF("max-sessions-per-client = 100\naccept-rate = 1\n"));
	begin = now_ms();
	for (unsigned int i = 0; i < WAITING; i++)
		rig_dial(NULL, ONE);
	rig_accept();
	rig_reload_good(d, ONE_OF("max-sessions-per-client = 100\naccept-rate = 0\n"));
	for (unsigned int i = 1; i < WAITING; i++)
		rig_accept();
	assert_true(now_ms() - begin < (WAITING - 2) * 1000 * env_slow());
	for (unsigned int i = 0; i < 3; i++)
		rig_talk_on(pairs[i], 20);
	rig_stop(d);
}

/* --- kernel-memory --- */

#define QUIET 24
#define BURST (192 << 10)

/* Flows that have their carrier because kernel memory was short. */
static unsigned int short_of_memory(struct daemon *d)
{
	struct json_object *list = json_at(query(d, "sessions"), "sessions");
	unsigned int n = 0;

	for (size_t i = 0; i < 2 * json_object_array_length(list); i++)
		n += !strcmp(json_text(flow_of(json_object_array_get_idx(list, i / 2), i % 2),
				       "reason"),
			     "kernel memory");
	return n;
}

/*
 * A flow is charged for what it had at the program's last look; when it is quiet then, for nothing.
 * Near kernel-memory such flows leave the kernel, until half of it is free, and then come back.
 */
ROW_ONCE(kernel_memory)
{
	/* with auto, who else is in the kernel may change by itself */
	struct daemon *d = rig_start("sockmap",
				     CULVERT "kernel-memory = 1M\n" FORWARD("one", ONE, ""));
	const int64_t limit = rig_status(d, "resources.kernel_memory_limit");
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	static char burst[BURST];
	struct ends pairs[QUIET], late;
	unsigned int short_before;

	for (int i = 0; i < QUIET; i++)
		pairs[i] = rig_open(ONE);
	assert_int_equal(limit, 1 << 20);
	for (unsigned int i = 0; !short_of_memory(d); i = (i + 1) % QUIET) {
		rig_send(pairs[i].server, burst, BURST);
		rig_receive(pairs[i].client, burst, BURST);
		if (now_ms() > deadline)
			fail_msg("%lld bytes are charged",
				 (long long)rig_status(d, "resources.kernel_memory"));
	}
	short_before = short_of_memory(d);
	late = rig_open(ONE); /* a conversation that begins now stays in user space */
	assert_true(short_of_memory(d) >= short_before + 2);
	rig_reset(late.client);
	RIG_WAIT(rig_status(d, "resources.kernel_memory") <= limit / 2, "flows do not leave");
	while (short_of_memory(d)) {
		for (int i = 0; i < QUIET; i++)
			rig_talk_on(pairs[i], 2);
		assert_true(now_ms() < deadline);
	}
	rig_stop(d);
}

/* --- accept-rate --- */

#define PER_SECOND 20
#define AT_ONCE 2 /* a tenth of it */
#define CLIENTS 24

/* The workers share the rate; other forwards have none. */
ROW_ONCE(accept_rate)
{
	struct daemon *d = rig_start(*state, "[culvert]\nworkers = 2\n" FORWARD("any", ONE, "")
						     FORWARD("slow", TWO, "accept-rate = 20\n"));
	int64_t begin = now_ms();
	int clients[CLIENTS];

	for (int i = 0; i < CLIENTS; i++)
		clients[i] = rig_dial(NULL, TWO); /* it waits in the backlog */
	for (int i = 0; i < CLIENTS; i++) {
		int64_t so_far;

		rig_accept();
		so_far = now_ms() - begin;
		if (i + 1 > so_far * PER_SECOND / 1000 + AT_ONCE)
			fail_msg("%d were accepted within %lld ms", i + 1, (long long)so_far);
	}
	assert_true(rig_status(d, "errors.accept-rate") >= 1);
	rig_expect_sessions(d, "slow", CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		rig_reset(clients[i]);
	for (int i = 0; i < CLIENTS; i++)
		rig_talk_on(connect_pair(NULL, ONE), 1);
	rig_stop(d);
}

/* --- bandwidth --- */

/* What `sessions` says of all flows of FORWARD. */
static void check_reasons(struct daemon *d, const char *engine, const char *forward)
{
	bool by_name = strcmp(engine, "auto") != 0 && strcmp(engine, "sockmap") != 0;
	struct json_object *s;

	assert_true(rig_sessions(d, forward, &s) > 0);
	for (size_t dir = 0; dir < 2; dir++) {
		assert_string_not_equal(json_text(flow_of(s, dir), "carrier"), "sockmap");
		assert_string_equal(json_text(flow_of(s, dir), "reason"),
				    by_name ? "engine" : "bandwidth limit");
	}
}

#define MIB (1U << 20) /* a second */
#define SHARING 16

enum { BOTH_UP, BOTH_DOWN, SHARED, SHARED_BACK, CLIENT_A, A_BACK, CLIENT_B, B_BACK, GROUPS };

ROW(bandwidth)
{
	struct daemon *d = rig_start(
		*state,
		CULVERT FORWARD("both", ONE, "bandwidth = 1M\n")
			FORWARD("shared", TWO, "bandwidth = 2M\nbandwidth-per-client = 100M\n")
				FORWARD("clients", THREE, "bandwidth-per-client = 512K\n"));
	struct group groups[GROUPS] = {
		[BOTH_UP] = { .rate = MIB },      [BOTH_DOWN] = { .rate = MIB },
		[SHARED] = { .rate = 2 * MIB },   [CLIENT_A] = { .rate = MIB / 2 },
		[CLIENT_B] = { .rate = MIB / 2 },
	};
	struct tap taps[2 * (1 + SHARING + 3)];
	size_t n = 0;
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < GROUPS; i++)
		groups[i].begin = now_ms();
	taps_open(&taps[n], NULL, ONE, true, true, BOTH_UP);
	for (n += 2; n < 2 * (1 + SHARING); n += 2)
		taps_open(&taps[n], NULL, TWO, true, false, SHARED);
	for (unsigned int i = 0; i < 3; i++, n += 2)
		taps_open(&taps[n], i < 2 ? "127.0.0.11:0" : "127.0.0.12:0", THREE, true, false,
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
	struct daemon *d = rig_start(*state, CULVERT FORWARD("any", ONE, "")
						     FORWARD("few", TWO,
							     "bandwidth = 1M\n"
							     "bandwidth-per-client = 900K\n"));
	struct ends any = rig_open_carried(d, *state, "any", ONE), few = rig_open(TWO);
	static char data[300000];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)tap_byte(i);
	rig_send(few.client, data, sizeof(data));
	assert_int_equal(shutdown(few.client, SHUT_WR), 0);
	drink(few.server, data, sizeof(data));
	assert_int_equal(rig_end(few.server, RIG_PATIENCE_MS), 0);
	rig_talk_on(any, 10);
	ends_with_fin(few.server, few.client);
	rig_wait_status(d, "resources.sessions", 1);
	rig_stop(d);
}

#define SLOW 8192U
#define SLOW_TAPS 16

/*
 * A session that waits for its turn longer than idle-timeout is not idle.  Nothing is left behind if
 * such a session is reset, or the daemon ends.
 */
ROW(turns)
{
	struct daemon *d = rig_start(*state,
				     CULVERT FORWARD("few", TWO,
						     "bandwidth = 8K\nbandwidth-per-client = 8K\n"
						     "idle-timeout = 0.3\n"));
	struct tap taps[SLOW_TAPS];
	struct group groups[2] = { { .rate = SLOW, .begin = now_ms() } };

	for (size_t i = 0; i < SLOW_TAPS; i += 2)
		taps_open(&taps[i], NULL, TWO, true, false, 0);
	taps_run(taps, SLOW_TAPS, groups, 1, 1200);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 0);
	rig_expect_sessions(d, "few", SLOW_TAPS / 2);
	rig_reset(taps[0].fd);
	rig_wait_status(d, "resources.sessions", SLOW_TAPS / 2 - 1);
	rig_reset(taps[3].fd);
	rig_wait_status(d, "resources.sessions", SLOW_TAPS / 2 - 2);
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_limits", TEST_SECONDS);
}
