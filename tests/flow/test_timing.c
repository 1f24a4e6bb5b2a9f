// SPDX-License-Identifier: BSD-2-Clause
/*
 * Times of a forward: idle-timeout, fin-timeout, and an end that is gone.
 *
 * No upper bound is asserted of what the daemon does in time, and where a test itself has to be in
 * time (a byte now and then), it knows when it was not, and tries again.
 */
#include "forward_rig.h"

#define TEST_SECONDS 200
#define TIMEOUT_MS (400 * env_slow())
#define TICK_MS (TIMEOUT_MS / 8)
#define LINES_MAX 4
#define FIVE "127.0.0.1:9005"
#define TRIES 5

/* A daemon of FORWARDS, whose "@" is TIMEOUT_MS in seconds. */
static struct daemon *start(void **state, const char *forwards)
{
	char text[2000] = "[culvert]\nsettle = 0.05\n";
	size_t at = strlen(text);

	for (const char *c = forwards; *c; c++) {
		int n = *c == '@' ? snprintf(text + at, sizeof(text) - at, "%d.%03d",
					     TIMEOUT_MS / 1000, TIMEOUT_MS % 1000) :
				    snprintf(text + at, sizeof(text) - at, "%c", *c);

		at += (size_t)n;
		assert_true(at < sizeof(text));
	}
	return rig_start(*state, text);
}

/* Where a byte goes now and then. */
struct line {
	int from, to;
};

static bool carry_byte(const struct line *line)
{
	char c = 'x';

	return send(line->from, &c, 1, MSG_NOSIGNAL) == 1 && recv(line->to, &c, 1, 0) == 1;
}

/* When the last round of keep_up() began. */
static int64_t last_round;

/*
 * A byte on each of LINES at every tick, for MS.  False: a line is dead, but this machine had made
 * it wait for a good part of the timeout.
 */
static bool keep_up(const struct line *lines, size_t n, int64_t ms)
{
	int64_t begin = now_ms(), last[LINES_MAX], worst = 0;

	for (size_t i = 0; i < n; i++)
		last[i] = begin;
	while (now_ms() < begin + ms) {
		last_round = now_ms();
		for (size_t i = 0; i < n; i++) {
			bool alive = carry_byte(&lines[i]);
			int64_t now = now_ms();

			if (now - last[i] > worst)
				worst = now - last[i];
			last[i] = now;
			if (!alive && worst < TIMEOUT_MS / 2)
				fail_msg("line %zu has ended after %lld ms; no two bytes were "
					 "more than %lld ms apart",
					 i, (long long)(now - begin), (long long)worst);
			if (!alive)
				return false;
		}
		poll(NULL, 0, TICK_MS);
	}
	return true;
}

/* Both ends are reset, but not before the timeout that began after SINCE. */
static void is_timed_out(struct ends e, int64_t since)
{
	assert_int_equal(rig_end(e.client, RIG_PATIENCE_MS), ECONNRESET);
	if (now_ms() - since < TIMEOUT_MS)
		fail_msg("ended after %lld ms", (long long)(now_ms() - since));
	assert_int_equal(rig_end(e.server, RIG_PATIENCE_MS), ECONNRESET);
}

/* TCP's own probes are no bytes. */
ROW(silent)
{
	struct daemon *d =
		start(state,
		      FORWARD("never", ONE, "") FORWARD("later", TWO, "idle-timeout = 60\n")
			      FORWARD("half", THREE, "fin-timeout = @\n")
				      FORWARD("probed", FOUR, "idle-timeout = 1.2\nkeepalive = 1\n")
					      FORWARD("now", FIVE, "idle-timeout = @\n"));
	struct ends probed, now;
	int64_t since;

	rig_open_carried(d, *state, "never", ONE);
	rig_open_carried(d, *state, "later", TWO);
	rig_open_carried(d, *state, "half", THREE);
	probed = rig_open_carried(d, *state, "probed", FOUR);
	now = connect_pair(NULL, FIVE);
	since = now_ms();
	rig_talk_on(now, 1); /* however it is carried; the others see to that */
	is_timed_out(now, since);
	rig_expect_sessions(d, "never", 1);
	rig_expect_sessions(d, "later", 1);
	rig_expect_sessions(d, "half", 1);
	is_reset(probed);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 2);
	assert_int_equal(rig_status(d, "errors.fin-timeout"), 0);
	rig_not_logged(d, "its sockets do not say whether it is idle");
	rig_stop(d);
}

/* What the kernel carries, too, has an end, and only when it is silent. */
static bool busy_once(void **state)
{
	struct daemon *d = start(state,
				 FORWARD("talk", ONE, "idle-timeout = @\n")
					 FORWARD("up", TWO, "idle-timeout = @\n")
						 FORWARD("down", THREE, "idle-timeout = @\n"));
	struct ends pairs[3];

	pairs[0] = rig_open_carried(d, *state, "talk", ONE);
	pairs[1] = rig_open_carried(d, *state, "up", TWO);
	pairs[2] = rig_open_carried(d, *state, "down", THREE);
	if (rig_status(d, "errors.idle-timeout"))
		return false; /* it took so long to get here */
	if (!keep_up((const struct line[]){ { pairs[0].client, pairs[0].server },
					    { pairs[0].server, pairs[0].client },
					    { pairs[1].client, pairs[1].server },
					    { pairs[2].server, pairs[2].client } },
		     4, 5 * TIMEOUT_MS / 2))
		return false;
	for (size_t i = 0; i < 3; i++)
		is_timed_out(pairs[i], last_round);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 3);
	rig_stop(d);
	return true;
}

static void until_in_time(void **state, bool (*once)(void **state))
{
	for (int i = 0; i < TRIES; i++) {
		if (once(state))
			return;
		rig_clean(state);
	}
	fail_msg("this machine is too slow for %d ms", TIMEOUT_MS);
}

ROW(busy)
{
	until_in_time(state, busy_once);
}

/* The source has been silent for long, but its bytes are still on their way. */
static bool slow_reader_once(void **state)
{
	struct daemon *d = start(state, FORWARD("one", ONE, "idle-timeout = @\n"));
	static char buf[65536];
	int client = rig_dial(NULL, ONE), server = rig_accept();
	int small = sizeof(buf);
	int64_t begin, last;

	setsockopt(server, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	rig_give(client, 16384, SIZE_MAX, TICK_MS);
	begin = last = now_ms();
	while (now_ms() < begin + 5 * TIMEOUT_MS / 2) {
		ssize_t n = recv(server, buf, sizeof(buf), MSG_WAITALL);
		int64_t gap = now_ms() - last;

		last = now_ms();
		if (n < (ssize_t)sizeof(buf) && gap < TIMEOUT_MS / 2)
			fail_msg("ended after %lld ms", (long long)(now_ms() - begin));
		if (n < (ssize_t)sizeof(buf))
			return false;
		poll(NULL, 0, TICK_MS);
	}
	rig_expect_sessions(d, "one", 1);
	/* and when it reads no more, that is the end */
	rig_wait_status(d, "errors.idle-timeout", 1);
	/* the window that the last bytes have made room for is not always opened by them */
	assert_true(now_ms() - last >= TIMEOUT_MS / 2);
	rig_stop(d);
	return true;
}

ROW(slow_reader)
{
	until_in_time(state, slow_reader_once);
}

static bool fin_once(void **state)
{
	struct daemon *d = start(
		state,
		FORWARD("quiet", ONE, "fin-timeout = @\n") FORWARD("reply", TWO, "fin-timeout = @\n")
			FORWARD("reply2", THREE, "fin-timeout = @\n")
				FORWARD("patient", FOUR, "idle-timeout = @\nfin-timeout = 60\n")
					FORWARD("idle", FIVE, "idle-timeout = @\n"));
	struct ends quiet = rig_open_carried(d, *state, "quiet", ONE);
	struct ends reply = rig_open_carried(d, *state, "reply", TWO);
	struct ends reply2 = rig_open_carried(d, *state, "reply2", THREE), patient, idle;
	struct line lines[2] = { { reply.server, reply.client }, { reply2.client, reply2.server } };
	int64_t since;
	int end;

	patient = rig_open_carried(d, *state, "patient", FOUR);
	ends_with_fin(patient.client, patient.server);
	idle = rig_open_carried(d, *state, "idle", FIVE);
	ends_with_fin(idle.server, idle.client);
	ends_with_fin(reply.client, reply.server);
	ends_with_fin(reply2.server, reply2.client);
	since = now_ms();
	ends_with_fin(quiet.client, quiet.server);
	/* what is half closed, and at work, goes on, and ends in peace */
	if (!keep_up(lines, 2, 5 * TIMEOUT_MS / 2))
		return false;
	shutdown(reply.server, SHUT_WR);
	end = rig_end(reply.client, RIG_PATIENCE_MS);
	if (end && now_ms() - last_round >= TIMEOUT_MS / 2)
		return false;
	assert_int_equal(end, 0);
	assert_int_equal(rig_end(quiet.client, RIG_PATIENCE_MS), ECONNRESET);
	assert_true(now_ms() - since >= TIMEOUT_MS);
	assert_int_equal(rig_end(idle.server, RIG_PATIENCE_MS), ECONNRESET);
	rig_expect_sessions(d, "patient", 1);
	assert_int_equal(rig_end(reply2.server, RIG_PATIENCE_MS), ECONNRESET);
	assert_true(now_ms() - last_round >= TIMEOUT_MS);
	assert_int_equal(rig_status(d, "errors.fin-timeout"), 2);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 1);
	rig_stop(d);
	return true;
}

ROW(fin)
{
	until_in_time(state, fin_once);
}

/* A unix socket tells nothing of its bytes, but user space has them all in its hands. */
static bool unix_sockets_once(void **state)
{
	const char *to = textf("unix:%s/timing.sock", env_dir());
	struct daemon *d = start(state, textf(FORWARD("unix", "%s", "idle-timeout = @\n"), to));
	struct ends p = connect_pair(NULL, to);
	struct line line = { p.client, p.server };

	if (!keep_up(&line, 1, 5 * TIMEOUT_MS / 2))
		return false;
	rig_expect_sessions(d, "unix", 1);
	assert_int_equal(rig_end(p.server, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_end(p.client, RIG_PATIENCE_MS), 0); /* such sockets know no reset */
	assert_true(now_ms() - last_round >= TIMEOUT_MS);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 1);
	rig_stop(d);
	return true;
}

ROW_ONCE(unix_sockets)
{
	until_in_time(state, unix_sockets_once);
}

/* --- parting: one end has gone by RST, and there is still payload for the other --- */

#define CONF "[culvert]\nprobe = no\n" FORWARD("one", ONE, "")

/* One of both ends fills the session, and resets it.  The other end. */
static int fill_and_go(bool from_server)
{
	struct ends e = rig_open(ONE);
	int from = from_server ? e.server : e.client;

	rig_give(from, 65536, SIZE_MAX, 0);
	rig_reset(from);
	return from_server ? e.client : e.server;
}

/*
 * The other end takes nothing: after a while it is reset as well.  What it does take test_cases has
 * ("reset-last-words").
 */
ROW(nobody_listens)
{
	struct daemon *d = rig_start(*state, CONF);
	int others[2];

	for (int i = 0; i < 2; i++)
		others[i] = fill_and_go(i);
	rig_wait_status(d, "resources.sessions", 0);
	for (int i = 0; i < 2; i++)
		rig_reset(others[i]);
	rig_stop(d);
}

/* The other end goes as well, or the daemon is told to end the session. */
ROW(both_go)
{
	struct daemon *d = rig_start(*state, CONF);

	for (int told = 0; told < 2; told++) {
		int others[4];

		for (int i = 0; i < 4; i++)
			others[i] = fill_and_go(i % 2);
		if (told)
			ask(d, "{\"command\":\"kill\",\"forward\":\"one\"}");
		for (int i = 0; i < 4 && !told; i++)
			rig_reset(others[i]);
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_timing", TEST_SECONDS);
}
