// SPDX-License-Identifier: BSD-2-Clause
/* The processes that look up names, with look-ups that answer, fail, hang, crash and misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "daemon/syscall_filter.h"
#include "fake_dns.h"
#include "relay/resolver.h"
#include "relay/resolver_wait.h"
#include "seeded.h"

#define PATIENCE_MS 30000

static int sock = -1;

static int setup(void **state)
{
	struct account account;
	char err[256];

	(void)state;
	if (account_find(NULL, &account, err, sizeof(err)) ||
	    resolver_start(&account, FILTER_ERRNO, &sock, err, sizeof(err)))
		fail_msg("%s", err);
	return 0;
}

/* Nothing may be left over, whatever was under way. */
static int teardown(void **state)
{
	uint64_t start = clock_now_ms();

	(void)state;
	resolver_stop(sock);
	assert_true(clock_now_ms() - start < 1000);
	assert_true(waitpid(-1, NULL, 0) > 0);
	assert_int_equal(waitpid(-1, NULL, 0), -1);
	return 0;
}

static void wait_reply(struct resolver_reply *ret)
{
	uint64_t deadline = clock_now_ms() + PATIENCE_MS;
	int r;

	while (!(r = resolver_read(sock, ret))) {
		if (clock_now_ms() > deadline)
			fail_msg("no answer");
		short_pause();
	}
	if (r < 0)
		fail_msg("%s", strerror(-r));
}

static int put(int fd, uint32_t id, const char *text)
{
	return resolver_ask(fd, &(struct resolver_query){ .id = id, .text = text });
}

/* Again, if the server had to be started again. */
static void ask(const char *text, struct resolver_reply *ret)
{
	static uint32_t id;

	do {
		assert_int_equal(put(sock, ++id, text), 0);
		do
			wait_reply(ret);
		while (ret->id && ret->id != id);
	} while (!ret->id);
}

static uint32_t ask_address(const char *text)
{
	struct resolver_reply reply;

	ask(text, &reply);
	if (reply.error)
		fail_msg("%s: %s", text, reply.why);
	assert_int_equal(reply.n, 1);
	return ntohl(reply.addrs[0].in.sin_addr.s_addr);
}

static void test_answers(void **state)
{
	struct addr addrs[RESOLVER_ADDRS_MAX];
	struct resolver_reply reply;
	char text[ADDR_STRLEN];

	(void)state;
	for (unsigned int i = 0; i < FAKE_MOST; i++)
		atomic_store(&fake_dns->addrs[i], 0x0a000001 + i);
	atomic_store(&fake_dns->n, 2);
	atomic_store(&fake_dns->error, 0);
	ask("variable.test:443", &reply);
	assert_int_equal(reply.error, 0);
	assert_int_equal(reply.n, 2);
	resolver_addrs(&reply, addrs);
	assert_string_equal(addr_format((struct sockaddr *)&addrs[1].ss, addrs[1].len, text,
					sizeof(text)), "10.0.0.2:443");
	/* as many as there is room for */
	atomic_store(&fake_dns->n, FAKE_MOST);
	ask("variable.test:443", &reply);
	assert_int_equal(reply.n, RESOLVER_ADDRS_MAX);
}

static void test_errors(void **state)
{
	static const struct {
		const char *text;
		int gai, error;
		const char *why;
	} rows[] = {
		{ "variable.test:1", EAI_NONAME, -ENOENT, "host name lookup failed: Name or" },
		{ "variable.test:1", EAI_AGAIN, -EAGAIN, "host name lookup failed: Temporary" },
		{ "variable.test", 0, -EINVAL, "no port" },
		{ "unix:/x", 0, -EINVAL, "" },
		{ "", 0, -EINVAL, "empty" },
	};
	struct resolver_reply reply;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		atomic_store(&fake_dns->error, rows[i].gai);
		ask(rows[i].text, &reply);
		assert_int_equal(reply.error, rows[i].error);
		assert_int_equal(reply.n, 0);
		if (strncmp(reply.why, rows[i].why, strlen(rows[i].why)) != 0)
			fail_msg("%s: %s", rows[i].text, reply.why);
	}
	atomic_store(&fake_dns->error, 0);
}

/* All but one place is taken by look-ups without end: the last one serves the others. */
static void test_hanging(void **state)
{
	(void)state;
	fake_dns_say(0x0a000007);
	atomic_store(&fake_dns->asked, 0);
	for (uint32_t i = 0; i < RESOLVER_AT_ONCE - 1; i++)
		assert_int_equal(put(sock, 1000 + i, "hang.test:1"), 0);
	for (int i = 0; i < 50; i++)
		assert_int_equal(ask_address("variable.test:1"), 0x0a000007);
	while (atomic_load(&fake_dns->asked) < RESOLVER_AT_ONCE - 1 + 50)
		short_pause();
}

#define MANY (3 * RESOLVER_AT_ONCE)
#define HANGING 5

/* More than are looked up at a time, and some of them are not answered. */
static void test_wait(void **state)
{
	static struct question q[MANY];
	uint64_t start = clock_now_ms();

	(void)state;
	fake_dns_say(0x0a000009);
	for (size_t i = 0; i < MANY; i++)
		q[i] = (struct question){ .text = i % 9 == 4 && i / 9 < HANGING ? "hang.test:1" :
									   "variable.test:1" };
	resolver_wait(sock, q, MANY, 500);
	assert_true(clock_now_ms() - start >= 500);
	for (size_t i = 0; i < MANY; i++) {
		bool hangs = !strcmp(q[i].text, "hang.test:1");

		assert_true(q[i].done);
		/* in half a second, not everything is done on every machine */
		if (hangs || q[i].reply.error) {
			assert_int_equal(q[i].reply.error, -EAGAIN);
			assert_string_equal(q[i].reply.why, RESOLVER_SILENT);
		} else {
			assert_int_equal(ntohl(q[i].reply.addrs[0].in.sin_addr.s_addr),
					 0x0a000009);
		}
	}
	assert_int_equal(q[0].reply.error, 0);
}

/* All places are taken, and more wait, all of them without end: the others are served. */
static void test_gives_way(void **state)
{
	(void)state;
	fake_dns_say(0x0a000007);
	for (uint32_t i = 0; i < 2 * RESOLVER_AT_ONCE; i++)
		while (put(sock, 1000 + i, "hang.test:1") == -EAGAIN)
			short_pause();
	for (int i = 0; i < 3; i++)
		assert_int_equal(ask_address("variable.test:1"), 0x0a000007);
}

/* The first process of it hangs, or fails, as when a packet is lost: another one asks. */
static void test_again(void **state)
{
	(void)state;
	fake_dns_say(0x0a000007);
	atomic_store(&fake_dns->hang, 1);
	assert_int_equal(ask_address("variable.test:1"), 0x0a000007);
	atomic_store(&fake_dns->hang, 3); /* until a family is asked for by itself */
	assert_int_equal(ask_address("variable.test:1"), 0x0a000007);
}

/* More wait in the socket, until that is full; the daemon is told at once, and never waits. */
static void test_flood(void **state)
{
	uint64_t start = clock_now_ms();
	uint32_t n = 0;
	int r;

	(void)state;
	while (!(r = put(sock, ++n, "hang.test:1")))
		assert_true(n < 100000);
	assert_int_equal(r, -EAGAIN);
	assert_true(n > RESOLVER_AT_ONCE);
	assert_true(clock_now_ms() - start < PATIENCE_MS);
}

static void test_crash(void **state)
{
	struct resolver_reply reply;

	(void)state;
	ask("crash.test:1", &reply);
	assert_int_equal(reply.error, -EIO);
	assert_non_null(strstr(reply.why, "without an answer (signal "));
	fake_dns_say(0x0a000008);
	assert_int_equal(ask_address("variable.test:1"), 0x0a000008);
}

/* What a look-up can do that was taken over by an answer. */
static void test_confined(void **state)
{
	struct resolver_reply reply;

	(void)state;
	if (syscall_filter_hindrance()) {
		print_message("no seccomp filter in this build\n");
		skip();
	}
	assert_int_equal(ask_address("confined.test:1"), 0x0a000000);
	ask("exec.test:1", &reply);
	assert_int_equal(reply.error, -EIO);
	assert_non_null(strstr(reply.why, "signal 31"));
}

/* The guardian starts another server, which takes what waits in the socket. */
static void test_killed(void **state)
{
	pid_t server = (pid_t)(ask_address("server.test:1") & 0xffffff);

	(void)state;
	for (int i = 0; i < 3; i++) {
		pid_t next;

		assert_true(server > 1 && server != getpid());
		assert_int_equal(kill(server, SIGKILL), 0);
		next = (pid_t)(ask_address("server.test:1") & 0xffffff);
		assert_int_not_equal(next, server);
		server = next;
	}
}

/* Signals that are meant for the daemon reach all processes of a service. */
static void test_signals(void **state)
{
	pid_t server = (pid_t)(ask_address("server.test:1") & 0xffffff);
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 };

	(void)state;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		assert_int_equal(kill(server, signals[i]), 0);
	assert_int_equal(ask_address("server.test:1") & 0xffffff, server);
}

/* A stopped process does not see that the daemon has ended. */
static void test_outlives_nobody(void **state)
{
	pid_t daemon;
	int status;

	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	daemon = fork();
	if (!daemon) {
		setup(state);
		_exit(kill((pid_t)(ask_address("server.test:1") & 0xffffff), SIGSTOP) ? 1 : 0);
	}
	assert_int_equal(waitpid(daemon, &status, 0), daemon);
	assert_int_equal(status, 0);
	for (uint64_t end = clock_now_ms() + PATIENCE_MS; waitpid(-1, NULL, WNOHANG) >= 0;
	     short_pause())
		assert_true(clock_now_ms() < end);
	assert_int_equal(errno, ECHILD);
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

/* What is not an answer: the daemon's end does not believe it. */
static void test_malformed(void **state)
{
	struct resolver_reply good = { .id = 7, .n = 1 }, p;
	size_t len = offsetof(struct resolver_reply, addrs) + sizeof(p.addrs[0]);
	struct resolver_reply got;
	int ends[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	good.addrs[0].sa.sa_family = AF_INET6;
	for (unsigned int i = 0; i < 11; i++) {
		p = good;
		switch (i) {
		case 1: p.n = 0; break;
		case 2: p.n = 2; break;
		case 3: p.n = UINT32_MAX; break;
		case 4: p.error = -EIO; break;
		case 5: p.error = 5; break;
		case 6: memset(p.why, 'x', sizeof(p.why)); break;
		case 7: p.addrs[0].sa.sa_family = AF_UNIX; break;
		case 10: p.id = 0; break;
		default: break;
		}
		assert_int_equal(send(ends[1], &p, i == 8 ? len - 1 : i == 9 ? 3 : len, 0),
				 i == 8 ? len - 1 : i == 9 ? 3 : len);
		assert_int_equal(resolver_read(ends[0], &got), i ? -EBADMSG : 1);
	}
	assert_int_equal(resolver_read(ends[0], &got), 0);
	close(ends[1]);
	assert_int_equal(resolver_read(ends[0], &got), -ENOTCONN);
	assert_int_equal(put(ends[0], 1, "x"), -EPIPE);
	close(ends[0]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_answers), TEST(test_errors), TEST(test_hanging),
		TEST(test_flood),   TEST(test_crash),  TEST(test_confined),
		TEST(test_gives_way), TEST(test_again),
		TEST(test_killed),  TEST(test_signals), TEST(test_wait),
		cmocka_unit_test(test_outlives_nobody),
		cmocka_unit_test(test_malformed),
	};

	return cmocka_run_group_tests(tests, fake_dns_open, NULL);
}
