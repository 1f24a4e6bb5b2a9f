/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/sockios.h>

#include <cmocka.h>

#include "control_rig.h"
#include "seeded.h"

/* Clients of the control socket: good ones, clumsy ones and hostile ones. */

#define STATUS "{\"command\":\"status\"}"
#define REQUEST_ROOM 4095 /* bytes of a request, newline included */

static void test_answers(void **state)
{
	static const struct {
		const char *request, *key;
	} cases[] = {
		{ STATUS "\n", "text" },
		{ " { \"command\" : \"status\" } \n", "text" },
		{ "status\n", "text" },
		{ "{\"command\":\"kill\",\"id\":17}\n", "text" },
		{ "{ \"command\" : \"status\", \"more\": [1] } \n", "error" },
		{ "{\"command\":\"st\\u0061tus\"}\n", "text" },
		{ STATUS "\r\n", "text" },
		{ STATUS "\nanother line\n" STATUS "\n", "text" },
		{ LARGE "\n", "x" },
		{ "{\"command\":\"\"}\n", "error" },
		{ "{\"command\":\"Status\"}\n", "error" },
		{ "{\"command\":\"status \"}\n", "error" },
	};
	struct rig *rig = *state;
	char buf[1024];

	rig->large = 500;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_line(buf, ask(rig, cases[i].request, strlen(cases[i].request), buf,
				     sizeof(buf)), cases[i].key);
}

static void test_garbage(void **state)
{
	static const char *const lines[] = {
		"", " ", "statu", "status ", " status", "STATUS", "status\tx", "GET / HTTP/1.1\r",
		"{", "}", "{}", "[]", "null", "true", "17",
		"\"status\"", "[\"status\"]", "{\"command\"}", "{\"command\":}",
		"{\"command\":null}", "-",
		"{\"command\":1}", "{\"command\":true}", "{\"command\":[\"status\"]}",
		"{\"command\":{\"status\":1}}", "{\"Command\":\"status\"}",
		"{\"command\":\"status\"",
		"{\"command\":\"status", "{\"command\":\"\\ud800\"}", "{\"command\":\"\xff\xfe\"}",
		"\xff\xfe\xfd", "\x01\x02\x7f", "%s%n%s%n", "{\"command\":\"%n%s\"}",
	};
	struct rig *rig = *state;
	char line[256], buf[1024];

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		snprintf(line, sizeof(line), "%s\n", lines[i]);
		expect_line(buf, ask(rig, line, strlen(line), buf, sizeof(buf)), "error");
	}
	expect_alive(rig);
}

/* As deep as the room allows: a parser that recurses must not run out of stack. */
static void test_nesting(void **state)
{
	static const char *const openings[] = { "[", "{\"a\":", "{\"command\":[" };
	struct rig *rig = *state;
	char line[REQUEST_ROOM + 1], buf[1024];

	for (size_t i = 0; i < 3; i++) {
		size_t n = 0, step = strlen(openings[i]);

		for (; n + step < REQUEST_ROOM; n += step)
			memcpy(line + n, openings[i], step);
		line[n++] = '\n';
		expect_line(buf, ask(rig, line, n, buf, sizeof(buf)), "error");
	}
	expect_alive(rig);
}

/* NUL bytes anywhere: one line is answered, and it is JSON. */
static void test_nul_bytes(void **state)
{
	static const char whole[] = STATUS "\n";
	struct rig *rig = *state;
	char line[sizeof(whole)], buf[1024];
	size_t len;

	for (size_t at = 0; at < strlen(STATUS); at++) {
		memcpy(line, whole, sizeof(whole));
		line[at] = '\0';
		expect_line(buf, ask(rig, line, strlen(whole), buf, sizeof(buf)), "error");
	}
	memset(line, 0, sizeof(line));
	line[sizeof(line) - 1] = '\n';
	expect_line(buf, ask(rig, line, sizeof(line), buf, sizeof(buf)), "error");
	/* behind a request, or inside the name: answered either way */
	len = ask(rig, STATUS "\0junk\n", sizeof(STATUS "\0junk\n") - 1, buf, sizeof(buf));
	expect_line(buf, len, strstr(buf, "error") ? "error" : "text");
	len = ask(rig, "{\"command\":\"status\\u0000x\"}\n", 28, buf, sizeof(buf));
	expect_line(buf, len, strstr(buf, "error") ? "error" : "text");
}

static void test_random_garbage(void **state)
{
	struct seeded r = { 7 };
	struct rig *rig = *state;
	char line[512], buf[1024];

	rig->large = 20;
	for (int i = 0; i < 300; i++) {
		size_t n = seeded_size(&r, 9);

		if (i % 2) { /* a request with a few wrong bytes */
			n = sizeof(STATUS) - 1;
			memcpy(line, STATUS, n);
			for (size_t k = seeded_below(&r, 4); k; k--)
				line[seeded_below(&r, n)] = (char)seeded_next(&r);
		} else {
			for (size_t k = 0; k < n; k++)
				line[k] = (char)seeded_next(&r);
		}
		line[n++] = '\n';
		n = ask(rig, line, n, buf, sizeof(buf));
		expect_line(buf, n, strstr(buf, "error") ? "error" : "text");
	}
}

/* A request in many pieces is as good as one in one. */
static void test_byte_by_byte(void **state)
{
	static const char request[] = STATUS "\n";
	struct rig *rig = *state;
	char buf[256];
	int fd = dial(rig->path);

	for (size_t i = 0; i < strlen(request); i++) {
		say(fd, request + i, 1);
		short_pause();
	}
	expect_line(buf, hear(fd, buf, sizeof(buf)), "text");
}

/* Clients that go away at any point of their request. */
static void test_half_a_request(void **state)
{
	static const char request[] = STATUS "\n";
	struct rig *rig = *state;
	char buf[256];

	for (size_t n = 0; n <= strlen(request); n += 4) {
		int fd = dial(rig->path);

		say(fd, request, n);
		close(fd);
	}
	expect_alive(rig);
	/* a client that has no more to say still listens: all that is missing may be the newline */
	for (size_t n = 0; n < strlen(request); n++) {
		int fd = dial(rig->path);

		say(fd, request, n);
		shutdown(fd, SHUT_WR);
		expect_line(buf, hear(fd, buf, sizeof(buf)),
			    n == strlen(STATUS) ? "text" : "error");
	}
	expect_alive(rig);
}

/* As long as a request may be, and too long by one byte. */
static void test_longest_request(void **state)
{
	char line[REQUEST_ROOM + 1], buf[1024];
	struct rig *rig = *state;
	size_t len;

	memset(line, ' ', sizeof(line));
	memcpy(line, STATUS, strlen(STATUS));
	line[REQUEST_ROOM - 1] = '\n';
	expect_line(buf, ask(rig, line, REQUEST_ROOM, buf, sizeof(buf)), "text");

	line[REQUEST_ROOM - 1] = ' ';
	line[REQUEST_ROOM] = '\n';
	len = ask(rig, line, REQUEST_ROOM + 1, buf, sizeof(buf));
	if (len) {
		expect_line(buf, len, "error");
		assert_non_null(strstr(buf, "at most 4094 bytes and a newline"));
	}
	expect_alive(rig);
}

static void test_endless_request(void **state)
{
	struct rig *rig = *state;
	char block[10000], buf[1024];
	int fd = dial(rig->path);
	size_t len;

	memset(block, '[', sizeof(block));
	for (int i = 0; i < 30; i++)
		say(fd, block, sizeof(block)); /* until the daemon closes: say() gives up then */
	len = hear(fd, buf, sizeof(buf));
	if (len)
		expect_line(buf, len, "error");
	expect_alive(rig);
}

/* What would be right if it were not a megabyte: it is refused, and no part of it is taken. */
static void test_huge_json(void **state)
{
	static char line[1 << 20];
	struct rig *rig = *state;
	struct json_object *o, *error, *code = NULL;
	char buf[1024];
	size_t n = (size_t)sprintf(line, "{\"command\":\"kill\",\"id\":[1");

	while (n < sizeof(line) - 100)
		n += (size_t)sprintf(line + n, ",%zu", n);
	n += (size_t)sprintf(line + n, "]}\n");
	expect_line(buf, ask(rig, line, n, buf, sizeof(buf)), "error");
	o = json_tokener_parse(buf);
	assert_true(json_object_object_get_ex(o, "error", &error));
	assert_true(json_object_object_get_ex(error, "code", &code));
	assert_string_equal(json_object_get_string(code), "too-long");
	json_object_put(o);
	expect_alive(rig);
}

/* Many at once wait their turn. */
static void test_many_clients(void **state)
{
	struct rig *rig = *state;
	int fds[16];
	char buf[256];

	for (int i = 0; i < 16; i++)
		fds[i] = dial(rig->path);
	for (int i = 0; i < 16; i++)
		say(fds[i], STATUS "\n", strlen(STATUS "\n"));
	for (int i = 0; i < 16; i++)
		expect_line(buf, hear(fds[i], buf, sizeof(buf)), "text");
}

/* More than have places, and than fit into the backlog of listen(2), all at once. */
#define CROWD 1000

static void test_crowd(void **state)
{
	struct rig *rig = *state;
	struct rlimit old, wide;
	static int fds[CROWD];
	char buf[256];

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	if (old.rlim_max < CROWD + 200) {
		print_message("skip test_crowd: it needs %d descriptors\n", CROWD + 200);
		skip();
	}
	wide = old;
	if (wide.rlim_cur < CROWD + 200)
		wide.rlim_cur = CROWD + 200;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &wide), 0);
	for (int i = 0; i < CROWD; i++) { /* each one waits for room in the backlog */
		fds[i] = dial(rig->path);
		say(fds[i], STATUS "\n", strlen(STATUS "\n"));
	}
	for (int i = 0; i < CROWD; i++)
		expect_line(buf, hear(fds[i], buf, sizeof(buf)), "text");
	expect_alive(rig);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

/* --- no descriptors --- */

#define HUNGRY 3

/* Take every descriptor of this process, the daemon's too, below a limit of ROOM. */
static int take_all(int *fds, int room)
{
	struct rlimit tight;
	int n = 0;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &tight), 0);
	tight.rlim_cur = (rlim_t)room;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	while (n < room && (fds[n] = dup(STDERR_FILENO)) >= 0)
		n++;
	assert_int_equal(errno, EMFILE);
	return n;
}

/* The answer, without closing FD: that would be a descriptor more. */
static size_t hear_open(int fd, char *buf, size_t size)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t len = 0;
	ssize_t n;

	while (poll(&p, 1, PATIENCE_MS) == 1 && (n = recv(fd, buf + len, size - len, 0)) > 0)
		len += (size_t)n;
	return len;
}

/* Sessions have taken all descriptors: clients are answered nevertheless, one after the other. */
static void test_no_descriptors(void **state)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct rig *rig = *state;
	int fds[HUNGRY], taken[128], n;
	size_t len[HUNGRY];
	char buf[HUNGRY][256];
	unsigned int before = count_descriptors();
	struct rlimit old;

	strcpy(un.sun_path, rig->path);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	for (int i = 0; i < HUNGRY; i++)
		assert_true((fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
	n = take_all(taken, 128);
	for (int i = 0; i < HUNGRY; i++) {
		assert_int_equal(connect(fds[i], (struct sockaddr *)&un, sizeof(un)), 0);
		say(fds[i], STATUS "\n", strlen(STATUS "\n"));
	}
	for (int i = 0; i < HUNGRY; i++)
		len[i] = hear_open(fds[i], buf[i], sizeof(buf[i]) - 1);
	while (n)
		close(taken[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	for (int i = 0; i < HUNGRY; i++) {
		buf[i][len[i]] = '\0';
		expect_line(buf[i], len[i], "text");
		close(fds[i]);
	}
	expect_alive(rig);
	assert_int_equal(count_descriptors(), before); /* the spare one is there again */
}

/* --- large answers --- */

static void test_large_answers(void **state)
{
	static const size_t sizes[] = { 4096, 65536, 212992, 300001, 3000000 };
	static const char request[] = LARGE "\n";
	static char buf[3000010];
	struct rig *rig = *state;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t len;

		rig->large = sizes[i];
		len = ask(rig, request, strlen(request), buf, sizeof(buf));
		assert_true(len >= sizes[i]); /* the newline: next test */
		assert_int_equal(buf[sizes[i] - 1], '}');
		assert_int_equal(strspn(buf + strlen("{\"x\":\""), "x"), sizes[i] - 8);
	}
}

/* Clients that go away with a part of their answer, or none of it. */
static void test_leaves_with_a_part(void **state)
{
	static const size_t parts[] = { 0, 1, 100, 65536, 250000, 2999999 };
	static const char request[] = LARGE "\n";
	static char buf[3000010];
	struct rig *rig = *state;

	rig->large = 3000000;
	for (size_t i = 0; i < 5 * sizeof(parts) / sizeof(parts[0]); i++) {
		size_t part = parts[i % (sizeof(parts) / sizeof(parts[0]))];
		int fd = dial(rig->path);

		say(fd, request, strlen(request));
		if (part)
			assert_true(recv(fd, buf, part, MSG_WAITALL) > 0);
		close(fd);
	}
	expect_alive(rig);
	assert_int_equal(ask(rig, request, strlen(request), buf, sizeof(buf)), rig->large + 1);
}

/* What a unix socket takes in one write: just so much that not one byte more fits. */
static size_t socket_capacity(void)
{
	static char block[1 << 22];
	int fds[2];
	ssize_t n;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	n = send(fds[0], block, sizeof(block), 0);
	assert_true(n > 1000 && n < (ssize_t)sizeof(block));
	close(fds[0]);
	close(fds[1]);
	return (size_t)n;
}

/* A client that begins to read only when the daemon has nothing left to do, or waits for it. */
static size_t hear_late(int fd, size_t answer_len, char *buf, size_t size)
{
	uint64_t until = clock_now_ms() + PATIENCE_MS;
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };
	int unread = 0;

	while ((size_t)unread < answer_len && clock_now_ms() < until) {
		assert_int_equal(ioctl(fd, SIOCINQ, &unread), 0);
		short_pause();
	}
	assert_true((size_t)unread >= answer_len);
	poll(&p, 1, 300);
	return hear(fd, buf, size);
}

/* An answer that fills the socket to the last byte still ends with a newline. */
static void test_newline_after_full_socket(void **state)
{
	static const char request[] = LARGE "\n";
	static char buf[1 << 22];
	struct rig *rig = *state;
	size_t len;
	int fd;

	rig->large = socket_capacity();
	fd = dial(rig->path);
	say(fd, request, strlen(request));
	len = hear_late(fd, rig->large, buf, sizeof(buf));
	assert_int_equal(len, rig->large + 1);
	assert_int_equal(buf[len - 1], '\n');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_RIG(test_answers),
		ON_RIG(test_garbage),
		ON_RIG(test_nesting),
		ON_RIG(test_nul_bytes),
		ON_RIG(test_random_garbage),
		ON_RIG(test_byte_by_byte),
		ON_RIG(test_half_a_request),
		ON_RIG(test_longest_request),
		ON_RIG(test_endless_request),
		ON_RIG(test_huge_json),
		ON_RIG(test_many_clients),
		ON_RIG(test_crowd),
		ON_RIG(test_no_descriptors),
		ON_RIG(test_large_answers),
		ON_RIG(test_leaves_with_a_part),
		ON_RIG(test_newline_after_full_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
