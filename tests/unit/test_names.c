// SPDX-License-Identifier: BSD-2-Clause
/* The thread that keeps addresses up to date, with a real resolver below it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/log.h"
#include "fake_dns.h"
#include "relay/names.h"
#include "seeded.h"

#define PATIENCE_MS 60000
#define SOON 100      /* ms */
#define NEVER 3600000 /* in this test */

struct rig {
	struct names *names;
	struct endpoint conf, listen;
	struct upstream u;
	_Atomic unsigned int told;
};

static void parse(const char *text, bool passive, struct endpoint *ret)
{
	char err[256];

	if (endpoint_parse(text, passive, ret, err, sizeof(err)))
		fail_msg("%s: %s", text, err);
}

static void tell(void *arg)
{
	atomic_fetch_add(&((struct rig *)arg)->told, 1);
}

/* CONF has been parsed. */
static void rig_begin(struct rig *rig, unsigned int interval_ms)
{
	struct account account;
	char err[256];

	parse("10.0.0.99:80", true, &rig->listen);
	if (account_find(NULL, &account, err, sizeof(err)) ||
	    names_open(&account, FILTER_ERRNO, &rig->names, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(upstream_open(&rig->u, &rig->conf, &rig->listen, interval_ms,
				       clock_now_ms()), 0);
	assert_int_equal(names_add(rig->names, &rig->u), 0);
	assert_int_equal(names_start(rig->names, tell, rig), 0);
}

/* At the start it is 10.0.0.1. */
static void rig_open(struct rig *rig, const char *upstream, unsigned int interval_ms)
{
	memset(rig, 0, sizeof(*rig));
	fake_dns_say(0x0a000001);
	parse(upstream, false, &rig->conf);
	rig_begin(rig, interval_ms);
}

/* It has no address. */
static void rig_open_unknown(struct rig *rig, const char *upstream)
{
	char err[256];

	memset(rig, 0, sizeof(*rig));
	assert_int_equal(endpoint_parse_offline(upstream, false, &rig->conf, err, sizeof(err)), 0);
	rig_begin(rig, NEVER);
}

/* Of a test that has failed some may be left for good. */
static void wait_children(void)
{
	uint64_t deadline = clock_now_ms() + PATIENCE_MS;
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0) {
		if (clock_now_ms() > deadline)
			fail_msg("processes of the resolver are left");
		if (!pid)
			short_pause();
	}
}

static void rig_close(struct rig *rig)
{
	names_close(rig->names);
	upstream_close(&rig->u);
	endpoint_close(&rig->conf);
	endpoint_close(&rig->listen);
	wait_children();
}

static bool is_at(struct upstream *u, const char *text)
{
	struct addr_list *list = upstream_get(u);
	char buf[ADDR_LIST_STRLEN];
	bool is = !strcmp(addr_list_format(list, buf, sizeof(buf)), text);

	addr_list_put(list);
	return is;
}

static void wait_at(struct upstream *u, const char *text)
{
	uint64_t deadline = clock_now_ms() + PATIENCE_MS;

	while (!is_at(u, text)) {
		if (clock_now_ms() > deadline)
			fail_msg("it is not %s", text);
		short_pause();
	}
}

static struct lookup_record wait_lookups(struct upstream *u, uint64_t n)
{
	uint64_t deadline = clock_now_ms() + PATIENCE_MS;
	struct lookup_record record;

	for (;;) {
		upstream_record(u, &record);
		if (record.lookups >= n)
			return record;
		if (clock_now_ms() > deadline)
			fail_msg("%llu look-ups", (unsigned long long)record.lookups);
		short_pause();
	}
}

static void test_timer(void **state)
{
	struct addr_list *old;
	struct rig rig;

	(void)state;
	rig_open(&rig, "variable.test:80", SOON);
	old = upstream_get(&rig.u);
	fake_dns_say(0x0a000002);
	wait_at(&rig.u, "10.0.0.2:80");
	fake_dns_say(0x0a000063); /* the listener */
	wait_lookups(&rig.u, wait_lookups(&rig.u, 0).lookups + 2);
	assert_true(is_at(&rig.u, "10.0.0.2:80"));
	assert_true(wait_lookups(&rig.u, 0).failures > 0);
	fake_dns_say(0x0a000003);
	wait_at(&rig.u, "10.0.0.3:80");
	assert_string_equal(wait_lookups(&rig.u, 0).why, "");
	rig_close(&rig);
	assert_int_equal(((struct sockaddr_in *)&old->addrs[0].ss)->sin_addr.s_addr,
			 htonl(0x0a000001));
	addr_list_put(old);
}

static void test_failures(void **state)
{
	struct lookup_record record;
	struct rig rig;

	(void)state;
	rig_open(&rig, "variable.test:80", SOON);
	atomic_store(&fake_dns->error, EAI_AGAIN);
	wait_lookups(&rig.u, 1);
	record = wait_lookups(&rig.u, wait_lookups(&rig.u, 0).lookups + 3);
	assert_true(record.failures >= 3);
	assert_non_null(strstr(record.why, "Temporary failure"));
	assert_true(is_at(&rig.u, "10.0.0.1:80"));
	fake_dns_say(0x0a000004);
	wait_at(&rig.u, "10.0.0.4:80");
	rig_close(&rig);
}

/* Workers say that nothing answers: it is looked up long before its time, and not for each. */
static void test_asked(void **state)
{
	uint64_t start = clock_now_ms(), lookups;
	struct rig rig;

	(void)state;
	rig_open(&rig, "variable.test:80", NEVER);
	fake_dns_say(0x0a000005);
	upstream_failed(&rig.u, clock_now_ms());
	wait_at(&rig.u, "10.0.0.5:80");
	fake_dns_say(0x0a000006);
	while (!is_at(&rig.u, "10.0.0.6:80")) {
		upstream_failed(&rig.u, clock_now_ms());
		assert_true(clock_now_ms() - start < PATIENCE_MS);
	}
	lookups = wait_lookups(&rig.u, 0).lookups;
	assert_true(lookups >= 2);
	assert_true(lookups <= 2 + (clock_now_ms() - start) / UPSTREAM_ASK_MS);
	rig_close(&rig);
}

static void wait_told(struct rig *rig, unsigned int n)
{
	for (uint64_t end = clock_now_ms() + PATIENCE_MS; atomic_load(&rig->told) < n;) {
		assert_true(clock_now_ms() < end);
		short_pause();
	}
}

/* Nobody has looked it up before: that is done at once, and who waits is told what came of it. */
static void test_unknown(void **state)
{
	struct addr_list *list = NULL;
	uint64_t seen = 0, later = 0;
	struct rig rig;

	(void)state;
	atomic_store(&fake_dns->error, EAI_NONAME);
	rig_open_unknown(&rig, "variable.test:80");
	wait_lookups(&rig.u, 1);
	assert_true(upstream_is_unknown(&rig.u));
	assert_int_equal(atomic_load(&rig.told), 0); /* nobody waited */
	assert_int_equal(upstream_await(&rig.u, &seen, &list), 0);
	wait_told(&rig, 1);
	assert_int_equal(upstream_await(&rig.u, &seen, &list), -ENOENT);
	assert_non_null(strstr(wait_lookups(&rig.u, 2).why, "not known"));
	fake_dns_say(0x0a000007);
	assert_int_equal(upstream_await(&rig.u, &later, &list), 0);
	wait_told(&rig, 2);
	assert_int_equal(upstream_await(&rig.u, &later, &list), 1);
	addr_list_put(list);
	assert_true(is_at(&rig.u, "10.0.0.7:80"));
	names_stop(rig.names);
	names_stop(rig.names);
	rig_close(&rig);
}

static const char *result_of(const struct question *q)
{
	static char text[256];
	struct endpoint e;

	assert_true(q->done);
	if (question_result(q, &e, text, sizeof(text)))
		return text;
	addr_format((struct sockaddr *)&e.addrs[0].ss, e.addrs[0].len, text, sizeof(text));
	endpoint_close(&e);
	return text;
}

/* What cannot be done without: all at the same time, before and after the thread is started. */
static void test_look_up_all(void **state)
{
	struct question q[] = { { .text = "variable.test:1" }, { .text = "crash.test:2" },
				{ .text = "variable.test:3", .passive = true } };
	struct account account;
	struct names *names = NULL;
	char err[256];

	(void)state;
	fake_dns_say(0x0a00000c);
	if (account_find(NULL, &account, err, sizeof(err)) ||
	    names_open(&account, FILTER_ERRNO, &names, err, sizeof(err)))
		fail_msg("%s", err);
	for (int i = 0; i < 2; i++) {
		names_look_up_all(names, q, 3);
		assert_string_equal(result_of(&q[0]), "10.0.0.12:1");
		assert_int_equal(q[1].reply.error, -EIO);
		assert_non_null(strstr(result_of(&q[1]), "without an answer"));
		assert_string_equal(result_of(&q[2]), "10.0.0.12:3");
		if (i == 0)
			assert_int_equal(names_start(names, NULL, NULL), 0);
	}
	names_give_up(names);
	names_look_up_all(names, q, 3);
	assert_int_equal(q[0].reply.error, -ECANCELED);
	assert_int_equal(q[2].reply.error, -ECANCELED);
	names_close(names);
	wait_children();
}

/* What has to be looked up beside a host is asked for; a host is not. */
static void check_offline(struct endpoint *e)
{
	static const struct {
		const char *text;
		size_t n;
		bool named;
		unsigned int port, asked;
	} rows[] = {
		{ "10.0.0.1:80", 1, false, 0, 0 },
		{ ":80", 2, false, 0, 0 },
		{ "variable.test:80", 0, true, 80, 0 },
		{ "variable.test:http", 0, true, 0, 0 },
		{ "10.0.0.1:http", 1, false, 0, 1 },
	};
	char err[256];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unsigned int before = atomic_load(&fake_dns->asked);

		if (endpoint_parse_offline(rows[i].text, rows[i].text[0] == ':', e, err,
					   sizeof(err)))
			fail_msg("%s: %s", rows[i].text, err);
		assert_int_equal(e->n_addrs, rows[i].n);
		assert_int_equal(e->named, rows[i].named);
		assert_int_equal(ntohs(e->named_port), rows[i].port);
		assert_int_equal(atomic_load(&fake_dns->asked) - before, rows[i].asked);
		endpoint_close(e);
	}
}

/* For a daemon that may not look up anything itself. */
static void test_look_up(void **state)
{
	struct endpoint e;
	char err[256] = "", text[ADDR_STRLEN];
	struct rig rig;

	(void)state;
	rig_open(&rig, "variable.test:80", NEVER);
	endpoint_look_up_by(names_look_up, rig.names);
	fake_dns_say(0x0a00000b);
	parse("variable.test:81", false, &e);
	assert_true(e.named);
	assert_int_equal(e.n_addrs, 1);
	assert_string_equal(e.text, "variable.test:81");
	assert_string_equal(addr_format((struct sockaddr *)&e.addrs[0].ss, e.addrs[0].len, text,
					sizeof(text)), "10.0.0.11:81");
	endpoint_close(&e);
	atomic_store(&fake_dns->error, EAI_NONAME);
	assert_int_equal(endpoint_parse("variable.test:81", false, &e, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "not known"));
	assert_int_equal(endpoint_parse("crash.test:81", false, &e, err, sizeof(err)), -EIO);
	parse("10.0.0.1:80", false, &e); /* a number is not asked for */
	assert_false(e.named);
	endpoint_close(&e);
	assert_true(is_at(&rig.u, "10.0.0.1:80"));
	assert_int_equal(wait_lookups(&rig.u, 0).lookups, 0);
	check_offline(&e);
	endpoint_look_up_by(NULL, NULL);
	rig_close(&rig);
}

/* Names come and go while others hang; each goes on by itself. */
static void test_several(void **state)
{
	struct endpoint conf;
	struct upstream more;
	struct rig rig;

	(void)state;
	rig_open(&rig, "variable.test:80", SOON);
	parse("variable.test:81", false, &conf);
	conf.text[0] = '\0';
	strcpy(conf.text, "hang.test:81");
	for (int i = 0; i < 10; i++) { /* fewer than RESOLVER_AT_ONCE */
		uint64_t lookups = wait_lookups(&rig.u, 0).lookups;

		assert_int_equal(upstream_open(&more, &conf, &rig.listen, SOON, 1), 0);
		assert_int_equal(names_add(rig.names, &more), 0);
		wait_lookups(&rig.u, lookups + 1);
		if (i % 2) {
			names_remove(rig.names, &more);
			names_remove(rig.names, &more);
		}
		upstream_close(&more);
	}
	endpoint_close(&conf);
	/* a number is none of its business */
	parse("10.0.0.1:80", false, &conf);
	assert_int_equal(upstream_open(&more, &conf, &rig.listen, SOON, 1), 0);
	assert_int_equal(names_add(rig.names, &more), 0);
	assert_true(atomic_load(&more.ask) == NULL);
	names_remove(rig.names, &more);
	upstream_close(&more);
	endpoint_close(&conf);
	rig_close(&rig);
}

/* Of both processes that can answer, the guardian first: then nothing starts the server again. */
static void test_gone(void **state)
{
	struct endpoint conf;
	struct upstream server;
	struct addr_list *list;
	struct lookup_record record;
	struct rig rig;
	uint64_t end;
	pid_t pid, guardian;
	char path[64], line[256] = "";
	FILE *f;

	(void)state;
	rig_open(&rig, "variable.test:80", SOON);
	parse("variable.test:81", false, &conf);
	strcpy(conf.text, "server.test:81");
	assert_int_equal(upstream_open(&server, &conf, &rig.listen, SOON, 1), 0);
	assert_int_equal(names_add(rig.names, &server), 0);
	wait_lookups(&server, 1);
	list = upstream_get(&server);
	pid = (pid_t)(ntohl(((struct sockaddr_in *)&list->addrs[0].ss)->sin_addr.s_addr) &
		      0xffffff);
	addr_list_put(list);
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof(line), f));
	fclose(f);
	assert_non_null(strrchr(line, ')'));
	assert_int_equal(sscanf(strrchr(line, ')'), ") %*c %d", &guardian), 1);
	assert_int_equal(kill(guardian, SIGKILL), 0);
	assert_true(names_have_resolver(rig.names));
	assert_int_equal(kill(pid, SIGKILL), 0);
	end = clock_now_ms() + PATIENCE_MS;
	while (names_have_resolver(rig.names)) {
		assert_true(clock_now_ms() < end);
		short_pause();
	}
	upstream_failed(&rig.u, clock_now_ms());
	assert_true(is_at(&rig.u, "10.0.0.1:80"));
	do {
		short_pause();
		upstream_record(&rig.u, &record);
	} while (!record.failures && clock_now_ms() < end);
	assert_string_equal(record.why, "the resolver has ended");
	names_remove(rig.names, &server);
	upstream_close(&server);
	endpoint_close(&conf);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_timer),   cmocka_unit_test(test_failures),
		cmocka_unit_test(test_asked),   cmocka_unit_test(test_several),
		cmocka_unit_test(test_gone),    cmocka_unit_test(test_look_up),
		cmocka_unit_test(test_unknown), cmocka_unit_test(test_look_up_all),
	};

	log_set_level(LOG_ERR);
	return cmocka_run_group_tests(tests, fake_dns_open, NULL);
}
