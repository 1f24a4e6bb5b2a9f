// SPDX-License-Identifier: BSD-2-Clause
/*
 * Commands that change something, while each call of malloc() in turn fails, alone or with all
 * that follow: what has been done is answered, in whole, and where the answer is `no-memory`
 * nothing has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of sessions that a worker owns */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include "base/log.h"
#include "daemon/control_client.h"
#include "daemon/operate.h"
#include "no_memory.h"
#include "no_memory_json.h"
#include "relay/balance.h"
#include "session_rig.h"

#define CALLS_MAX 2000 /* of malloc(), more than any of it takes */
#define SESSIONS 70    /* more than are reset in one batch */

static struct balance balance;
static struct forwards forwards;
static struct reconfigure reconfigure;
static struct probe_start probe;
static struct worker *workers[1];
static struct inspect inspect;
static pthread_t thread;

static void *run(void *arg)
{
	loop_run(arg);
	return NULL;
}

static void stop(void *arg)
{
	((struct loop *)arg)->stop = true;
}

static void after_batch(void *arg)
{
	session_reap(arg);
}

static int setup(void **state)
{
	struct session_rig *rig;

	if (session_rig_open(state, after_batch))
		return -1;
	rig = *state;
	balance_open(&balance, SPREAD_ALL, 1, NULL, NULL);
	rig->shared.balance = &balance;
	forwards_init(&forwards);
	for (int i = 0; i < 2; i++)
		forwards_add(&forwards, rig->forwards[i]);
	reconfigure = (struct reconfigure){ 0 };
	pthread_mutex_init(&reconfigure.lock, NULL);
	pthread_cond_init(&reconfigure.change, NULL);
	workers[0] = &rig->worker;
	inspect = (struct inspect){ .shared = &rig->shared, .forwards = &forwards,
				    .reconfigure = &reconfigure, .workers = workers,
				    .n_workers = 1, .kernel_reason = "", .probe = &probe };
	return pthread_create(&thread, NULL, run, &rig->worker.loop);
}

static int teardown(void **state)
{
	struct session_rig *rig = *state;

	loop_call(&rig->worker.loop, stop, &rig->worker.loop, 5000);
	pthread_join(thread, NULL);
	for (int i = 0; i < 2; i++)
		forwards_take(&forwards, rig->forwards[i]);
	forwards_close(&forwards);
	balance_close(&balance);
	reconfigure_close(&reconfigure);
	return session_rig_close(state);
}

/* --- one request --- */

static struct json_object *do_operate(void *arg, const struct command_request *req,
				      const struct control_peer *peer)
{
	return operate(arg, req, peer);
}

/* The answer to LINE, as it reaches the client, while call number N of malloc() fails. */
static struct json_object *ask(const char *line, long n, bool all, bool *ret_failed)
{
	static const struct control_peer root = { .may_ask = true, .may_change = true };
	static struct control_client client;
	char text[4096];
	ssize_t len;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	control_client_begin(&client, fds[0], NULL, &root, 0);
	client.got = strlen(line);
	memcpy(client.request, line, client.got);
	client.state = CLIENT_ASKING;
	no_memory_begin(n, all);
	control_client_answer(&client, do_operate, &inspect, 0);
	*ret_failed = no_memory_end();
	len = recv(fds[1], text, sizeof(text) - 1, 0);
	close(fds[1]);
	assert_true(len > 0 && text[len - 1] == '\n');
	text[len] = '\0';
	return json_tokener_parse(text);
}

static bool is_no_memory(struct json_object *answer)
{
	struct json_object *error, *code;

	if (!json_object_object_get_ex(answer, "error", &error))
		return false;
	assert_true(json_object_object_get_ex(error, "code", &code));
	assert_string_equal(json_object_get_string(code), command_error_name(ERROR_NO_MEMORY));
	return true;
}

static int64_t number_of(struct json_object *answer, const char *key)
{
	struct json_object *value;

	assert_true(json_object_object_get_ex(answer, key, &value));
	return json_object_get_int64(value);
}

/*
 * BEFORE, the command, and CHECK, which is told whether it was done (ANSWER) or not (NULL), as
 * often as a further call of malloc() may fail.
 */
static void each_failure(struct session_rig *rig, const char *line,
			 void (*before)(struct session_rig *rig),
			 void (*check)(struct session_rig *rig, struct json_object *answer))
{
	unsigned int done = 0, refused = 0;

	for (int all = 0; all < 2; all++) {
		bool failed = true;

		for (long n = 0; failed; n++) {
			struct json_object *answer;

			assert_in_range(n, 0, CALLS_MAX);
			before(rig);
			answer = ask(line, n, all, &failed);
			assert_non_null(answer);
			if (is_no_memory(answer)) {
				assert_true(failed);
				refused++;
				check(rig, NULL);
			} else {
				done++;
				check(rig, answer);
			}
			json_object_put(answer);
		}
	}
	assert_true(done >= 2 && refused > 0);
}

/* --- kill --- */

static void fill_up(void *arg)
{
	struct session_rig *rig = arg;

	while (rig->worker.n_sessions < SESSIONS)
		session_rig_add(rig, 0);
}

static void fill(struct session_rig *rig)
{
	assert_int_equal(loop_call(&rig->worker.loop, fill_up, rig, 5000), 0);
}

static void check_killed(struct session_rig *rig, struct json_object *answer)
{
	unsigned int left = admission_sessions(rig->shared.admission);

	assert_int_equal(left, answer ? 0 : SESSIONS);
	if (answer)
		assert_int_equal(number_of(answer, "killed"), SESSIONS);
}

static void test_kill(void **state)
{
	each_failure(*state, "{\"command\":\"kill\",\"all\":true}", fill, check_killed);
}

/* --- the others --- */

static void set_default(struct session_rig *rig)
{
	forward_set_engine(rig->forwards[0], ENGINE_COPY);
}

static void check_engine(struct session_rig *rig, struct json_object *answer)
{
	assert_int_equal(forward_policy(rig->forwards[0])->engine,
			 answer ? ENGINE_AUTO : ENGINE_COPY);
	if (answer) {
		assert_int_equal(number_of(answer, "live"), 0);
		assert_int_equal(number_of(answer, "flows_moving"), 0);
	}
}

static void test_engine(void **state)
{
	each_failure(*state, "{\"command\":\"engine\",\"forward\":\"db\",\"engine\":\"auto\"}",
		     set_default, check_engine);
}

static void set_level(struct session_rig *rig)
{
	(void)rig;
	log_set_level(LOG_WARNING);
}

static void check_level(struct session_rig *rig, struct json_object *answer)
{
	(void)rig;
	assert_int_equal(log_get_level(), answer ? LOG_ERR : LOG_WARNING);
}

static void test_level(void **state)
{
	each_failure(*state, "{\"command\":\"log-level\",\"level\":\"error\"}", set_level,
		     check_level);
}

static void forget_reloads(struct session_rig *rig)
{
	(void)rig;
	reconfigure.asked = 41;
}

static void check_reload(struct session_rig *rig, struct json_object *answer)
{
	(void)rig;
	assert_int_equal(reconfigure.asked, answer ? 42 : 41);
	if (answer)
		assert_int_equal(number_of(answer, "number"), 42);
}

static void test_reload(void **state)
{
	each_failure(*state, "reload", forget_reloads, check_reload);
}

/* Nobody is left who would do it: that is said, rather than a number to wait for. */
static void test_reload_stopping(void **state)
{
	struct json_object *answer, *error, *code;
	bool failed;

	forget_reloads(*state);
	reconfigure.stop = true;
	answer = ask("reload", CALLS_MAX, false, &failed);
	assert_false(failed);
	assert_true(json_object_object_get_ex(answer, "error", &error));
	assert_true(json_object_object_get_ex(error, "code", &code));
	assert_string_equal(json_object_get_string(code), command_error_name(ERROR_FAILED));
	assert_int_equal(reconfigure.asked, 41);
	json_object_put(answer);
}

#ifdef __SANITIZE_ADDRESS__
static void test_skipped(void **state)
{
	(void)state;
	printf("skip: built with -fsanitize=address, whose threads need malloc() to begin\n");
	skip();
}
#endif

#define ON_DAEMON(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
#ifdef __SANITIZE_ADDRESS__
	const struct CMUnitTest skipped[] = { cmocka_unit_test(test_skipped) };

	return cmocka_run_group_tests(skipped, NULL, NULL);
#endif
	const struct CMUnitTest tests[] = {
		ON_DAEMON(test_kill),
		ON_DAEMON(test_engine),
		ON_DAEMON(test_level),
		ON_DAEMON(test_reload),
		ON_DAEMON(test_reload_stopping),
	};

	log_set_level(LOG_WARNING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
