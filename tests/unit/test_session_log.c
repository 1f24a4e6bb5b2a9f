// SPDX-License-Identifier: BSD-2-Clause
/* The queue, the writer, and all that can go wrong with the file: every record is counted once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "capture.h"
#include "daemon/session_log.h"
#include "temp_dir.h"

#define PATIENCE_MS 20000
#define THREADS 4
#define EACH 3000

static char dir[TEMP_DIR_LEN];
static struct session_log_conf conf = { .account = { .name = "tester" } };
static struct session_log *running;

static int enter(void **state)
{
	(void)state;
	conf.account.uid = geteuid();
	conf.account.gid = getegid();
	return temp_dir_make(dir) || chdir(dir);
}

static int leave(void **state)
{
	(void)state;
	return chdir("/") || temp_dir_remove(dir);
}

static int clean(void **state)
{
	static const char *const names[] = { "log", "log.1", "fifo", "sub/log" };

	(void)state;
	session_log_close(running);
	running = NULL;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unlink(names[i]);
	rmdir("sub");
	return 0;
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static struct session_log *begin(const char *path, unsigned int sessions)
{
	char err[512] = "";

	conf.path = path;
	conf.sessions = sessions;
	if (session_log_open(&conf, &running, err, sizeof(err)))
		fail_msg("%s", err);
	return running;
}

static struct session_log *start(const char *path, unsigned int sessions)
{
	struct session_log *l = begin(path, sessions);

	assert_int_equal(session_log_start(l), 0);
	return l;
}

static void finish(void)
{
	session_log_close(running);
	running = NULL;
}

static void refuse(struct session_log *l, unsigned int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	session_log_refused(l, "web", (struct sockaddr *)&a, (uint64_t)now_ms(), CAUSE_DENIED);
}

static int64_t figure(struct session_log *l, const char *key)
{
	struct json_object *o = session_log_json(l), *value = NULL;
	int64_t n;

	assert_true(json_object_object_get_ex(o, key, &value));
	n = json_object_get_int64(value);
	json_object_put(o);
	return n;
}

static void wait_for(struct session_log *l, const char *key, int64_t least)
{
	int64_t deadline = now_ms() + PATIENCE_MS;

	while (figure(l, key) < least) {
		if (now_ms() > deadline)
			fail_msg("%s is %lld, not %lld", key, (long long)figure(l, key),
				 (long long)least);
		poll(NULL, 0, 5);
	}
}

static bool has_error(struct session_log *l, const char *text)
{
	struct json_object *o = session_log_json(l), *value = NULL;
	bool has;

	assert_true(json_object_object_get_ex(o, "last_error", &value));
	has = strstr(json_object_get_string(value), text) != NULL;
	json_object_put(o);
	return has;
}

/* How many lines PATH has; each must be one of JSON. */
static unsigned int lines_of(const char *path)
{
	FILE *f = fopen(path, "re");
	char line[8192];
	unsigned int n = 0;

	assert_non_null(f);
	for (; fgets(line, sizeof(line), f); n++) {
		struct json_object *o = json_tokener_parse(line);

		if (!o || !strchr(line, '\n'))
			fail_msg("%s: not a line of JSON: \"%s\"", path, line);
		json_object_put(o);
	}
	fclose(f);
	return n;
}

static void test_none(void **state)
{
	(void)state;
	refuse(NULL, 1);
	session_log_ended(NULL, NULL, NULL, 0);
	assert_null(session_log_json(NULL));
	session_log_close(NULL);
}

static void test_lines(void **state)
{
	struct session_log *l = start("log", 1000);

	(void)state;
	for (unsigned int i = 0; i < 3; i++)
		refuse(l, i);
	wait_for(l, "lines", 3); /* they come by themselves */
	assert_int_equal(lines_of("log"), 3);
	refuse(l, 3);
	finish(); /* the last one is not lost */
	assert_int_equal(lines_of("log"), 4);
}

/* Of those that come before the writer has begun, as many as fit. */
static void test_full(void **state)
{
	struct session_log *l = begin("log", 0);
	int64_t lost;

	(void)state;
	for (unsigned int i = 0; i < 10000; i++)
		refuse(l, i);
	lost = figure(l, "lost");
	assert_in_range(lost, 1, 9900);
	assert_int_equal(session_log_start(l), 0);
	wait_for(l, "lines", 10000 - lost);
	for (unsigned int i = 0; i < 100; i++) /* there is room again */
		refuse(l, i);
	wait_for(l, "lines", 10100 - lost);
	assert_int_equal(figure(l, "lost"), lost);
	finish();
	assert_int_equal(lines_of("log"), 10100 - lost);
}

/* All sessions that there may be can end in one go, however slow the writer is. */
static void test_all_at_once(void **state)
{
	struct session_log *l = begin("log", 16384);

	(void)state;
	for (unsigned int i = 0; i < 16384; i++)
		refuse(l, i);
	assert_int_equal(figure(l, "lost"), 0);
	assert_int_equal(session_log_start(l), 0);
	finish();
	assert_int_equal(lines_of("log"), 16384);
}

static void *refuse_many(void *arg)
{
	for (unsigned int i = 0; i < EACH; i++)
		refuse(arg, i);
	return NULL;
}

static void test_threads(void **state)
{
	struct session_log *l = start("log", THREADS * EACH);
	pthread_t threads[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, refuse_many, l), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	wait_for(l, "lines", THREADS * EACH);
	assert_int_equal(figure(l, "lost"), 0);
	finish();
	assert_int_equal(lines_of("log"), THREADS * EACH);
}

static void wait_file(const char *path)
{
	int64_t deadline = now_ms() + PATIENCE_MS;

	while (access(path, F_OK)) {
		if (now_ms() > deadline)
			fail_msg("%s has not come", path);
		poll(NULL, 0, 5);
	}
}

/* What was queued before goes to the old file, all after it to the new one. */
static void test_rotation(void **state)
{
	struct session_log *l = start("log", 1000);

	(void)state;
	refuse(l, 1);
	refuse(l, 2);
	assert_int_equal(rename("log", "log.1"), 0);
	session_log_reopen(l);
	wait_file("log");
	wait_for(l, "lines", 2);
	refuse(l, 3);
	finish();
	assert_int_equal(lines_of("log.1"), 2);
	assert_int_equal(lines_of("log"), 1);
}

/* The old file is written on until the new one can be had. */
static void test_directory_gone(void **state)
{
	struct session_log *l;
	struct capture capture;
	char out[4096];

	(void)state;
	assert_int_equal(mkdir("sub", 0700), 0);
	l = start("sub/log", 1000);
	refuse(l, 1);
	wait_for(l, "lines", 1);
	assert_int_equal(rename("sub/log", "log.1"), 0);
	assert_int_equal(rmdir("sub"), 0);
	capture_begin(&capture, STDERR_FILENO);
	session_log_reopen(l);
	wait_for(l, "errors", 1);
	refuse(l, 2);
	wait_for(l, "lines", 2);
	capture_end(&capture, out, sizeof(out));
	assert_non_null(strstr(out, "error: session log sub/log: cannot be opened anew, so the old "
				    "file is written on: No such file or directory: make its "
				    "directory first"));
	assert_int_equal(mkdir("sub", 0700), 0);
	session_log_reopen(l);
	wait_file("sub/log");
	refuse(l, 3);
	finish();
	assert_int_equal(lines_of("log.1"), 2);
	assert_int_equal(lines_of("sub/log"), 1);
}

static void limit_files(rlim_t len)
{
	struct rlimit r;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
	r.rlim_cur = len;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

/* While there is no room lines are lost and counted; then they are written again. */
static void test_no_room(void **state)
{
	struct session_log *l = start("log", 1000);
	struct capture capture;
	char out[4096];
	int64_t lost;

	(void)state;
	refuse(l, 1);
	wait_for(l, "lines", 1);
	capture_begin(&capture, STDERR_FILENO);
	limit_files(1000);
	for (unsigned int i = 0; i < 10; i++)
		refuse(l, i);
	wait_for(l, "errors", 1);
	wait_for(l, "lost", 1);
	limit_files(RLIM_INFINITY);
	lost = figure(l, "lost");
	refuse(l, 2);
	wait_for(l, "lines", 12 - lost);
	finish();
	capture_end(&capture, out, sizeof(out));
	assert_true(lost < 10);
	assert_int_equal(lines_of("log"), 12 - lost);
	assert_non_null(strstr(out, "lines are lost, "));
	assert_non_null(strstr(out, "until it can be written again: File too large (rotate it"));
	assert_non_null(strstr(out, "info: session log log: written again; "));
	assert_non_null(strstr(out, "lines were lost in all"));
}

static void test_device_full(void **state)
{
	struct session_log *l = start("/dev/full", 1000);

	(void)state;
	refuse(l, 1);
	wait_for(l, "lost", 1);
	assert_int_equal(figure(l, "lines"), 0);
	assert_true(has_error(l, "No space left on device (make room"));
}

/* A FIFO: whether somebody reads it or not is no business of the daemon's. */
static void test_fifo(void **state)
{
	struct session_log *l;
	int fd, lost;

	(void)state;
	assert_int_equal(mkfifo("fifo", 0600), 0);
	l = start("fifo", 1000);
	refuse(l, 1);
	wait_for(l, "lost", 1);
	assert_true(has_error(l, "it has no reader yet"));
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	refuse(l, 2);
	wait_for(l, "lines", 1);
	close(fd);
	refuse(l, 3);
	wait_for(l, "lost", 2);
	assert_true(has_error(l, "Broken pipe (start its reader again)"));
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	refuse(l, 4);
	wait_for(l, "lines", 2);
	lost = (int)figure(l, "lost");
	assert_int_equal(lost, 2);
	close(fd);
}

/* Who holds a FIFO and does not read it delays neither workers nor, for long, the end. */
static void test_deaf_reader(void **state)
{
	struct session_log *l;
	int64_t begun;
	int fd;

	(void)state;
	assert_int_equal(mkfifo("fifo", 0600), 0);
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	l = start("fifo", 0);
	for (unsigned int i = 0; i < 20000; i++)
		refuse(l, i);
	wait_for(l, "lost", 1); /* more than the FIFO and the queue hold */
	begun = now_ms();
	finish();
	assert_true(now_ms() - begun < 20 * SESSION_LOG_LAST_MS);
	close(fd);
}

static void test_stdout(void **state)
{
	struct capture capture;
	char out[4096];

	(void)state;
	capture_begin(&capture, STDOUT_FILENO);
	start("-", 1000);
	refuse(running, 1);
	session_log_reopen(running); /* means nothing here */
	refuse(running, 2);
	finish();
	capture_end(&capture, out, sizeof(out));
	assert_non_null(strstr(out, "\"client\":\"0.0.0.0:1\""));
	assert_non_null(strstr(out, "\"client\":\"0.0.0.0:2\""));
}

static void test_not_opened(void **state)
{
	struct session_log *l = NULL;
	char err[512] = "";

	(void)state;
	conf.path = "missing/log";
	assert_int_equal(session_log_open(&conf, &l, err, sizeof(err)), -ENOENT);
	assert_null(l);
	assert_string_equal(err, "session log missing/log: No such file or directory: make its "
				 "directory first (install -d -o tester missing)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_none, clean),
		cmocka_unit_test_teardown(test_lines, clean),
		cmocka_unit_test_teardown(test_full, clean),
		cmocka_unit_test_teardown(test_all_at_once, clean),
		cmocka_unit_test_teardown(test_threads, clean),
		cmocka_unit_test_teardown(test_rotation, clean),
		cmocka_unit_test_teardown(test_directory_gone, clean),
		cmocka_unit_test_teardown(test_no_room, clean),
		cmocka_unit_test_teardown(test_device_full, clean),
		cmocka_unit_test_teardown(test_fifo, clean),
		cmocka_unit_test_teardown(test_deaf_reader, clean),
		cmocka_unit_test_teardown(test_stdout, clean),
		cmocka_unit_test_teardown(test_not_opened, clean),
	};

	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, enter, leave);
}
