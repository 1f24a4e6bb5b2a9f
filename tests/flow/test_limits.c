// SPDX-License-Identifier: BSD-2-Clause
/*
 * Limits of clients that are named by PROXY headers, limits that a reload changes while sessions
 * run, and kernel-memory.  Every byte that is sent comes, and is the right one.
 */
#include "forward_rig.h"

#include "taps.h"

#define TEST_SECONDS 120
#define CULVERT "[culvert]\nprobe = no\nsettle = 0.05\nworkers = 2\n"
#define ONE_OF(more) CULVERT "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM more
#define RATE (256U << 10)

/* --- clients that are named by PROXY headers --- */

enum { NAMED_A, A_BACK, NAMED_B, B_BACK, NAMED };

/* A session of the client that HEADER names, which is no part of the stream. */
static void open_named(struct tap *taps, const char *header, size_t group)
{
	taps[0] = (struct tap){
		.fd = rig_dial(NULL, ONE),
		.writes = true,
		.group = group + 1,
		.other = &taps[1],
	};
	rig_send(taps[0].fd, header, strlen(header));
	taps[1] = (struct tap){
		.fd = rig_accept(),
		.writes = true,
		.group = group,
		.other = &taps[0],
	};
}

/* Three connections of one address: two of them share what the client A may have, B has as much. */
ROW(named_clients)
{
	struct daemon *d = rig_start(*state, ONE_OF("proxy-protocol = receive\n"
						    "bandwidth-per-client = 256K\n"));
	struct group groups[NAMED];
	struct tap taps[6];

	for (size_t i = 0; i < NAMED; i++)
		groups[i] = (struct group){ .rate = RATE, .begin = now_ms() };
	open_named(&taps[0], "PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n", NAMED_A);
	open_named(&taps[2], "PROXY TCP4 203.0.113.7 192.0.2.1 4712 443\r\n", NAMED_A);
	open_named(&taps[4], "PROXY TCP4 203.0.113.8 192.0.2.1 4711 443\r\n", NAMED_B);
	taps_run(taps, 6, groups, NAMED, 600);
	for (size_t i = 0; i < 4; i++)
		if (taps[i].got < groups[taps[i].group].got / 6)
			fail_msg("tap %zu has %llu bytes", i, (unsigned long long)taps[i].got);
	rig_stop(d);
}

/* Clients of unix sockets have no address, and no limit of their own. */
ROW(unix_clients)
{
	char text[512], to[128];
	struct daemon *d;

	snprintf(to, sizeof(to), "unix:%s/limits", env_dir());
	snprintf(text, sizeof(text),
		 CULVERT "[forward one]\nlisten = %s\n" TO_UPSTREAM "bandwidth-per-client = 1K\n",
		 to);
	d = rig_start(*state, text);
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
 * only checked not to exceed it.  BEFORE and AFTER are lines of the file.
 */
static void change(const char *engine, const char *before, const char *after)
{
	struct daemon *d = rig_start(engine, before);
	struct group groups[RELOADED] = {
		[OLD] = { .rate = RATE, .begin = now_ms() },
		[OLD_BACK] = { .rate = RATE, .begin = now_ms() },
	};
	struct tap taps[6];

	taps_open(&taps[0], NULL, 9001, true, true, OLD);
	taps_run(taps, 2, groups, 2, 100);
	rig_reload_good(d, after);
	for (size_t i = OLD; i <= NEW_BACK; i++)
		groups[i].rate = 16 * RATE;
	for (size_t i = NEW; i <= NEW_BACK; i++)
		groups[i] = (struct group){ .rate = 16 * RATE, .begin = now_ms() };
	taps_open(&taps[2], NULL, 9001, true, true, NEW);
	run_past(taps, 4, groups, RELOADED, NEW);
	run_past(taps, 4, groups, RELOADED, NEW_BACK);
	rig_reload_good(d, before);
	for (size_t i = OLD; i <= NEW_BACK; i++)
		groups[i].rate = 0; /* they share with the last ones */
	for (size_t i = LAST; i <= LAST_BACK; i++)
		groups[i] = (struct group){ .rate = RATE, .begin = now_ms() };
	taps_open(&taps[4], NULL, 9001, true, true, LAST);
	taps_run(taps, 6, groups, RELOADED, 300);
	taps_finish(taps, 6, groups, RELOADED);
	rig_stop(d);
}

ROW(change_bandwidth)
{
	change(*state, ONE_OF("bandwidth = 256K\n"), ONE_OF("bandwidth = 4M\n"));
}

ROW(change_of_client)
{
	change(*state, ONE_OF("bandwidth-per-client = 256K\n"),
	       ONE_OF("bandwidth-per-client = 4M\nbandwidth = 8M\n"));
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
ROW(change_sessions)
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
	struct json_object *o = query(d, "sessions"), *list = json_at(o, "sessions");
	unsigned int n = 0;

	for (size_t i = 0; i < 2 * json_object_array_length(list); i++)
		n += !strcmp(json_text(flow_of(json_object_array_get_idx(list, i / 2), i % 2),
				       "reason"),
			     "kernel memory");
	json_object_put(o);
	return n;
}

/*
 * A flow is charged for what it had at the program's last look; when it is quiet then, for nothing.
 * Near kernel-memory such flows leave the kernel, until half of it is free, and then come back.
 */
ROW(kernel_memory)
{
	struct daemon *d = rig_start(*state, CULVERT "kernel-memory = 1M\n[forward one]\n"
						     "listen = " ONE "\n" TO_UPSTREAM);
	const int64_t limit = rig_status(d, "resources.kernel_memory_limit");
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	static char burst[BURST];
	struct ends pairs[QUIET], late;
	unsigned int short_before;

	for (int i = 0; i < QUIET; i++)
		pairs[i] = rig_open(ONE);
	if (strcmp(*state, "sockmap") != 0) { /* who else is in the kernel may change by itself */
		rig_stop(d);
		return;
	}
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
	while (rig_status(d, "resources.kernel_memory") > limit / 2) {
		assert_true(now_ms() < deadline);
		poll(NULL, 0, 20);
	}
	while (short_of_memory(d)) {
		for (int i = 0; i < QUIET; i++)
			rig_talk_on(pairs[i], 2);
		assert_true(now_ms() < deadline);
	}
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_limits", TEST_SECONDS);
}
