// SPDX-License-Identifier: BSD-2-Clause
/*
 * One end is gone, by RST: what it had said before reaches the other, on every engine, and then RST.
 */
#include "forward_rig.h"

#define TEST_SECONDS 200

#define CONF "[culvert]\nprobe = no\n[forward one]\nlisten = " ONE "\nupstream = " RIG_UPSTREAM "\n"
#define TIMES 10
#define WORDS 3000
#define MUCH (4 << 20)

static char words[MUCH];

static void prepare(void)
{
	for (size_t i = 0; i < sizeof(words); i++)
		words[i] = (char)(i * 7 + i / 251);
}

/* A session that is open; it has talked for a while if CARRIER is not NULL. */
static void begin(struct daemon *d, const char *carrier, int ends[2])
{
	ends[0] = rig_dial(NULL, ONE);
	ends[1] = rig_accept();
	rig_talk(ends[0], ends[1], 1);
	if (carrier)
		rig_talk_until(d, "one", carrier, ends[0], ends[1]);
}

/*
 * FROM has not read what TO has said, so its end is RST, whatever it is closed by.  LEN bytes, all
 * sent by then.
 */
static void say_and_go(int from, int to, size_t len)
{
	rig_send(to, "unread", 6);
	rig_send(from, words, len);
	rig_reset(from);
}

static void hear(int fd, size_t len)
{
	static char heard[WORDS];

	rig_receive(fd, heard, len);
	assert_memory_equal(heard, words, len);
	assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
	rig_reset(fd);
}

static void last_words(void **state)
{
	struct daemon *d = rig_start(*state, CONF);

	for (int i = 0; i < TIMES; i++)
		for (int talked = 0; talked < 2; talked++)
			for (int from = 0; from < 2; from++) {
				int ends[2];

				begin(d, talked ? rig_carrier(d, *state) : NULL, ends);
				say_and_go(ends[from], ends[!from], WORDS);
				hear(ends[!from], WORDS);
			}
	rig_wait_status(d, "resources.sessions", 0);
	assert_int_equal(rig_status(d, "errors.client-reset"), 2 * TIMES);
	assert_int_equal(rig_status(d, "errors.upstream-reset"), 2 * TIMES);
	rig_stop(d);
}

/* More than the other end takes at once: a part of it, in order, and never FIN. */
static void a_part_of_many(void **state)
{
	struct daemon *d = rig_start(*state, CONF);
	static char heard[MUCH + 1]; /* recv(2) of nothing would look like FIN */

	for (int from = 0; from < 2; from++) {
		size_t sent = 0, got = 0;
		ssize_t n = 1;
		int ends[2];

		begin(d, NULL, ends);
		while (sent < MUCH && (n = send(ends[from], words + sent, MUCH - sent,
						MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
			sent += (size_t)n;
		rig_send(ends[!from], "unread", 6);
		rig_reset(ends[from]);
		while ((n = recv(ends[!from], heard + got, sizeof(heard) - got, 0)) > 0)
			got += (size_t)n;
		assert_int_equal(n, -1);
		assert_int_equal(errno, ECONNRESET);
		assert_true(got <= sent);
		assert_memory_equal(heard, words, got);
		rig_reset(ends[!from]);
	}
	rig_wait_status(d, "resources.sessions", 0);
	rig_stop(d);
}

/* The other end takes nothing: after a while it is reset as well. */
static void nobody_listens(void **state)
{
	struct daemon *d = rig_start(*state, CONF);

	for (int from = 0; from < 2; from++) {
		int ends[2];

		begin(d, NULL, ends);
		while (send(ends[from], words, MUCH, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			;
		rig_reset(ends[from]);
		rig_wait_status(d, "resources.sessions", 0);
		rig_reset(ends[!from]);
	}
	rig_stop(d);
}

/* The other end goes as well, and the daemon is told to end them. */
static void both_go(void **state)
{
	struct daemon *d = rig_start(*state, CONF);

	for (int i = 0; i < TIMES; i++) {
		int ends[2];

		begin(d, NULL, ends);
		while (send(ends[i & 1], words, MUCH, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			;
		rig_reset(ends[i & 1]);
		if (i < TIMES / 2)
			rig_reset(ends[!(i & 1)]);
		else
			ask(d, "{\"command\":\"kill\",\"forward\":\"one\"}");
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "last-words", last_words },
	{ "a-part-of-many", a_part_of_many },
	{ "nobody-listens", nobody_listens },
	{ "both-go", both_go },
};

int main(void)
{
	prepare();
	return rig_run("test_part", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
