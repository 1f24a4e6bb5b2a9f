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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <linux/sockios.h>

#include <cmocka.h>

#include "base/log.h"
#include "control_rig.h"
#include "daemon/control.h"
#include "seeded.h"

#define STATUS "{\"command\":\"status\"}"
#define REQUEST_MS 500
#define DEADLINE_MS 2000  /* of the daemon, for one client's request or answer */
/* Of clients that may change something: */
#define PLACES 8          /* at a time, */
#define ANSWERS 2         /* and those that are being written to */
/* The same of those that may only watch. */
#define WATCHERS 24
#define WATCHERS_ANSWERS 4
#define OTHER 61236       /* a uid; no account of this machine is needed */
#define TRIES 20

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

/* The daemon has closed the connection FD. */
static bool has_ended(int fd)
{
	struct pollfd p = { .fd = fd };

	return poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
}

static int count_ended(const int *fds, int n)
{
	int ended = 0;

	for (int i = 0; i < n; i++)
		ended += has_ended(fds[i]);
	return ended;
}

static void hang_up(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

/*
 * The same for those that do not take their answer: the next one waits until one of them has been
 * ended, which is so before they would be late if nobody waited.
 */
static void test_deaf_clients(void **state)
{
	struct rig *rig = *state;
	uint64_t began, answered = 0;
	int fds[ANSWERS], ended;

	log_set_level(LOG_ERR);
	rig->large = 3000000;
	deafen(rig, fds, ANSWERS - 1);
	expect_alive(rig);
	hang_up(fds, ANSWERS - 1);
	for (int i = 0; i < TRIES; i++) {
		began = clock_now_ms();
		deafen(rig, fds, ANSWERS);
		expect_alive(rig);
		answered = clock_now_ms() - began;
		ended = count_ended(fds, ANSWERS);
		hang_up(fds, ANSWERS);
		assert_true(ended > 0);
		if (answered < DEADLINE_MS)
			return;
	}
	fail_msg("the next one has waited for %d ms", (int)answered);
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

/* --- who may only watch --- */

static int watch_setup(void **state)
{
	struct rig *rig;

	if (rig_setup(state))
		return -1;
	rig = *state;
	return chmod(rig->dir, 0755);
}

/* This thread alone asks as another user, of the daemon's group: libc would change them all. */
static void watch_with(const struct rig *rig, int fd)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	strcpy(un.sun_path, rig->path);
	assert_int_equal(syscall(SYS_setresuid, -1, OTHER, -1), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_int_equal(syscall(SYS_setresuid, -1, 0, -1), 0);
}

static int dial_watcher(const struct rig *rig)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	watch_with(rig, fd);
	return fd;
}

/* As many deaf watchers as there may be; those that can be have an answer that they do not take. */
static void deafen_watchers(const struct rig *rig, int *fds)
{
	static const char request[] = LARGE "\n";

	for (int i = 0; i < WATCHERS; i++) {
		fds[i] = dial_watcher(rig);
		say(fds[i], request, strlen(request));
		wait_read(fds[i]);
	}
	for (int i = 0; i < WATCHERS_ANSWERS; i++) {
		struct pollfd p = { .fd = fds[i], .events = POLLIN };

		assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	}
}

/*
 * Watchers that do not take their answers have all their places; whoever may change something does
 * not wait for any of them to be ended.  One watcher more is told that there is no place.
 */
static void test_deaf_watchers(void **state)
{
	static const char change[] = "{\"command\":\"kill\",\"all\":true}\n";
	struct rig *rig = *state;
	char buf[256], busy[256];
	int fds[WATCHERS], ended = 0;

	if (geteuid()) {
		printf("skip: only root can be another user\n");
		skip();
	}
	log_set_level(LOG_ERR);
	rig->large = 3000000;
	for (int i = 0; i < TRIES; i++) {
		deafen_watchers(rig, fds);
		expect_line(buf, ask(rig, change, strlen(change), buf, sizeof(buf)), "text");
		hear(dial_watcher(rig), busy, sizeof(busy));
		ended = count_ended(fds, WATCHERS);
		hang_up(fds, WATCHERS);
		if (!ended) {
			assert_non_null(strstr(busy, "\"code\":\"busy\""));
			return;
		}
	}
	fail_msg("%d deaf ones were ended first", ended);
}

/* A watcher waits for those that came before it, and not for those that come later. */
static void test_watchers_in_turn(void **state)
{
	struct rig *rig = *state;
	int fds[WATCHERS], last[2];
	char buf[256];

	if (geteuid()) {
		printf("skip: only root can be another user\n");
		skip();
	}
	log_set_level(LOG_ERR);
	rig->large = 3000000;
	deafen_watchers(rig, fds);
	/* the first places of all become free, and are taken by the last to come */
	hang_up(fds, WATCHERS_ANSWERS);
	for (int i = 0; i < 2; i++) {
		last[i] = dial_watcher(rig);
		say(last[i], STATUS "\n", strlen(STATUS "\n"));
	}
	expect_line(buf, hear(last[0], buf, sizeof(buf)), "text");
	/* all that came earlier have been answered, and all but those that left room for it ended */
	assert_true(count_ended(fds + WATCHERS_ANSWERS, WATCHERS - WATCHERS_ANSWERS) >
		    WATCHERS - 2 * WATCHERS_ANSWERS);
	hear(last[1], buf, sizeof(buf));
	hang_up(fds + WATCHERS_ANSWERS, WATCHERS - WATCHERS_ANSWERS);
}

#define FEW 128 /* descriptors */

/*
 * When all descriptors are in use a watcher gets a spare one, but not the last: whoever may change
 * something is served while the watcher has it.
 */
static void test_last_descriptor(void **state)
{
	static const char request[] = LARGE "\n";
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct rig *rig = *state;
	struct pollfd p = { .events = POLLIN };
	int master, ended = 1, n, fds[2], taken[FEW];
	struct rlimit old, few;
	char buf[256];

	if (geteuid()) {
		printf("skip: only root can be another user\n");
		skip();
	}
	log_set_level(LOG_ERR);
	rig->large = 3000000;
	strcpy(un.sun_path, rig->path);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = (struct rlimit){ .rlim_cur = FEW, .rlim_max = old.rlim_max };
	for (int i = 0; i < TRIES && ended; i++) {
		master = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		for (int k = 0; k < 2; k++)
			fds[k] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
		for (n = 0; n < FEW && (taken[n] = dup(STDERR_FILENO)) >= 0; n++)
			;
		for (int k = 0; k < 2; k++) {
			watch_with(rig, fds[k]);
			say(fds[k], request, strlen(request));
			p.fd = fds[k];
			assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
		}
		assert_int_equal(connect(master, (struct sockaddr *)&un, sizeof(un)), 0);
		say(master, STATUS "\n", strlen(STATUS "\n"));
		expect_line(buf, hear(master, buf, sizeof(buf)), "text");
		ended = has_ended(fds[0]);
		hang_up(taken, n);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
		expect_line(buf, hear(fds[1], buf, sizeof(buf)), "error");
		close(fds[0]);
	}
	assert_false(ended);
}

#define ON_WATCH(f) cmocka_unit_test_setup_teardown(f, watch_setup, rig_teardown)

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
		ON_WATCH(test_deaf_watchers),
		ON_WATCH(test_watchers_in_turn),
		ON_WATCH(test_last_descriptor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
