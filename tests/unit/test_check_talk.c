// SPDX-License-Identifier: BSD-2-Clause
/* Questions and answers of health checks. */
#include <errno.h>
#include <string.h>

#include "unit.h"
#include "base/text.h"
#include "relay/check_talk.h"

TEST(test_escapes)
{
	static const struct {
		const char *text, *bytes;
		int len;
	} cases[] = {
		{ "", "", 0 },
		{ "PING\\r\\n", "PING\r\n", 6 },
		{ "a\\tb\\\\c\\\"", "a\tb\\c\"", 6 },
		{ "\\x00\\x1Fg", "\0\x1fg", 3 },
		{ "\\0\\377\\1018", "\0\377A8", 4 },
		{ "\xc3\xa9", "\xc3\xa9", 2 },
	};
	static const char *const bad[] = { "\\", "a\\q", "\\x", "\\xg", "\\8", "\\400", "\\-1" };
	char to[16];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(text_unescape(cases[i].text, to), cases[i].len);
		assert_memory_equal(to, cases[i].bytes, (size_t)cases[i].len);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (text_unescape(bad[i], to) != -EINVAL)
			fail_msg("\"%s\"", bad[i]);
}

static void expect_verdict(const struct forward_conf *fc, const char *answer, bool ended,
			   enum check_verdict wanted, const char *wanted_why)
{
	char why[CHECK_WHY_LEN] = "";
	enum check_verdict got = check_judge(fc, answer, strlen(answer), ended, why);

	if (got != wanted || strcmp(why, wanted_why) != 0)
		fail_msg("\"%s\": %d, \"%s\"", answer, (int)got, why);
}

TEST(test_http)
{
	const struct forward_conf fc = { .check_http = "/primary", .check_status = "200-399" };
	const struct forward_conf one = { .check_http = "/", .check_status = "204" };
	const struct forward_conf more = { .check_http = "/",
					   .check_status = "200",
					   .check_send = "X: y\\r\\n",
					   .check_expect = "well" };
	const struct forward_conf host = { .check_http = "/",
					   .check_send = "X: y\\r\\nhost: a.test" };
	char question[CHECK_BYTES];

	assert_true(check_talks(&fc));
	question[check_question(&fc, "db:8008", question)] = '\0';
	assert_string_equal(question, "GET /primary HTTP/1.1\r\nHost: db:8008\r\n"
				      "User-Agent: culvert\r\nAccept: */*\r\n"
				      "Connection: close\r\n\r\n");
	expect_verdict(&fc, "", false, CHECK_MORE, "");
	expect_verdict(&fc, "HTTP/1.1 20", false, CHECK_MORE, "");
	expect_verdict(&fc, "HTTP/1.1 200 OK\r\n", false, CHECK_GOOD, "HTTP 200");
	expect_verdict(&fc, "HTTP/1.0 302 Found\r\nLoc", false, CHECK_GOOD, "HTTP 302");
	expect_verdict(&fc, "HTTP/1.1 503 x\n", false, CHECK_BAD, "HTTP 503");
	expect_verdict(&fc, "HTTP/1.1 200", true, CHECK_GOOD, "HTTP 200");
	expect_verdict(&fc, "", true, CHECK_BAD, "no answer");
	expect_verdict(&fc, "SSH-2.0\r\n", false, CHECK_BAD, "no HTTP");
	expect_verdict(&one, "HTTP/1.1 200 OK\r\n", false, CHECK_BAD, "HTTP 200");
	expect_verdict(&one, "HTTP/1.1 204 -\r\n", false, CHECK_GOOD, "HTTP 204");
	question[check_question(&more, "db", question)] = '\0';
	assert_non_null(strstr(question, "\r\nAccept: */*\r\nConnection: close\r\nX: y\r\n\r\n"));
	question[check_question(&host, "db", question)] = '\0';
	assert_string_equal(question, "GET / HTTP/1.1\r\nUser-Agent: culvert\r\nAccept: */*\r\n"
				      "Connection: close\r\nX: y\r\nhost: a.test\r\n\r\n");
	expect_verdict(&more, "HTTP/1.1 200 OK\r\n", false, CHECK_MORE, "HTTP 200");
	expect_verdict(&more, "HTTP/1.1 200 OK\r\n\r\nwell", false, CHECK_GOOD,
		       "answers as expected");
	expect_verdict(&more, "HTTP/1.1 200 OK\r\n\r\n", true, CHECK_BAD, "answers otherwise");
}

TEST(test_words)
{
	const struct forward_conf both = { .check_send = "PING\\r\\n",
					   .check_expect = "\\r\\n+PONG" };
	const struct forward_conf any = { .check_send = "x" };
	const struct forward_conf hears = { .check_expect = "220 " };
	char question[CHECK_BYTES], full[CHECK_BYTES + 1];

	assert_int_equal(check_question(&both, "h:1", question), 6);
	assert_int_equal(check_question(&hears, "h:1", question), 0);
	expect_verdict(&both, "x\r\n+PO", false, CHECK_MORE, "");
	expect_verdict(&both, "x\r\n+PONG", false, CHECK_GOOD, "answers as expected");
	expect_verdict(&both, "+PONG", true, CHECK_BAD, "answers otherwise");
	expect_verdict(&any, "", false, CHECK_MORE, "");
	expect_verdict(&any, "y", false, CHECK_GOOD, "answers as expected");
	expect_verdict(&hears, "", true, CHECK_BAD, "no answer");
	memset(full, 'a', CHECK_BYTES);
	full[CHECK_BYTES] = '\0';
	expect_verdict(&hears, full, false, CHECK_BAD, "answers otherwise");
}

static void expect_advice(const char *line, unsigned int said, bool down, enum server_order order,
			  unsigned int percent)
{
	struct check_advice a = check_read_advice(line);

	if (a.said != said || a.down != down || a.order != order || a.percent != percent)
		fail_msg("\"%s\": %u, %d, %d, %u", line, (unsigned int)a.said, a.down, (int)a.order,
			 a.percent);
}

TEST(test_agent)
{
	const unsigned int up = ADVICE_STATE, order = ADVICE_ORDER, weight = ADVICE_WEIGHT;

	expect_advice("up\n", up, false, ORDER_READY, 0);
	expect_advice("down # disk is full\r\n", up, true, ORDER_READY, 0);
	expect_advice("up 50%\n", up | weight, false, ORDER_READY, 50);
	expect_advice("drain", order, false, ORDER_DRAIN, 0);
	expect_advice("0%", weight, false, ORDER_READY, 0);
	expect_advice("ready,up, 75% maxconn:30\n", order | up | weight | ADVICE_IGNORED, false,
		      ORDER_READY, 75);
	expect_advice("MaxConn:30", ADVICE_IGNORED, false, ORDER_READY, 0);
	expect_advice("DOWN#disk up\n", up, true, ORDER_READY, 0);
	expect_advice("Up Stopped", up, true, ORDER_READY, 0);
	expect_advice("MAINT # down", order, false, ORDER_DOWN, 0);
	expect_advice("maint\nup\n", order, false, ORDER_DOWN, 0);
	expect_advice("upper 5 %", 0, false, ORDER_READY, 0);
	expect_advice("99999999999999999999%", weight, false, ORDER_READY, 10000);
	expect_advice("", 0, false, ORDER_READY, 0);
}

UNIT_MAIN(NULL, NULL)
