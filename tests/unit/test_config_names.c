// SPDX-License-Identifier: BSD-2-Clause
/* The names of a configuration: those to listen at before the start, and all by `culvert check`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "capture.h"
#include "config/config_check.h"
#include "config/config_names.h"
#include "fake_dns.h"

#define ADDRESS 0x0a000005 /* of variable.test: 10.0.0.5 */
#define NUMBER "[forward n]\nlisten = 10.0.0.5:80\nupstream = 10.0.0.6:80\n"
#define LISTENS "[forward l]\nlisten = variable.test:80\nupstream = 10.0.0.6:80\n"
#define LEADS "[forward u]\nlisten = 10.0.0.7:80\nupstream = variable.test:80\n"

static char folder[] = "/tmp/culvert-names.XXXXXX", path[64];
static struct names *names;

static int setup(void **state)
{
	struct account account;
	char err[256];

	if (fake_dns_open(state) || !mkdtemp(folder) || account_find(NULL, &account, err, 256))
		return -1;
	snprintf(path, sizeof(path), "%s/c", folder);
	return names_open(&account, FILTER_ERRNO, &names, err, sizeof(err));
}

static int teardown(void **state)
{
	(void)state;
	names_close(names);
	while (waitpid(-1, NULL, 0) > 0)
		;
	unlink(path);
	return rmdir(folder);
}

static void parse(const char *text, struct config *c)
{
	char run[] = "run", option[] = "--config", name[] = "c";
	char *argv[] = { run, option, name, NULL };
	struct config_source from = { text, strlen(text) };

	assert_int_equal(config_parse_from(3, argv, &from, c), 0);
}

/* What comes of TEXT when name servers say GAI: the error and its text, or "". */
static int find(const char *text, int gai, struct names *by, char *err, size_t errlen)
{
	unsigned int before;
	struct config c;
	int r;

	parse(text, &c);
	fake_dns_say(ADDRESS);
	atomic_store(&fake_dns->error, gai);
	before = atomic_load(&fake_dns->asked);
	err[0] = '\0';
	r = config_find_listeners(&c, by, err, errlen);
	assert_int_equal(!r, !err[0]);
	for (size_t i = 0; !r && i < c.n_forwards; i++)
		assert_true(c.forwards[i].listen.n_addrs > 0);
	/* never a name of an upstream */
	assert_int_equal(atomic_load(&fake_dns->asked) != before,
			 by && strstr(text, "listen = variable"));
	config_close(&c);
	return r;
}

static void test_listen(void **state)
{
	static const struct {
		const char *text;
		int gai, r;
		const char *err;
	} rows[] = {
		{ NUMBER LEADS, EAI_FAIL, 0, "" },
		{ LISTENS, 0, 0, "" },
		{ LISTENS LEADS, 0, 0, "" },
		{ LISTENS, EAI_NONAME, -ENOENT,
		  "forward l: listen \"variable.test:80\": host name lookup failed: Name or" },
		{ LISTENS, EAI_AGAIN, -EAGAIN, "forward l: listen \"variable.test:80\": host" },
		{ LISTENS NUMBER, 0, -EINVAL,
		  "forward n: listen \"10.0.0.5:80\": same address as the earlier \"variable" },
		{ "[forward f]\nlisten = variable.test:6\nupstream = 10.0.0.5:6\n", 0, -EINVAL,
		  "forward f: upstream \"10.0.0.5:6\": the upstream is the listener itself" },
	};
	char err[512];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(find(rows[i].text, rows[i].gai, names, err, sizeof(err)),
				 rows[i].r);
		if (strncmp(err, rows[i].err, strlen(rows[i].err)) != 0)
			fail_msg("%zu: %s", i, err);
	}
	assert_int_equal(find(NUMBER LEADS, 0, NULL, err, sizeof(err)), 0);
	assert_int_equal(find(LISTENS, 0, NULL, err, sizeof(err)), -EAGAIN);
	assert_non_null(strstr(err, "the resolver has not been started"));
}

/* An answer with another port than the configuration's would be one of a resolver gone bad. */
static void test_port(void **state)
{
	struct question q = { .text = "variable.test:80", .done = true };
	struct config_name name;
	char err[256] = "";
	struct config c;

	(void)state;
	parse(LISTENS, &c);
	assert_int_equal(config_names(&c, true, &name), 1);
	q.reply.n = 1;
	q.reply.addrs[0].in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(81) };
	assert_int_equal(config_name_found(&name, &q, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "another port"));
	assert_int_equal(c.forwards[0].listen.n_addrs, 0);
	q.reply.addrs[0].in.sin_port = htons(80);
	assert_int_equal(config_name_found(&name, &q, err, sizeof(err)), 0);
	assert_int_equal(c.forwards[0].listen.n_addrs, 1);
	assert_string_equal(c.forwards[0].listen.text, "variable.test:80");
	config_close(&c);
}

/* The exit code of `culvert check`, and what it says. */
static int check(const char *text, int gai, char *said, size_t size)
{
	char *argv[] = { (char *)"check", path, NULL };
	FILE *f = fopen(path, "we");
	struct capture capture, result;
	char out[256];
	int r;

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	fake_dns_say(ADDRESS);
	atomic_store(&fake_dns->error, gai);
	capture_begin(&capture, STDERR_FILENO);
	capture_begin(&result, STDOUT_FILENO);
	r = config_check(2, argv);
	capture_end(&result, out, sizeof(out));
	capture_end(&capture, said, size);
	assert_int_equal(strstr(out, "no mistake") != NULL, r == 0);
	return r;
}

static void test_check(void **state)
{
	static const struct {
		const char *text;
		int gai, r;
		const char *said;
	} rows[] = {
		{ NUMBER, EAI_FAIL, 0, "" },
		{ LISTENS LEADS, 0, 0, "" },
		{ LEADS, EAI_NONAME, 0, "/c:3: warning: upstream \"variable.test:80\": host name "
					"lookup failed: Name or service not known (culvert starts "
					"all the same, and looks again)\n" },
		{ LEADS, EAI_AGAIN, 0, "/c:3: warning: upstream " },
		{ LISTENS, EAI_NONAME, 2, "/c:2: listen \"variable.test:80\": host name lookup" },
		{ LISTENS, EAI_AGAIN, 1, "/c:2: listen \"variable.test:80\": host name lookup" },
		{ LISTENS NUMBER, 0, 2, "/c:5: listen \"10.0.0.5:80\": same address as" },
		{ "[forward f]\nlisten = 10.0.0.5:6\nupstream = variable.test:6\n", 0, 0,
		  "/c:3: warning: upstream \"variable.test:6\": one of its addresses is the" },
		{ "[culvert]\nuser = no-such-account\n" LEADS, 0, 2,
		  "/c:2: no such account: no-such-account" },
	};
	char said[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(check(rows[i].text, rows[i].gai, said, sizeof(said)), rows[i].r);
		if (rows[i].said[0] ? !strstr(said, rows[i].said) : said[0] != '\0')
			fail_msg("%zu: %s", i, said);
	}
}

/* The same name twice is seen without asking anybody. */
static void test_same_name(void **state)
{
	static const char *const bad[] = {
		LISTENS "[forward m]\nlisten = Variable.test:80\nupstream = 10.0.0.6:80\n",
		"[forward m]\nlisten = variable.test:80\nupstream = variable.test:80\n",
	};
	unsigned int before = atomic_load(&fake_dns->asked);
	char said[1024];

	(void)state;
	assert_int_equal(check(bad[0], 0, said, sizeof(said)), 2);
	assert_non_null(strstr(said, "/c:5: listen \"Variable.test:80\": same address as the"));
	assert_int_equal(check(bad[1], 0, said, sizeof(said)), 2);
	assert_non_null(strstr(said, "/c:3: upstream \"variable.test:80\": the upstream is the"));
	assert_int_equal(atomic_load(&fake_dns->asked), before);
	/* but port 0 is another one each time */
	assert_int_equal(check("[forward a]\nlisten = variable.test:0\nupstream = 10.0.0.6:80\n"
			       "[forward b]\nlisten = variable.test:0\nupstream = 10.0.0.6:80\n",
			       0, said, sizeof(said)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_listen), cmocka_unit_test(test_port),
		cmocka_unit_test(test_check),  cmocka_unit_test(test_same_name),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
