/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which workers carry the sessions, as it shows from outside: where new connections go, that
 * sessions change their worker while they run and none of them notices, and that the daemon takes
 * another worker when one has too much to do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"
#include "pairs.h"
#include "peer.h"

#define TEST_SECONDS 280
#define PATIENCE_MS PAIRS_PATIENCE_MS
#define LISTEN "127.0.0.1:9000"
#define UPSTREAM "127.0.0.1:9100"
#define LISTEN_UNIX "127.0.0.1:9001" /* the upstream is a unix socket */
#define WORKERS 4

static struct daemon *running;
static int upstream_fd, unix_fd;
static const char *culvert, *listen_at;
static char unix_upstream[300];

/* --- the daemon --- */

static struct daemon *start(const char *engine, const char *const *args)
{
	struct daemon_conf conf = { .culvert = culvert, .engine = engine, .args = args };
	struct daemon *d = NULL;
	char why[1024];
	int r = daemon_start(&conf, &d, why, sizeof(why));

	if (r == -ENOTSUP) {
		printf("skip: engine %s: %s\n", engine, why);
		skip();
	}
	if (r)
		fail_msg("the daemon does not start: %s", why);
	running = d;
	listen_at = LISTEN;
	return d;
}

#define START(engine, ...) \
	start(engine, (const char *const[]){ __VA_ARGS__, LISTEN, UPSTREAM, LISTEN_UNIX,          \
					     unix_upstream, NULL })

static void stop(struct daemon *d)
{
	char why[1024];

	if (daemon_wait_idle(d, PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
	running = NULL;
	if (daemon_stop(d, PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
}

static void failed(const char *why)
{
	fail_msg("%s", why);
}

/* Of a test that failed. */
static int clean_up(void **state)
{
	(void)state;
	pairs_forget();
	net_drain_listener(upstream_fd);
	net_drain_listener(unix_fd);
	daemon_kill(running);
	running = NULL;
	return 0;
}

static struct pair *open_session(enum habit habit)
{
	return pair_open(habit, listen_at, strcmp(listen_at, LISTEN_UNIX) ? upstream_fd : unix_fd);
}

static int64_t status_int(struct daemon *d, const char *path)
{
	struct json_object *o = NULL;
	int64_t n;

	assert_int_equal(daemon_query(d, "status", PATIENCE_MS, &o), 0);
	n = json_int(o, path);
	json_object_put(o);
	return n;
}

/* Run, and look again and again, until CONDITION. */
static void look_until(struct daemon *d, bool (*condition)(void), int64_t ms, const char *what)
{
	int64_t deadline = deadline_after(ms), next = 0;

	do {
		if (now_ms() > deadline)
			fail_msg("%s: not within %lld ms; %lld sessions moved, %lld workers active",
				 what, (long long)ms, (long long)status_int(d, "sessions_moved"),
				 (long long)status_int(d, "workers_active"));
		pairs_run();
		if (now_ms() < next)
			continue;
		pairs_look(d);
		next = now_ms() + 5;
	} while (!next || !condition());
}

/* --- new connections --- */

static void little_load_has_one_worker(void **state)
{
	struct daemon *d = START("auto", "--workers", "4", "--spread", "auto");

	(void)state;
	for (int i = 0; i < 24; i++)
		open_session(IDLE);
	pairs_look(d);
	for (unsigned int i = 0; i < n_pairs; i++)
		assert_int_equal(pairs[i].worker, 0);
	assert_int_equal(status_int(d, "workers"), WORKERS);
	assert_int_equal(status_int(d, "workers_active"), 1);
	assert_int_equal(status_int(d, "sessions_moved"), 0);
	pairs_end();
	stop(d);
}

static void all_workers_get_some(void **state)
{
	struct daemon *d = START("auto", "--workers", "4", "--spread", "all");

	(void)state;
	for (int i = 0; i < 32; i++)
		open_session(IDLE);
	pairs_look(d);
	/* by a hash of the client's port: all 32 at one are less likely than one in 10^18 */
	assert_true(pairs_workers() > 1);
	assert_int_equal(status_int(d, "workers_active"), WORKERS);
	pairs_end();
	assert_int_equal(status_int(d, "sessions_moved"), 0);
	stop(d);
}

/* Nobody steers a unix socket's connections: what another worker accepts moves to the first. */
static void unix_listener(void **state)
{
	char path[300];
	struct daemon *d;

	(void)state;
	snprintf(path, sizeof(path), "unix:%s/listen.sock", env_dir());
	d = start("auto", (const char *const[]){ "--workers", "4", "--spread", "auto", path,
						 UPSTREAM, LISTEN, UPSTREAM, NULL });
	listen_at = path;
	for (int i = 0; i < 16; i++)
		open_session(i % 2 ? TURNS : STREAM);
	/* a unix client has no port, so its sessions are told apart by their place in the list */
	for (int64_t deadline = deadline_after(PATIENCE_MS);;) {
		struct json_object *o = NULL, *list;
		size_t elsewhere = 0;

		pairs_run();
		assert_int_equal(daemon_query(d, "sessions", PATIENCE_MS, &o), 0);
		list = json_at(o, "sessions");
		assert_int_equal(json_object_array_length(list), n_pairs);
		for (size_t i = 0; i < n_pairs; i++)
			elsewhere += json_int(json_object_array_get_idx(list, i), "worker") != 0;
		json_object_put(o);
		if (!elsewhere)
			break;
		if (now_ms() > deadline)
			fail_msg("%zu sessions stay elsewhere", elsewhere);
	}
	assert_int_equal(status_int(d, "workers_active"), 1);
	pairs_end();
	stop(d);
}

/* --- sessions that move --- */

static bool has_moved(const struct pair *p)
{
	return p->changes >= 3;
}

/* All that are not in the kernel. */
static bool all_have_moved(void)
{
	for (unsigned int i = 0; i < n_pairs; i++)
		if (!pairs[i].kernel && !has_moved(&pairs[i]))
			return false;
	return pairs_looks >= 100;
}

static bool looked_often(void)
{
	return pairs_looks >= 100;
}

static void open_mixed(unsigned int each)
{
	for (unsigned int i = 0; i < each; i++) {
		open_session(IDLE);
		open_session(BIG_TURNS);
		open_session(TURNS);
		open_session(STREAM);
	}
}

/*
 * The settling time keeps the flows of --engine auto in user space, where all of them can move.
 * With --engine sockmap the kernel has them, and whoever is there stays; but not those whose
 * upstream is a unix socket.
 */
static void rotation(void **state)
{
	const char *engine = *state;
	struct daemon *d = START(engine, "--workers", "4", "--spread", "rotate", "--settle",
				 "3600");
	unsigned int movers = 0;
	int64_t moved;

	open_mixed(2);
	listen_at = LISTEN_UNIX;
	open_mixed(2);
	look_until(d, all_have_moved, PATIENCE_MS, "all have moved");
	moved = status_int(d, "sessions_moved");
	for (unsigned int i = 0; i < n_pairs; i++)
		movers += has_moved(&pairs[i]);
	assert_true(movers >= (strcmp(engine, "sockmap") != 0 ? n_pairs : n_pairs / 2));
	assert_true(moved >= 3 * movers);
	print_message("%s: %lld moves of %u sessions, %u looks\n", engine, (long long)moved,
		      movers, pairs_looks);
	pairs_end();
	stop(d);
}

static struct pair *resident;
static int64_t home;

static bool resident_is_in(void)
{
	home = resident->worker;
	return resident->kernel;
}

static bool others_have_moved(void)
{
	if (!resident->kernel)
		fail_msg("the session has left the kernel");
	if (resident->worker != home)
		fail_msg("a session has changed its worker in the kernel");
	return all_have_moved();
}

static bool resident_has_moved(void)
{
	return has_moved(resident);
}

/* In the kernel a session stays where it is; after that it moves as others do. */
static void resident_of_the_kernel(void **state)
{
	struct daemon *d = START("auto", "--workers", "4", "--spread", "rotate", "--settle", "0");

	(void)state;
	if (!status_int(d, "kernel.available")) {
		printf("skip: this kernel cannot redirect\n");
		skip();
	}
	for (int i = 0; i < 6; i++)
		open_session(i % 2 ? BIG_TURNS : IDLE);
	resident = open_session(TURNS);
	look_until(d, resident_is_in, PATIENCE_MS, "the session enters the kernel");
	look_until(d, others_have_moved, PATIENCE_MS, "the others move");
	resident->changes = 0;
	pair_end_habit(resident, "wp0 w64K S8M wp2 G" ENDLESS ":64K:64K",
		  "wp0 R8M H" ENDLESS ":64K:64K");
	resident->habit = BIG_TURNS;
	look_until(d, resident_has_moved, PATIENCE_MS, "the session moves after it has left");
	assert_true(resident->server.rounds_left && resident->client.rounds_left);
	pairs_end();
	stop(d);
}

/* --- the end of the daemon --- */

/* Some sessions end within the grace, with all their bytes; the others are reset after it. */
static void sigterm_while_sessions_move(void **state)
{
	const char *engine = *state;
	struct daemon *d = START(engine, "--workers", "4", "--spread", "rotate", "--settle", "3600",
				 "--grace", "2");
	int64_t begin;
	char why[1024];

	open_mixed(4);
	look_until(d, looked_often, PATIENCE_MS, "looks");
	begin = now_ms();
	daemon_signal(d, SIGTERM);
	for (unsigned int i = 0; i < n_pairs; i++) {
		if (i / 4 % 2)
			pair_end_habit(&pairs[i], "wp0 G3:100:100 S200K F R100K E",
				  "wp0 H3:100:100 R200K E S100K F");
		else
			pair_end_habit(&pairs[i], "wp0 rst R1", "wp0 rst R1");
	}
	while (pairs_run())
		if (now_ms() > begin + 20000 * env_slow())
			fail_msg("the sessions do not end");
	running = NULL;
	if (daemon_join(d, PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
	/* the reset ones were given their time, and not more */
	assert_in_range(now_ms() - begin, 1900, 6000 * env_slow());
}

/* --- growth --- */

static bool on_two_workers(void)
{
	return pairs_workers() > 1;
}

/*
 * A small buffer makes the daemon work for its bytes, and each event dear: so it grows even where
 * no CPU idles.
 */
static void growth(void **state)
{
	int64_t deadline = deadline_after(60000);
	struct daemon *d;
	cpu_set_t cpus;

	(void)state;
	if (!sched_getaffinity(0, sizeof(cpus), &cpus) && CPU_COUNT(&cpus) < 2) {
		print_message("skip growth: one CPU is not worth a second worker\n");
		skip();
	}
	d = START("copy", "--workers", "2", "--spread", "auto", "--copy-buffer", "4K");
	for (int i = 0; i < 8; i++)
		open_session(BULK);
	while (status_int(d, "workers_active") < 2) {
		if (now_ms() > deadline)
			fail_msg("no second worker");
		for (int64_t until = now_ms() + 50; now_ms() < until;)
			pairs_run();
	}
	look_until(d, on_two_workers, 60000, "sessions on both workers");
	assert_true(status_int(d, "sessions_moved") > 0);
	pairs_end();
	stop(d);
}

/* --- */

static void parse_options(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--culvert") != 0 || i + 1 == argc) {
			fprintf(stderr, "test_balance [--culvert PATH]\n");
			exit(2);
		}
		culvert = realpath(argv[++i], NULL);
		if (!culvert) {
			perror(argv[i]);
			exit(1);
		}
	}
}

#define OF_ENGINE(test, engine)                                                                   \
	{ #test ", " #engine, test, NULL, clean_up, engine }

/* Not const, for cmocka. */
static char automatic[] = "auto", sockmap[] = "sockmap", spliced[] = "splice", copy[] = "copy";

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(little_load_has_one_worker, clean_up),
		cmocka_unit_test_teardown(all_workers_get_some, clean_up),
		cmocka_unit_test_teardown(unix_listener, clean_up),
		OF_ENGINE(rotation, automatic),
		OF_ENGINE(rotation, sockmap),
		OF_ENGINE(rotation, spliced),
		OF_ENGINE(rotation, copy),
		cmocka_unit_test_teardown(resident_of_the_kernel, clean_up),
		OF_ENGINE(sigterm_while_sessions_move, automatic),
		OF_ENGINE(sigterm_while_sessions_move, sockmap),
		OF_ENGINE(sigterm_while_sessions_move, spliced),
		OF_ENGINE(sigterm_while_sessions_move, copy),
		cmocka_unit_test_teardown(growth, clean_up),
	};
	int r;

	parse_options(argc, argv);
	pairs_failed = failed;
	env_enter("test_balance", TEST_SECONDS);
	upstream_fd = net_listen(UPSTREAM, 128);
	if (upstream_fd < 0) {
		fprintf(stderr, "%s: %s\n", UPSTREAM, strerror(-upstream_fd));
		return 1;
	}
	snprintf(unix_upstream, sizeof(unix_upstream), "unix:%s/upstream.sock", env_dir());
	unix_fd = net_listen(unix_upstream, 128);
	if (unix_fd < 0) {
		fprintf(stderr, "%s: %s\n", unix_upstream, strerror(-unix_fd));
		return 1;
	}
	r = cmocka_run_group_tests(tests, NULL, NULL);
	close(unix_fd);
	close(upstream_fd);
	return r;
}
