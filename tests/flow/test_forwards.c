// SPDX-License-Identifier: BSD-2-Clause
/*
 * Settings of a [forward NAME].  Most tests have a forward that inherits those of [culvert].
 */
#include "forward_rig.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "load.h"

#define TEST_SECONDS 280
#define ANY FORWARD("any", ONE, "")

#define SMALL 1000U /* auto takes large writes for bulk */
#define POUR 12000000U

/* The limits bound what the kernel queues: the other engines queue nothing there. */
ROW(limits)
{
	struct daemon *d = rig_start(
		*state, "[culvert]\nsoft-limit = 512M\nhard-limit = 512M\n" FORWARD("wide", ONE, "")
				FORWARD("tight", TWO, "soft-limit = 64K\nhard-limit = 128K\n"));
	const char *carrier = rig_carrier(d, *state);
	struct ends wide = rig_open_carried(d, *state, "wide", ONE);
	struct ends tight = rig_open_carried(d, *state, "tight", TWO);
	size_t poured = rig_give(wide.client, SMALL, POUR, 300);

	rig_give(tight.client, SMALL, POUR, 300);
	if (!strcmp(carrier, "sockmap")) {
		assert_int_equal(poured, POUR);
		assert_string_equal(rig_flow_text(d, "wide", 0, "carrier"), "sockmap");
		assert_true(rig_flow_int(d, "wide", 0, "backlog_max") > 1 << 20);
		/* it has left; where it is now, auto may have found a reason for */
		assert_true(rig_flow_int(d, "tight", 0, "handovers") >= 2);
		assert_true(rig_status(d, "handovers.to_copy") +
				    rig_status(d, "handovers.to_splice") >=
			    1);
		assert_true(rig_flow_int(d, "tight", 0, "backlog_max") < 1 << 20);
	} else {
		assert_int_equal(rig_flow_int(d, "wide", 0, "backlog_max"), 0);
		assert_int_equal(rig_flow_int(d, "tight", 0, "backlog_max"), 0);
	}
	rig_stop(d);
}

/* One too many waits in the backlog until it is its turn, be the limit that of all or a forward's. */
ROW_ONCE(max_sessions)
{
	static const struct {
		const char *text, *error;
	} rows[] = {
		{ "[culvert]\nmax-sessions = 2\nmax-sessions-per-client = 0\n" FORWARD("two", TWO,
										       ""),
		  "errors.session-limit" },
		{ ANY FORWARD("two", TWO, "max-sessions = 2\n"), "errors.forward-limit" },
	};

	for (size_t row = 0; row < 2; row++) {
		struct daemon *d = rig_start(*state, rows[row].text);
		int clients[3], servers[3];

		for (int i = 0; i < 3; i++)
			clients[i] = rig_dial(NULL, TWO);
		servers[0] = rig_accept();
		servers[1] = rig_accept();
		rig_accept_none();
		assert_true(rig_status(d, rows[row].error) >= 1);
		assert_int_equal(rig_status(d, rows[!row].error), 0);
		rig_expect_sessions(d, "two", 2);
		if (row)
			is_served(ONE);
		/* which client is whose server: either of the two */
		rig_reset(servers[0]);
		servers[2] = rig_accept();
		rig_send(servers[1], "1", 1);
		rig_send(servers[2], "2", 1);
		for (int i = 0, served = 0; i < 3; i++) {
			char c;
			ssize_t n = recv(clients[i], &c, 1, 0);

			served += n == 1;
			assert_true(n == 1 || errno == ECONNRESET);
			assert_true(i < 2 || served == 2);
		}
		rig_expect_sessions(d, "two", 2);
		rig_stop(d);
	}
}

#define FEW 128    /* descriptors */
#define HUNGRY 200 /* clients */

/* More clients than descriptors: nothing spins, and once they are gone others are served. */
ROW_ONCE(no_descriptors)
{
	static const char *const args[] = { ONE, RIG_UPSTREAM, NULL };
	struct daemon_conf conf = { .engine = *state, .args = args, .nofile = FEW };
	char why[1024];
	int64_t cpu;

	if (daemon_start(&conf, &running, why, sizeof(why)))
		fail_msg("%s", why);
	for (int i = 0; i < HUNGRY; i++)
		rig_dial(NULL, ONE);
	poll(NULL, 0, 500); /* let it take what it can; what is measured is the time after that */
	cpu = daemon_cpu_ms(running);
	poll(NULL, 0, 1000);
	assert_in_range(daemon_cpu_ms(running) - cpu, 0, 200);
	assert_true(rig_status(running, "errors.no-descriptor") > 0);
	rig_close_sockets();
	rig_wait_status(running, "resources.sessions", 0);
	load_begin(ONE, upstream_fd, 1, 0);
	load_end();
	rig_stop(running);
}

#define CLIENT_A "127.0.0.11:0"
#define CLIENT_B "127.0.0.12:0"
#define CLIENT_C "127.0.0.13:0"

static void is_refused(const char *from, const char *to)
{
	is_turned_away(from, to);
	rig_accept_none();
}

ROW_ONCE(max_sessions_per_client)
{
	struct daemon *d = rig_start(*state, "[culvert]\nmax-sessions-per-client = 4\n" ANY
					     "max-sessions-per-client = 0\n" FORWARD(
						     "few", TWO, "max-sessions-per-client = 2\n"));
	struct ends first = rig_open_from(CLIENT_A, TWO);

	rig_open_from(CLIENT_A, TWO);
	is_refused(CLIENT_A, TWO);
	rig_open_from(CLIENT_B, TWO);
	rig_open_from(CLIENT_A, ONE);
	rig_open_from(CLIENT_A, ONE);
	is_refused(CLIENT_A, ONE); /* two here, two there */
	rig_open_from(CLIENT_B, ONE);
	assert_int_equal(rig_status(d, "errors.client-limit"), 2);
	assert_int_equal(rig_status(d, "resources.clients"), 2);
	rig_wait_log(d, "sessions of this forward have reached max-sessions-per-client: 2");
	rig_wait_log(d, "sessions of all forwards have reached max-sessions-per-client: 4");
	rig_hang_up(first);
	rig_wait_status(d, "resources.sessions", 5);
	rig_open_from(CLIENT_A, TWO);
	rig_close_sockets();
	rig_wait_status(d, "resources.clients", 0);
	rig_stop(d);
}

/* Nothing said: half of all. */
ROW_ONCE(one_client_cannot_take_all_sessions)
{
	struct daemon *d = rig_start(*state, "[culvert]\nmax-sessions = 10\n" ANY);

	for (int i = 0; i < 5; i++)
		rig_open_from(CLIENT_A, ONE);
	is_refused(CLIENT_A, ONE);
	rig_open_from(CLIENT_B, ONE);
	assert_int_equal(rig_status(d, "max_sessions_per_client"), 5);
	rig_stop(d);
}

#define SIX "[::1]:9003"
#define SIX_DENIED "[::1]:9004"

/* A client of a unix socket sees FIN: such sockets know no reset. */
static void is_refused_on_unix(const char *to)
{
	assert_int_equal(rig_end(rig_dial(NULL, to), RIG_PATIENCE_MS), 0);
	rig_accept_none();
}

ROW_ONCE(rules)
{
	const char *mine = textf("unix:%s/mine.sock", env_dir());
	const char *others = textf("unix:%s/others.sock", env_dir());
	const char *text = textf(
		"[culvert]\ndeny = 127.0.0.12\n" FORWARD("inherits", ONE, "") FORWARD(
			"own", TWO,
			"deny = 127.0.0.13, 2001:db8::/32\n"
			"allow = 127.0.0.8/29 ; .8 to .15\n") FORWARD("six", SIX, "allow = ::1\n")
			FORWARD("six-denied", SIX_DENIED, "allow = 127.0.0.0/8\n")
				FORWARD("mine", "%s", "allow = unix:\n")
					FORWARD("others", "%s", "allow = 127.0.0.0/8\n"),
		mine, others);
	struct daemon *d = rig_start(*state, text);

	rig_open_from(CLIENT_A, ONE);
	is_refused(CLIENT_B, ONE);
	rig_open_from(CLIENT_A, TWO);
	rig_open_from(CLIENT_B, TWO);
	is_refused(CLIENT_C, TWO);
	is_refused(NULL, TWO); /* from 127.0.0.1 */
	rig_open(SIX);
	is_refused(NULL, SIX_DENIED);
	rig_open(mine);
	is_refused_on_unix(others);
	assert_int_equal(rig_status(d, "errors.denied"), 5);
	assert_int_equal(rig_status(d, "errors.client-limit"), 0);
	assert_int_equal(rig_status(d, "resources.sessions"), 5);
	rig_wait_log(d, "denied: refused 127.0.0.12:");
	rig_wait_log(d, "forward six-denied does not allow it");
	rig_stop(d);
}

/* Beside each other in the same workers; `any` has the default, which the test runs with. */
ROW(engine)
{
	struct daemon *d = rig_start(
		*state,
		"[culvert]\nworkers = 2\n" ANY FORWARD("auto", TWO, "engine = auto\n")
			FORWARD("graft", THREE, "engine = graft\n") FORWARD("sockmap", FOUR,
									    "engine = sockmap\n")
				FORWARD("splice", "127.0.0.1:9005", "engine = splice\n")
					FORWARD("copy", "127.0.0.1:9006", "engine = copy\n"));
	static const char *const listen[] = { TWO, THREE, FOUR, "127.0.0.1:9005",
					      "127.0.0.1:9006" };
	struct ends each[RIG_ENGINES];

	rig_open_carried(d, *state, "any", ONE);
	for (size_t i = 0; i < RIG_ENGINES; i++)
		each[i] = rig_open_carried(d, rig_engines[i], rig_engines[i], listen[i]);
	for (size_t i = 0; i < RIG_ENGINES; i++)
		rig_talk_on(each[i], 100);
	for (size_t i = 1; i < RIG_ENGINES; i++) {
		assert_int_equal(rig_flow_int(d, rig_engines[i], 0, "handovers"),
				 !strcmp(rig_engines[i], "sockmap") ||
					 !strcmp(rig_engines[i], "graft"));
		assert_string_equal(rig_flow_text(d, rig_engines[i], 0, "reason"), "engine");
		assert_string_equal(rig_flow_text(d, rig_engines[i], 1, "carrier"), rig_engines[i]);
	}
	rig_stop(d);
}

/* --- the policy of the engines --- */

/* Context switches that the threads of PID have asked for, that is, how often they slept. */
static long naps(pid_t pid)
{
	const char *command =
		textf("cat /proc/%d/task/*/status | awk '/^voluntary/ { n += $2 } END { print n }'",
		      (int)pid);
	FILE *f = popen(command, "re");
	char text[32] = "";

	assert_non_null(f);
	assert_non_null(fgets(text, sizeof(text), f));
	assert_int_equal(pclose(f), 0);
	return strtol(text, NULL, 10);
}

/* While a target takes nothing, the daemon sleeps, also if the kernel has a backlog for it. */
ROW(stalled_target)
{
	struct daemon *d = rig_start(*state, ANY);
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;
	pid_t pid = rig_pid(d);
	struct ends e = rig_open_carried(d, *state, "any", ONE);
	static char buf[65536];
	size_t given = 0;
	long before, after;

	do { /* in the end it wakes up once a second, for its sweep */
		given += rig_give(e.client, sizeof(buf), 1 << 30, 0);
		before = naps(pid);
		poll(NULL, 0, 1000); /* what is measured is how often it wakes up by itself */
		after = naps(pid);
		if (now_ms() >= deadline)
			fail_msg("%ld naps in a second, %s", after - before,
				 rig_flow_text(d, "any", 0, "phase"));
	} while (after - before > 3);
	for (size_t n; given; given -= n) {
		n = given < sizeof(buf) ? given : sizeof(buf);
		rig_receive(e.server, buf, n);
	}
	rig_stop(d);
}

/* A copy of the daemon's own TCP socket from port LOCAL to port PEER. */
static int borrow_socket(struct daemon *d, int local, int peer)
{
	int pidfd = (int)syscall(SYS_pidfd_open, rig_pid(d), 0), fd;

	assert_true(pidfd >= 0);
	for (int i = 0; i < 1000; i++) {
		fd = (int)syscall(SYS_pidfd_getfd, pidfd, i, 0);
		if (fd >= 0 && net_port(fd, false) == local && net_port(fd, true) == peer) {
			close(pidfd);
			return fd;
		}
		if (fd >= 0)
			close(fd);
	}
	fail_msg("the daemon has no socket %d -> %d", local, peer);
	return -1;
}

static void check_options(struct daemon *d, int local, int peer, int nodelay, int keepalive)
{
	int fd = borrow_socket(d, local, peer);

	assert_int_equal(rig_option(fd, IPPROTO_TCP, TCP_NODELAY), nodelay);
	assert_int_equal(rig_option(fd, SOL_SOCKET, SO_OOBINLINE), 1);
	/* the upstream's gets it when the session is a second old */
	RIG_WAIT(rig_option(fd, SOL_SOCKET, SO_KEEPALIVE) == (keepalive > 0), "keepalive is not %d",
		 keepalive);
	if (keepalive) {
		assert_int_equal(rig_option(fd, IPPROTO_TCP, TCP_KEEPIDLE), keepalive * 7 / 16);
		assert_int_equal(rig_option(fd, IPPROTO_TCP, TCP_KEEPINTVL), keepalive * 7 / 32);
		assert_int_equal(rig_option(fd, IPPROTO_TCP, TCP_KEEPCNT), 4);
	}
	close(fd);
}

/* Options of accepted sockets are inherited from a listener, which stays when they change. */
ROW_ONCE(socket_options)
{
	static const struct {
		const char *options;
		int nodelay, keepalive;
	} want[] = {
		{ ANY, 1, 50 },
		{ ANY "nodelay = no\nkeepalive = 7\n", 0, 7 },
		{ ANY "keepalive = 0\n", 1, 0 },
		{ ANY, 1, 50 },
	};
	struct daemon *d = rig_start(*state, "[culvert]\nkeepalive = 50\n" ANY);

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct ends e;

		rig_reload_good(d, textf("[culvert]\nkeepalive = 50\n%s", want[i].options));
		e = rig_open(ONE);
		check_options(d, net_port(e.client, true), net_port(e.client, false),
			      want[i].nodelay, want[i].keepalive);
		check_options(d, net_port(e.server, true), net_port(e.server, false),
			      want[i].nodelay, want[i].keepalive);
		rig_hang_up(e);
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_stop(d);
}

/* An end that is gone without a word is noticed, whatever carries the session; else it never is. */
ROW(keepalive)
{
	struct daemon *d = rig_start(*state, ANY FORWARD("own", TWO, "keepalive = 1\n"));

	rig_vanish(rig_open_carried(d, *state, "any", ONE).client);
	for (int gone = 0; gone < 2; gone++) {
		struct ends e = rig_open_carried(d, *state, "own", TWO);

		rig_vanish(gone ? e.server : e.client);
		assert_int_equal(rig_end(gone ? e.client : e.server, 4000), ECONNRESET);
		rig_expect_sessions(d, "own", 0);
	}
	assert_int_equal(rig_status(d, "errors.client-reset"), 1);
	assert_int_equal(rig_status(d, "errors.upstream-reset"), 1);
	rig_expect_sessions(d, "any", 1);
	rig_stop(d);
}

/* Where the kernel takes the ports of those that connect from. */
#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range"

#define ATTEMPTS 400

/*
 * Nobody listens at a port that the kernel may also connect from: nobody is given back their own
 * bytes.
 */
ROW_ONCE(meets_itself)
{
	struct daemon *d;

	rig_put(PORT_RANGE, "40000 40063");
	d = rig_start(*state, "[culvert]\nprobe = no\n"
			      "[forward down]\nlisten = " ONE "\nupstream = 127.0.0.1:40002\n");
	for (int i = 0; i < ATTEMPTS; i++) {
		int fd = rig_dial(NULL, ONE);

		/* whoever has been told of the reset by send(2) is not told again */
		if (send(fd, "own", 3, MSG_NOSIGNAL) == 3)
			assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
		rig_reset(fd);
	}
	assert_int_equal(rig_status(d, "errors.connect-refused"), ATTEMPTS);
	rig_put(PORT_RANGE, "20000 65000"); /* as of env_enter() */
	rig_stop(d);
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Does strace(1) see each thread of PID? */
static bool is_traced(pid_t pid)
{
	/* NOLINTNEXTLINE(cert-env33-c) */
	return !system(textf("! grep -qs '^TracerPid:.0$' /proc/%d/task/*/status", (int)pid));
}

/* Have each call of PID but those that wait for events written to PATH; the PID of strace(1). */
static pid_t trace(pid_t pid, const char *path)
{
	const char *number = textf("%d", (int)pid);
	pid_t strace = fork();

	if (!strace) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execlp("strace", "strace", "-f", "-qq", "-e", "trace=!epoll_wait,epoll_pwait", "-o",
		       path, "-p", number, NULL);
		_exit(127);
	}
	RIG_WAIT(is_traced(pid), "strace does not attach to the daemon");
	return strace;
}

/* Calls that have ended since the last time; a call is written in parts, as it begins and ends. */
static int new_calls(FILE *f)
{
	char line[4096];
	int calls = 0;

	while (fgets(line, sizeof(line), f))
		calls += strchr(line, '\n') && !strstr(line, "<unfinished ");
	clearerr(f);
	return calls;
}

#define SHORT_SESSIONS 25
#define SHORT_SESSION_CALLS 17 /* see design.md, "Short sessions" */

/*
 * Up to three of four may take more: every second one an accept(2) that finds none, for the listener
 * asks once or twice in turn; some an upstream that is not quick enough.
 */
ROW_ONCE(short_sessions)
{
	struct daemon *d = rig_start(*state, "[culvert]\nprobe = no\nworkers = 1\n" ANY);
	pid_t strace = trace(rig_pid(d), textf("%s/strace", env_dir()));
	FILE *f = fopen(textf("%s/strace", env_dir()), "re");
	int calls[SHORT_SESSIONS];

	assert_non_null(f);
	for (int i = 0; i < SHORT_SESSIONS; i++) {
		short_session();
		calls[i] = new_calls(f);
	}
	fclose(f);
	kill(strace, SIGTERM); /* it detaches */
	waitpid(strace, NULL, 0);
	qsort(calls, SHORT_SESSIONS, sizeof(calls[0]), compare);
	/* strace may write the last call of a session late: it is counted with the next session */
	assert_in_range(calls[SHORT_SESSIONS / 4], SHORT_SESSION_CALLS - 1, SHORT_SESSION_CALLS);
	rig_stop(d);
}

/* SO_REUSEPORT spreads them by a hash: all at one of 4 workers is less likely than 1 in 10^18. */
ROW_ONCE(all_workers_get_some)
{
	struct daemon *d = rig_start(*state, "[culvert]\nworkers = 4\n" ANY);
	struct json_object *list;
	int64_t first;
	bool others = false;

	for (int i = 0; i < 32; i++)
		connect_pair(NULL, ONE);
	list = json_at(query(d, "sessions"), "sessions");
	assert_int_equal(json_object_array_length(list), 32);
	first = json_int(json_object_array_get_idx(list, 0), "worker");
	for (size_t i = 1; i < 32; i++)
		others |= json_int(json_object_array_get_idx(list, i), "worker") != first;
	assert_true(others);
	rig_stop(d);
}

/* Who tries to connect from before the daemon's start, and what it has seen of that. */
struct early {
	int client;
	int64_t connected, served;
};

static void *connect_early(void *arg)
{
	struct pollfd server = { .fd = upstream_fd, .events = POLLIN };
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	struct early *e = arg;

	while ((e->client = rig_try_dial(NULL, ONE)) < 0 && now_ms() < deadline)
		poll(NULL, 0, 1);
	e->connected = now_ms();
	poll(&server, 1, RIG_PATIENCE_MS * env_slow());
	e->served = now_ms();
	return NULL;
}

/*
 * Whoever can connect is served at once, and does not wait for what is still to be done at the
 * start, such as to load programs.  One start of some is enough: the machine has other work, too.
 */
ROW_ONCE(listens_when_ready)
{
	bool at_once = false;

	for (int i = 0; i < 5 && !at_once; i++) {
		int64_t begin = now_ms();
		struct early e;
		struct daemon *d;
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, connect_early, &e), 0);
		d = rig_start(*state, ANY);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_true(e.client >= 0);
		at_once = 4 * (e.served - e.connected) < e.connected - begin;
		rig_hang_up((struct ends){ e.client, rig_accept() });
		rig_stop(d);
	}
	assert_true(at_once);
}

#define PORTS 100
#define SERVERS 13000 /* the first port of theirs */
#define RANGE(first)                                                                               \
	"[forward range]\nlisten = 127.0.0.1:" first                                               \
	"\nupstream = 127.0.0.1:13000-13099\n" FORWARD("one", "127.0.0.1:14000-14001", "")

/* The address of PORT here. */
static const char *at_port(int port)
{
	return textf("127.0.0.1:%d", port);
}

/* Client port FIRST + i leads to the server's I, and to no other. */
static void expect_range(struct daemon *d, const int servers[PORTS], int first)
{
	for (int i = 0; i < PORTS; i++) {
		struct ends e = { .client = rig_dial(NULL, at_port(first + i)) };

		e.server = rig_accept_at(servers[i], RIG_PATIENCE_MS);
		rig_talk_on(e, 1);
		rig_expect_sessions(d, "one", 0);
		assert_string_equal(json_text(rig_session(d, "range"), "upstream"),
				    at_port(SERVERS + i));
		rig_reset(e.client);
		rig_reset(e.server);
		rig_wait_status(d, "sessions.live", 0);
	}
}

/* Each port of a range has its own at the server; also when the range moves and sockets stay. */
ROW_ONCE(port_range)
{
	struct daemon *d = rig_start(*state, RANGE("12000-12099"));
	int servers[PORTS];

	for (int i = 0; i < PORTS; i++) {
		servers[i] = net_listen(at_port(SERVERS + i), 10);
		assert_true(servers[i] >= 0);
	}
	expect_range(d, servers, 12000);
	rig_reload_good(d, RANGE("12050-12149"));
	expect_range(d, servers, 12050);
	assert_int_equal(rig_try_dial(NULL, "127.0.0.1:12049"), -ECONNREFUSED);
	is_served("127.0.0.1:14000");
	is_served("127.0.0.1:14001");
	assert_int_equal(json_object_array_length(json_at(query(d, "forwards"), "forwards")), 2);
	for (int i = 0; i < PORTS; i++)
		close(servers[i]);
	rig_stop(d);
}

int main(void)
{
	env_need_ipv6("test_forwards");
	return rig_run("test_forwards", TEST_SECONDS);
}
