/* SPDX-License-Identifier: BSD-2-Clause */
/* Clients of the control socket that cost time: silent ones, deaf ones, and those behind them. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/sockios.h>

#include <cmocka.h>

#include "control.h"
#include "control_rig.h"
#include "log.h"
#include "seeded.h"

#define STATUS "{\"command\":\"status\"}"
#define REQUEST_MS 500
#define DEADLINE_MS 2000  /* of the daemon, for one client's request or answer */
#define PLACES 16         /* clients at a time, */
#define ANSWERS 4         /* and those that are being written to */

/* How long a good client waits behind N others, FDS, which are then closed. */
static uint64_t wait_behind(const struct rig *rig, const int *fds, int n)
{
	uint64_t before = clock_now_ms(), waited;

	expect_alive(rig);
	waited = clock_now_ms() - before;
	for (int i = 0; i < n; i++)
		close(fds[i]);
	return waited;
}

/* A place is free: nobody waits.  None is: until one is, which is when a request's time is up. */
static void test_silent_clients(void **state)
{
	struct rig *rig = *state;
	int fds[PLACES];

	for (int i = 0; i < PLACES - 1; i++)
		fds[i] = dial(rig->path);
	assert_true(wait_behind(rig, fds, PLACES - 1) < REQUEST_MS);
	for (int i = 0; i < PLACES; i++)
		fds[i] = dial(rig->path);
	assert_true(wait_behind(rig, fds, PLACES) < DEADLINE_MS);
}

/* Clients that do not read what fits into no socket. */
static void deafen(const struct rig *rig, int *fds, int n)
{
	static const char request[] = LARGE "\n";

	for (int i = 0; i < n; i++) {
		struct pollfd p = { .events = POLLIN };

		p.fd = fds[i] = dial(rig->path);
		say(fds[i], request, strlen(request));
		assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	}
}

/* The same for those that do not take their answer. */
static void test_deaf_clients(void **state)
{
	struct rig *rig = *state;
	int fds[ANSWERS];
	uint64_t waited;

	rig->large = 3000000;
	deafen(rig, fds, ANSWERS - 1);
	assert_true(wait_behind(rig, fds, ANSWERS - 1) < REQUEST_MS);
	deafen(rig, fds, ANSWERS);
	waited = wait_behind(rig, fds, ANSWERS);
	assert_true(waited > REQUEST_MS && waited < PATIENCE_MS);
}

/* --- a turn --- */

static _Atomic bool held, inside;

/* On the control thread. */
static void hold(int sig)
{
	int error = errno;

	(void)sig;
	inside = true;
	while (held)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	errno = error;
}

/* The control thread stops in a signal's handler, as it would without a CPU: it alone takes it. */
static void hold_control_thread(sigset_t *old)
{
	struct sigaction action = { .sa_handler = hold };
	sigset_t mine;

	sigemptyset(&mine);
	sigaddset(&mine, SIGUSR1);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &mine, old), 0);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	held = true;
	inside = false;
	assert_int_equal(kill(getpid(), SIGUSR1), 0);
	for (uint64_t end = clock_now_ms() + PATIENCE_MS; !inside; short_pause())
		assert_true(clock_now_ms() < end);
}

/* The daemon has read all that FD has said. */
static void wait_read(int fd)
{
	uint64_t end = clock_now_ms() + PATIENCE_MS;
	int left = 1;

	while (left) {
		assert_int_equal(ioctl(fd, SIOCOUTQ, &left), 0);
		assert_true(clock_now_ms() < end);
		short_pause();
	}
}

/*
 * Who has asked and waits, because others do not take their answers, has his turn when their time
 * is up, even if that is so for all of them at once and nothing else happens then.
 */
static void test_turn_comes(void **state)
{
	static const char request[] = STATUS "\n";
	struct rig *rig = *state;
	int deaf[ANSWERS], waiting;
	uint64_t begin;
	sigset_t old;
	char buf[256];

	rig->large = 3000000;
	deafen(rig, deaf, ANSWERS);
	waiting = dial(rig->path);
	say(waiting, request, strlen(request));
	wait_read(waiting);
	begin = clock_now_ms();
	hold_control_thread(&old);
	while (clock_now_ms() < begin + DEADLINE_MS + 100)
		short_pause();
	held = false;
	expect_line(buf, hear(waiting, buf, sizeof(buf)), "text");
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
	for (int i = 0; i < ANSWERS; i++)
		close(deaf[i]);
}

/* Whose request comes too late, in part or not at all, is told so before the connection ends. */
static void test_told(void **state)
{
	static const char *const parts[] = { "", "{\"command\":" };
	struct rig *rig = *state;
	char buf[256];

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		size_t len = ask(rig, parts[i], strlen(parts[i]), buf, sizeof(buf));

		expect_line(buf, len, "error");
		assert_non_null(strstr(buf, "\"code\":\"timeout\""));
	}
}

/* It is the daemon that is late: the request has come in time. */
static void test_late_daemon(void **state)
{
	static const char request[] = STATUS "\n";
	struct rig *rig = *state;
	int fd = dial(rig->path);
	uint64_t begin;
	sigset_t old;
	char buf[256];

	say(fd, request, 5);
	wait_read(fd);
	begin = clock_now_ms();
	hold_control_thread(&old);
	say(fd, request + 5, strlen(request) - 5);
	while (clock_now_ms() < begin + REQUEST_MS + 100)
		short_pause();
	held = false;
	expect_line(buf, hear(fd, buf, sizeof(buf)), "text");
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
}

/*
 * What was asked for while the daemon stood still is changed for those who wait, also if they have
 * said that they ask no more, and not for those who have gone.
 */
static void test_gone(void **state)
{
	static const char request[] = "{\"command\":\"kill\",\"all\":true}\n";
	enum { GONE, SHUT, WAITS, CLIENTS };
	struct rig *rig = *state;
	int fds[CLIENTS];
	sigset_t old;
	char buf[256];

	log_set_level(LOG_ERR);
	hold_control_thread(&old);
	for (int i = 0; i < CLIENTS; i++) {
		fds[i] = dial(rig->path);
		say(fds[i], request, strlen(request));
	}
	close(fds[GONE]);
	assert_int_equal(shutdown(fds[SHUT], SHUT_WR), 0);
	held = false;
	for (int i = SHUT; i < CLIENTS; i++)
		expect_line(buf, hear(fds[i], buf, sizeof(buf)), "text");
	expect_alive(rig);
	assert_int_equal(rig->changes, CLIENTS - 1);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
}

/* A request of one byte a time is over when its time is up, however alive its client is. */
static void test_endless_drops(void **state)
{
	struct rig *rig = *state;
	uint64_t begin = clock_now_ms();
	int fd = dial(rig->path);

	while (send(fd, " ", 1, MSG_NOSIGNAL) == 1) {
		assert_true(clock_now_ms() - begin < PATIENCE_MS);
		short_pause();
	}
	assert_true(clock_now_ms() - begin > REQUEST_MS / 2);
	close(fd);
}

/* The daemon ends at once, whatever its clients do. */
static void test_close_is_quick(void **state)
{
	static const char request[] = LARGE "\n";

	for (int deaf = 0; deaf < 2; deaf++) {
		struct rig *rig;
		uint64_t before;
		int fd;

		assert_int_equal(rig_setup(state), 0);
		rig = *state;
		rig->large = 3000000;
		fd = dial(rig->path);
		if (deaf) {
			struct pollfd p = { .fd = fd, .events = POLLIN };

			say(fd, request, strlen(request));
			assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
		}
		before = clock_now_ms();
		control_close(rig->control);
		rig->control = NULL;
		assert_true(clock_now_ms() - before < DEADLINE_MS / 2);
		close(fd);
		assert_int_equal(rig_teardown(state), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_RIG(test_silent_clients),
		ON_RIG(test_deaf_clients),
		ON_RIG(test_turn_comes),
		ON_RIG(test_told),
		ON_RIG(test_late_daemon),
		ON_RIG(test_gone),
		ON_RIG(test_endless_drops),
		cmocka_unit_test(test_close_is_quick),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
