// SPDX-License-Identifier: BSD-2-Clause
/* How long the privileged process is waited for, and what becomes of it when memory is short. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/privileged_client.h"
#include "no_memory.h"
#include "privileged_rig.h"

#define PATIENCE_S 10
#define HOUR_S 3600
#define CALLS_MAX 100 /* of malloc(), more than a request takes */

static char err[2048];

/* --- a clock that goes on while this process is stopped --- */

static enum { AS_EVER, ANSWERED_MEANWHILE, SILENT } mode;
static int stops; /* so many times that poll(2) is called */
static time_t ahead_s;

/* As after a stop: the time is over, whatever else there may be. */
int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	const struct timespec patience = { .tv_sec = PATIENCE_S };
	const struct timespec at_most = { timeout / 1000, timeout % 1000 * 1000000L };

	if (mode == AS_EVER || !timeout || !stops)
		return ppoll(fds, n, timeout < 0 ? NULL : &at_most, NULL);
	stops--;
	ahead_s += HOUR_S;
	if (mode == ANSWERED_MEANWHILE)
		ppoll(fds, n, &patience, NULL);
	return 0;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int r = (int)syscall(SYS_clock_gettime, id, ts);

	ts->tv_sec += ahead_s;
	return r;
}

/* --- */

static int start(void **state)
{
	struct privileged *p = NULL;

	write_file(NUMBERS);
	if (config_parse(3, words, &config) ||
	    privileged_start(&config, 3, words, &p, err, sizeof(err)))
		return -1;
	*state = p;
	return 0;
}

static int stop(void **state)
{
	pid_t pid = privileged_pid(*state);

	mode = AS_EVER;
	ahead_s = 0;
	privileged_stop(*state);
	config_close(&config);
	kill(pid, SIGCONT);
	return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}

static int ask_for_listener(struct privileged *p)
{
	struct addr a = config.forwards[0].listen.addrs[0];
	int fd, r = privileged_listen(p, config.generation, 0, &a, false, 1, &fd, err, sizeof(err));

	if (!r)
		close(fd);
	return r;
}

/* Once or all the time, an answer that has come by then counts. */
static void test_stopped_together(void **state)
{
	(void)state;
	mode = ANSWERED_MEANWHILE;
	for (int n = 1; n <= 1000; n *= 10) {
		stops = n;
		if (ask_for_listener(*state))
			fail_msg("stopped %d times: %s", n, err);
	}
	assert_true(privileged_runs(*state));
}

static void test_hangs(void **state)
{
	(void)state;
	assert_int_equal(kill(privileged_pid(*state), SIGSTOP), 0);
	mode = SILENT;
	stops = 1000;
	assert_int_equal(ask_for_listener(*state), -EPIPE);
	assert_non_null(strstr(err, "start culvert again"));
	assert_true(stops > 0);
	assert_false(privileged_runs(*state));
}

/* --- memory --- */

static int read_again(struct privileged *p)
{
	uint32_t generation;
	char *text = NULL;
	size_t len;
	int r = privileged_read_config(p, 0, &text, &len, &generation, err, sizeof(err));

	no_memory_end();
	if (r) {
		assert_null(text);
		return r;
	}
	assert_int_equal(len, strlen(NUMBERS));
	assert_string_equal(text, NUMBERS);
	free(text);
	return 0;
}

/* While there is none, the file cannot be read; then it can. */
static void test_no_memory(void **state)
{
	int failed = 0;

	(void)state;
	for (long n = 0; n < CALLS_MAX; n++) {
		no_memory_begin(n, false);
		if (!read_again(*state))
			continue;
		failed++;
		assert_string_equal(err, "Cannot allocate memory");
		assert_int_equal(read_again(*state), 0);
		assert_int_equal(ask_for_listener(*state), 0);
	}
	assert_true(failed > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stopped_together, start, stop),
		cmocka_unit_test_setup_teardown(test_hangs, start, stop),
		cmocka_unit_test_setup_teardown(test_no_memory, start, stop),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
