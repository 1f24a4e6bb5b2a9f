// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a forward does by the clock: idle-timeout and fin-timeout.
 *
 * No upper bound is asserted of what the daemon does in time, and where a test itself has to be in
 * time (a byte now and then), it knows when it was not, and tries again.
 */
#include "forward_rig.h"

#define TEST_SECONDS 120
#define TIMEOUT_MS (400 * env_slow())
#define TICK_MS (TIMEOUT_MS / 8)
#define LINES_MAX 4
#define AT(n) "127.0.0.1:900" #n
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
	struct daemon *d = start(
		state,
		"[forward never]\nlisten = " AT(1) "\n" TO_UPSTREAM "[forward later]\nlisten = " AT(
			2) "\n" TO_UPSTREAM "idle-timeout = 60\n"
			   "[forward half]\nlisten = " AT(
				   3) "\n" TO_UPSTREAM "fin-timeout = @\n"
				      "[forward probed]\nlisten = " AT(
					      4) "\n" TO_UPSTREAM
						 "idle-timeout = 1.2\nkeepalive = 1\n"
						 "[forward now]\nlisten = " AT(
							 5) "\n" TO_UPSTREAM "idle-timeout = @\n");
	struct ends probed, now;
	int64_t since;

	rig_open_carried(d, *state, "never", AT(1));
	rig_open_carried(d, *state, "later", AT(2));
	rig_open_carried(d, *state, "half", AT(3));
	probed = rig_open_carried(d, *state, "probed", AT(4));
	now = connect_pair(NULL, AT(5));
	since = now_ms();
	rig_talk_on(now, 1); /* however it is carried; the others see to that */
	is_timed_out(now, since);
	rig_expect_sessions(d, "never", 1);
	rig_expect_sessions(d, "later", 1);
	rig_expect_sessions(d, "half", 1);
	is_reset(probed);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 2);
	assert_int_equal(rig_status(d, "errors.fin-timeout"), 0);
	rig_not_logged(d, "cannot see whether it is idle");
	rig_stop(d);
}

/* What the kernel carries, too, has an end, and only when it is silent. */
static bool busy_once(void **state)
{
	struct daemon *d = start(state, "[forward talk]\nlisten = " AT(
						1) "\n" TO_UPSTREAM "idle-timeout = @\n"
						   "[forward up]\nlisten = " AT(
							   2) "\n" TO_UPSTREAM "idle-timeout = @\n"
							      "[forward down]\nlisten = " AT(
								      3) "\n" TO_UPSTREAM
									 "idle-timeout = @\n");
	struct ends pairs[3];
	struct line lines[4];

	pairs[0] = rig_open_carried(d, *state, "talk", AT(1));
	pairs[1] = rig_open_carried(d, *state, "up", AT(2));
	pairs[2] = rig_open_carried(d, *state, "down", AT(3));
	if (rig_status(d, "errors.idle-timeout"))
		return false; /* it took so long to get here */
	lines[0] = (struct line){ pairs[0].client, pairs[0].server };
	lines[1] = (struct line){ pairs[0].server, pairs[0].client };
	lines[2] = (struct line){ pairs[1].client, pairs[1].server };
	lines[3] = (struct line){ pairs[2].server, pairs[2].client };
	if (!keep_up(lines, 4, 5 * TIMEOUT_MS / 2))
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
	struct daemon *d = start(state, "[forward one]\nlisten = " AT(1) "\n" TO_UPSTREAM
									 "idle-timeout = @\n");
	static char buf[65536];
	int client = rig_dial(NULL, AT(1)), server = rig_accept();
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
	assert_int_equal(rig_sessions(d, "one", NULL), 1);
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

#define FIN_FORWARDS                                                                               \
	"[forward quiet]\nlisten = " AT(                                                           \
		1) "\n" TO_UPSTREAM "fin-timeout = @\n"                                            \
		   "[forward reply]\nlisten = " AT(                                                \
			   2) "\n" TO_UPSTREAM "fin-timeout = @\n"                                 \
			      "[forward reply2]\nlisten = " AT(                                    \
				      3) "\n" TO_UPSTREAM "fin-timeout = @\n"                      \
					 "[forward patient]\nlisten = " AT(                        \
						 4) "\n" TO_UPSTREAM                               \
						    "idle-timeout = @\nfin-timeout = 60\n"         \
						    "[forward idle]\nlisten = " AT(                \
							    5) "\n" TO_UPSTREAM                    \
							       "idle-timeout = @\n"

static bool fin_once(void **state)
{
	struct daemon *d = start(state, FIN_FORWARDS);
	struct ends quiet = rig_open_carried(d, *state, "quiet", AT(1));
	struct ends reply = rig_open_carried(d, *state, "reply", AT(2));
	struct ends reply2 = rig_open_carried(d, *state, "reply2", AT(3)), patient, idle;
	struct line lines[2] = { { reply.server, reply.client }, { reply2.client, reply2.server } };
	int64_t since;
	int end;

	patient = rig_open_carried(d, *state, "patient", AT(4));
	ends_with_fin(patient.client, patient.server);
	idle = rig_open_carried(d, *state, "idle", AT(5));
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
	char text[600], to[100];
	struct daemon *d;
	struct ends p;
	struct line lines[1];

	snprintf(to, sizeof(to), "unix:%s/timing.sock", env_dir());
	snprintf(text, sizeof(text),
		 "[forward unix]\nlisten = %s\n" TO_UPSTREAM "idle-timeout = @\n", to);
	d = start(state, text);
	p = connect_pair(NULL, to);
	lines[0] = (struct line){ p.client, p.server };
	if (!keep_up(lines, 1, 5 * TIMEOUT_MS / 2))
		return false;
	rig_expect_sessions(d, "unix", 1);
	assert_int_equal(rig_end(p.server, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_end(p.client, RIG_PATIENCE_MS), 0); /* such sockets know no reset */
	assert_true(now_ms() - last_round >= TIMEOUT_MS);
	assert_int_equal(rig_status(d, "errors.idle-timeout"), 1);
	rig_stop(d);
	return true;
}

ROW(unix_sockets)
{
	until_in_time(state, unix_sockets_once);
}

int main(void)
{
	return rig_run("test_timing", TEST_SECONDS);
}
