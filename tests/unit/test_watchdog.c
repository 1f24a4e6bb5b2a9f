/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "capture.h"
#include "daemon/watchdog.h"
#include "temp_dir.h"

#define PERIOD_USEC "40000" /* four looks in it */
#define PERIOD_MS 10

static int notify_fd;
static char dir[TEMP_DIR_LEN], notify_path[64];

/* A thread that is not there: it takes a turn when it is woken, unless it hangs. */
struct fake {
	_Atomic uint64_t turns;
	unsigned int woken;
	bool hangs;
};

static void wake_fake(void *arg)
{
	struct fake *f = arg;

	f->woken++;
	if (!f->hangs)
		f->turns++;
}

static int make_socket(void **state)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	(void)state;
	if (temp_dir_make(dir))
		return -1;
	snprintf(notify_path, sizeof(notify_path), "%s/notify", dir);
	strcpy(un.sun_path, notify_path);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setenv("NOTIFY_SOCKET", notify_path, 1);
	return notify_fd < 0 || bind(notify_fd, (struct sockaddr *)&un, sizeof(un)) ? -1 : 0;
}

static int remove_socket(void **state)
{
	(void)state;
	close(notify_fd);
	return temp_dir_remove(dir);
}

static bool told(void)
{
	char text[64] = "";

	if (recv(notify_fd, text, sizeof(text) - 1, 0) < 0)
		return false;
	assert_string_equal(text, "WATCHDOG=1");
	return true;
}

/* The next look is due, and taken. */
static void look(struct watchdog *w)
{
	uint64_t due = watchdog_due(w), now = clock_ms();

	assert_true(due <= now + PERIOD_MS);
	if (due > now)
		usleep((unsigned int)(due - now) * 1000);
	watchdog_look(w);
}

static void test_not_wanted(void **state)
{
	struct watchdog w;

	(void)state;
	unsetenv("WATCHDOG_USEC");
	watchdog_open(&w);
	assert_true(watchdog_due(&w) == UINT64_MAX);
	watchdog_look(&w);
	assert_false(told());
	watchdog_close(&w);
}

static void test_hanging(void **state)
{
	struct fake fakes[2] = { 0 };
	struct capture capture;
	struct watchdog w;
	char text[1024];

	(void)state;
	setenv("WATCHDOG_USEC", PERIOD_USEC, 1);
	watchdog_open(&w);
	for (int i = 0; i < 2; i++) {
		struct watched t = { .turns = &fakes[i].turns, .wake = wake_fake,
				     .arg = &fakes[i] };

		snprintf(t.name, sizeof(t.name), "thread %d", i);
		assert_int_equal(watchdog_add(&w, &t), 0);
	}
	for (int i = 0; i < 3; i++) {
		look(&w);
		assert_true(told());
		assert_int_equal(fakes[0].woken, i + 1);
		watchdog_look(&w); /* too early */
		assert_false(told());
	}
	fakes[1].hangs = true;
	look(&w);
	assert_true(told()); /* it has taken the turn before */
	capture_begin(&capture, STDERR_FILENO);
	for (int i = 0; i < 3; i++)
		look(&w);
	capture_end(&capture, text, sizeof(text));
	assert_false(told());
	assert_non_null(strstr(text, "thread 1 has hung"));
	assert_null(strstr(strstr(text, "has hung") + 1, "has hung")); /* is said once */
	assert_int_equal(fakes[0].woken, 7); /* is asked on */
	assert_int_equal(fakes[1].woken, 4); /* has not answered yet */
	fakes[1].turns++;
	fakes[1].hangs = false;
	capture_begin(&capture, STDERR_FILENO);
	look(&w);
	capture_end(&capture, text, sizeof(text));
	assert_true(told());
	assert_non_null(strstr(text, "thread 1 goes on"));
	watchdog_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_not_wanted),
		cmocka_unit_test(test_hanging),
	};

	return cmocka_run_group_tests(tests, make_socket, remove_socket);
}
