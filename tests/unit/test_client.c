/* SPDX-License-Identifier: BSD-2-Clause */
/* The client and what a daemon may answer, or not. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include <cmocka.h>

#include "base/exit_codes.h"
#include "capture.h"
#include "cli/client.h"
#include "client_rig.h"
#include "temp_dir.h"

#define PATIENCE_MS 10000

enum manner {
	ANSWER,       /* the whole text, then close */
	BYTE_BY_BYTE, /* as many packets as there are bytes */
	KEEP_OPEN,    /* the text, then wait until the client leaves */
	ENDLESS,      /* the text again and again until the client leaves */
};

/* A daemon that serves one client. */
struct daemon {
	char dir[64], path[96];
	const char *answer;
	enum manner manner;
	char request[128];
	int listener;
	pthread_t thread;
};

static bool wait_readable(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	return poll(&pfd, 1, PATIENCE_MS) == 1;
}

static bool send_all(int fd, const char *text, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		text += n;
		len -= (size_t)n;
	}
	return true;
}

static void send_answer(const struct daemon *d, int fd)
{
	size_t len = strlen(d->answer);
	char c;

	switch (d->manner) {
	case ANSWER:
		send_all(fd, d->answer, len);
		break;
	case BYTE_BY_BYTE:
		for (size_t i = 0; i < len; i++)
			send_all(fd, d->answer + i, 1);
		break;
	case KEEP_OPEN:
		send_all(fd, d->answer, len);
		if (wait_readable(fd) && read(fd, &c, 1) != 0)
			abort(); /* the client has nothing more to say */
		break;
	case ENDLESS:
		while (send_all(fd, d->answer, len))
			;
		break;
	}
}

static void *serve(void *arg)
{
	struct daemon *d = arg;
	size_t len = 0;
	int fd;

	if (!wait_readable(d->listener))
		return NULL;
	fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
	while (!memchr(d->request, '\n', len) && len < sizeof(d->request) - 1 &&
	       wait_readable(fd)) {
		ssize_t n = read(fd, d->request + len, sizeof(d->request) - 1 - len);

		if (n <= 0)
			break;
		len += (size_t)n;
	}
	send_answer(d, fd);
	close(fd);
	return NULL;
}

static void daemon_start(struct daemon *d, const char *answer, enum manner manner)
{
	struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	*d = (struct daemon){ .answer = answer, .manner = manner };
	assert_int_equal(temp_dir_make(d->dir), 0);
	snprintf(d->path, sizeof(d->path), "%s/control.sock", d->dir);
	memcpy(un.sun_path, d->path, sizeof(d->path));
	d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(d->listener, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	assert_int_equal(bind(d->listener, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_int_equal(listen(d->listener, 1), 0);
	assert_int_equal(pthread_create(&d->thread, NULL, serve, d), 0);
}

static void daemon_stop(struct daemon *d)
{
	pthread_join(d->thread, NULL);
	close(d->listener);
	unlink(d->path);
	rmdir(d->dir);
}

/* Let the command NAME talk to a daemon that sends ANSWER; JSON: with --json. */
static int ask(const char *name, bool json, const char *answer, enum manner manner,
	       char out[OUT_MAX], char err[OUT_MAX])
{
	char request[64];
	struct daemon d;
	int code;

	daemon_start(&d, answer, manner);
	code = RUN(out, err, name, "--control", d.path, json ? "--json" : NULL);
	daemon_stop(&d);
	snprintf(request, sizeof(request), "{\"command\":\"%s\"}\n", name);
	assert_string_equal(d.request, request);
	return code;
}

/* The daemon answers, but not well. */
static void expect_failure(const char *name, const char *answer, const char *complaint)
{
	char out[OUT_MAX], err[OUT_MAX];

	assert_int_equal(ask(name, false, answer, ANSWER, out, err), EXIT_CODE_FAILURE);
	assert_string_equal(out, "");
	if (!strstr(err, complaint) || strncmp(err, "culvert: ", 9) != 0)
		fail_msg("\"%s\" lacks \"%s\"", err, complaint);
	assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
}

static const char sessions_answer[] =
	"{\"sessions\":[{\"id\":17,\"forward\":\"db\",\"client\":\"10.0.1.2:41234\","
	"\"upstream\":\"10.0.2.2:9001\","
	"\"state\":\"open\",\"age_ms\":5300,\"flows\":[]}]}\n";

static const char sessions_text[] =
	"ID  FORWARD  CLIENT          UPSTREAM        AGE  BYTES  HAND-OVERS  MAX BACKLOG  STATE\n"
	"17  db       10.0.1.2:41234  10.0.2.2:9001  5.3s                                  open\n";

static void test_answers(void **state)
{
	static const enum manner manners[] = { ANSWER, BYTE_BY_BYTE, KEEP_OPEN };
	char out[OUT_MAX], err[OUT_MAX];

	/* However the bytes come, and with or without the end of file, or of line. */
	(void)state;
	for (size_t i = 0; i < sizeof(manners) / sizeof(manners[0]); i++) {
		assert_int_equal(ask("sessions", false, sessions_answer, manners[i], out, err),
				 EXIT_CODE_OK);
		assert_string_equal(out, sessions_text);
		assert_string_equal(err, "");
	}
	assert_int_equal(ask("sessions", false, "{\"sessions\":[]}", ANSWER, out, err), 0);
	assert_string_equal(out, "No sessions.\n");
	assert_int_equal(ask("status", false, "{\"pid\":4711}\n", ANSWER, out, err), 0);
	assert_non_null(strstr(out, "culvert ?, pid 4711, up ?"));
	assert_non_null(strstr(out, "\nErrors\n"));
	assert_null(strstr(out, "\nForwards\n")); /* as with --brief */
}

static void test_json(void **state)
{
	static const char controls[] = "{ \"a\":\"/\\u001b\x1b\x7f\xc2\x9b\xc3\xa9\", "
				       "\"b\":18446744073709551615}\n";
	char out[OUT_MAX], err[OUT_MAX];

	(void)state;
	assert_int_equal(ask("sessions", true, sessions_answer, ANSWER, out, err), 0);
	assert_string_equal(out, sessions_answer);
	assert_int_equal(ask("status", true, "{\r\n", ANSWER, out, err), EXIT_CODE_FAILURE);
	assert_int_equal(ask("status", true, controls, ANSWER, out, err), 0);
	assert_string_equal(out, "{\"a\":\"/\\u001b\\u001b\\u007f\\u009b\xc3\xa9\","
				 "\"b\":18446744073709551615}\n");
	assert_int_equal(ask("status", true, "{\"error\":\"no\"}", ANSWER, out, err),
			 EXIT_CODE_FAILURE);
	assert_string_equal(out, "");
}

/* Found by fuzz_view: bytes that are no UTF-8 went to the terminal as they were, 0x9b too. */
static void test_json_without_utf8(void **state)
{
	static const struct {
		const char *bytes, *shown;
	} cases[] = {
		{ "\xfe\xff\xff\xc3", "\\ufffd\\ufffd\\ufffd\\ufffd" },
		{ "\x9b" "2J", "\\ufffd2J" },
		{ "\xc0\x9b", "\\ufffd\\ufffd" },             /* overlong */
		{ "\xe0\x82\x9b", "\\ufffd\\ufffd\\ufffd" },
		{ "\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd" }, /* half a pair of UTF-16 */
		{ "\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd" },
		{ "\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80" },
	};
	char answer[64], due[64], out[OUT_MAX], err[OUT_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(answer, sizeof(answer), "{\"a\":\"%s\"}\n", cases[i].bytes);
		snprintf(due, sizeof(due), "{\"a\":\"%s\"}\n", cases[i].shown);
		assert_int_equal(ask("status", true, answer, ANSWER, out, err), 0);
		assert_string_equal(out, due);
	}
}

static void test_bad_answers(void **state)
{
	static const char *const not_json[] = {
		"\n",
		"hello\n",
		"{\"sessions\":[\n",
		"{\"sessions\":[]} x\n",
		"[]\n",
		"1\n",
		"null\n",
		"\"sessions\"\n",
		"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}\n",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(not_json) / sizeof(not_json[0]); i++)
		expect_failure("sessions", not_json[i], "is not JSON");
	expect_failure("sessions", "{\"sessions\":[", "is cut off");
	expect_failure("sessions", "{\"sessions\":{}}\n", "this is no answer to sessions");
	expect_failure("sessions", "{\"pid\":1}\n", "this is no answer to sessions");
	expect_failure("sessions", "{\"error\":\"bad \\u001b\\n command\"}\n",
		       "the daemon says: bad \\x1b\\n command\n");
	expect_failure("sessions", "{\"error\":{\"code\":\"x\",\"message\":\"bad \\u001b\"}}\n",
		       "the daemon says: bad \\x1b\n");
	expect_failure("status", "{\"error\":5}\n", "the daemon says: ?\n");
	expect_failure("status", "{\"error\":{\"message\":{}}}\n", "the daemon says: ?\n");
	expect_failure("status", "{\"error\":{\"code\":\"x\"}}\n", "the daemon says: ?\n");
}

static void test_endless_answer(void **state)
{
	static char text[1 << 20];
	char out[OUT_MAX], err[OUT_MAX];

	(void)state;
	memset(text, ' ', sizeof(text) - 1);
	assert_int_equal(ask("status", false, text, ENDLESS, out, err), EXIT_CODE_FAILURE);
	assert_non_null(strstr(err, "longer than 64 MiB"));
}

static void test_silent_daemon(void **state)
{
	char out[OUT_MAX], err[OUT_MAX];
	struct timespec begin, end;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	assert_int_equal(ask("sessions", false, "{", KEEP_OPEN, out, err),
			 EXIT_CODE_NO_DAEMON);
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_non_null(strstr(err, strerror(ETIMEDOUT)));
	assert_in_range(end.tv_sec - begin.tv_sec, 4, 9);
}

static void test_no_answer(void **state)
{
	char out[OUT_MAX], err[OUT_MAX];

	(void)state;
	assert_int_equal(ask("sessions", false, "", ANSWER, out, err), EXIT_CODE_NO_DAEMON);
	assert_non_null(strstr(err, "closed without an answer"));
}

static void test_no_daemon(void **state)
{
	char out[OUT_MAX], err[OUT_MAX];
	struct daemon d;

	(void)state;
	assert_int_equal(RUN(out, err, "status", "--control=/proc/nonexistent/x"),
			 EXIT_CODE_NO_DAEMON);
	assert_string_equal(out, "");
	assert_non_null(strstr(err, "culvert: /proc/nonexistent/x: cannot reach the daemon: "
				    "No such file or directory (is `culvert run` running"));

	/* The socket is there, but nobody listens any more. */
	daemon_start(&d, "{}", ANSWER);
	RUN(out, err, "status", "--control", d.path);
	pthread_join(d.thread, NULL);
	close(d.listener);
	assert_int_equal(RUN(out, err, "status", "--control", d.path),
			 EXIT_CODE_NO_DAEMON);
	assert_non_null(strstr(err, strerror(ECONNREFUSED)));
	unlink(d.path);
	rmdir(d.dir);
}

static void test_forbidden(void **state)
{
	bool root = geteuid() == 0;
	char out[OUT_MAX], err[OUT_MAX];
	struct daemon d;
	int code;

	(void)state;
	daemon_start(&d, "{}", ANSWER);
	chmod(d.path, 0);
	if (root) /* who may connect to any socket */
		assert_int_equal(seteuid(65534), 0);
	code = RUN(out, err, "status", "--control", d.path);
	if (root)
		assert_int_equal(seteuid(0), 0);
	chmod(d.path, 0600);
	assert_int_equal(code, EXIT_CODE_FAILURE); /* there is a daemon */
	assert_non_null(strstr(err, "try again as root"));
	RUN(out, err, "status", "--control", d.path);
	daemon_stop(&d);
}

static void test_full_disk(void **state)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
	struct capture capture;
	char err[OUT_MAX];
	struct daemon d;
	int code, saved;
	char *argv[4] = { (char *)"status", (char *)"--control", d.path, NULL };

	(void)state;
	if (full < 0)
		skip(); /* no /dev/full here */
	daemon_start(&d, "{}", ANSWER);
	fflush(stdout);
	saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	dup2(full, STDOUT_FILENO);
	capture_begin(&capture, STDERR_FILENO);
	code = client_run(3, argv);
	__fpurge(stdout);
	clearerr(stdout);
	capture_end(&capture, err, sizeof(err));
	dup2(saved, STDOUT_FILENO);
	close(saved);
	close(full);
	daemon_stop(&d);
	assert_int_equal(code, EXIT_CODE_FAILURE);
	assert_non_null(strstr(err, "cannot write the answer"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_json_without_utf8),
		cmocka_unit_test(test_bad_answers),
		cmocka_unit_test(test_endless_answer),
		cmocka_unit_test(test_silent_daemon),
		cmocka_unit_test(test_no_answer),
		cmocka_unit_test(test_no_daemon),
		cmocka_unit_test(test_forbidden),
		cmocka_unit_test(test_full_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
