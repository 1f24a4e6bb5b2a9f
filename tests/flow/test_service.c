// SPDX-License-Identifier: BSD-2-Clause
/*
 * What culvert does for and with systemd: listening sockets that it is given (socket activation),
 * on every engine, and the watchdog.
 */
#include "forward_rig.h"

#include <sys/stat.h>
#include <sys/un.h>

#include "config/endpoint.h"
#include "hold.h"

#define TEST_SECONDS 240
#define FORWARD_ONE "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM
#define FORWARD_TWO "[forward two]\nlisten = " TWO "\n" TO_UPSTREAM

/* --- socket activation --- */

/* What the next daemon is given; each descriptor stays ours, too. */
static void give(const int *fds, size_t n)
{
	rig_given = fds;
	rig_n_given = n;
}

static int open_listener(const char *addr)
{
	int fd = net_listen(addr, 100);

	if (fd < 0)
		fail_msg("%s: %s", addr, strerror(-fd));
	return fd;
}

/* On [::]:9001, for IPv4 clients as well or not. */
static int listen_on_any(int v6only)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(9001) };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof(v6only));
	assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any)), 0);
	assert_int_equal(listen(fd, 100), 0);
	return fd;
}

/* CLIENT, which may have waited for it, has a session. */
static void serve(int client)
{
	struct ends e = { client, rig_accept() };

	rig_talk_on(e, 10);
	rig_hang_up(e);
}

/* It is the given socket that accepts; and who comes while no daemon runs is served by the next. */
ROW(given)
{
	int fd = open_listener(ONE), waiting;
	struct daemon *d;

	give(&fd, 1);
	d = rig_start(*state, FORWARD_ONE FORWARD_TWO);
	is_served(ONE);
	is_served(TWO); /* opened by itself */
	rig_stop(d);

	waiting = rig_dial(NULL, ONE);
	rig_accept_none();
	d = rig_start(*state, FORWARD_ONE);
	serve(waiting);
	rig_stop(d);
	close(fd);
}

/* One socket for every address of each family. */
ROW(given_families)
{
	int fds[] = { open_listener("0.0.0.0:9001"), listen_on_any(1) };
	struct daemon *d;

	give(fds, 2);
	d = rig_start(*state, "[forward one]\nlisten = :9001\n" TO_UPSTREAM);
	is_served(ONE);
	is_served("[::1]:9001");
	rig_stop(d);
	close(fds[0]);
	close(fds[1]);
}

/* A forward that goes and comes back has its socket again, and the client that came between. */
ROW(given_reload)
{
	int fd = open_listener(ONE), waiting;
	struct daemon *d;

	give(&fd, 1);
	d = rig_start(*state, FORWARD_ONE);
	is_served(ONE);
	rig_reload_good(d, FORWARD_TWO);
	is_served(TWO);
	waiting = rig_dial(NULL, ONE);
	rig_accept_none();
	rig_reload_good(d, FORWARD_ONE);
	serve(waiting);
	rig_stop(d);
	close(fd);
}

static int udp_socket(const char *addr)
{
	struct endpoint e;
	int fd;

	assert_null(endpoint_parse(addr, true, true, &e));
	fd = keep(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	assert_int_equal(bind(fd, (struct sockaddr *)&e.addrs[0].ss, e.addrs[0].len), 0);
	endpoint_close(&e);
	return fd;
}

/* Clients of every worker are answered at ONE. */
static void ask_all(int server)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(9001),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	for (char i = 0; i < 20; i++) {
		int client = udp_socket("127.0.0.1:0");
		struct sockaddr_storage from;
		socklen_t len = sizeof(from);
		char got = -1;

		assert_int_equal(sendto(client, &i, 1, 0, (struct sockaddr *)&to, sizeof(to)), 1);
		assert_int_equal(recvfrom(server, &got, 1, 0, (struct sockaddr *)&from, &len), 1);
		assert_int_equal(got, i);
		assert_int_equal(sendto(server, &i, 1, 0, (struct sockaddr *)&from, len), 1);
		got = -1;
		assert_int_equal(recv(client, &got, 1, 0), 1);
		assert_int_equal(got, i);
		forget(client);
	}
}

/* Of UDP and of TCP at one address; each forward has its own, and has it again. */
ROW(given_udp)
{
#define FORWARD_UDP "[forward udp]\nlisten = " ONE "/udp\nresponses = 1\n" TO_UPSTREAM
	int fds[] = { open_listener(ONE), udp_socket(ONE) }, server = udp_socket(RIG_UPSTREAM);
	struct daemon *d;

	give(fds, 2);
	rig_refuses(*state, FORWARD_ONE, "no forward listens on " ONE "/udp, which systemd");
	d = rig_start(*state, FORWARD_UDP FORWARD_ONE);
	ask_all(server);
	is_served(ONE);
	rig_reload_good(d, FORWARD_ONE);
	rig_reload_good(d, FORWARD_ONE FORWARD_UDP);
	ask_all(server);
	is_served(ONE);
	rig_stop(d);
	close(fds[0]);
}

/* Its file is systemd's: it stays. */
ROW(given_unix)
{
	char addr[128], text[300];
	struct daemon *d;
	struct stat st;
	int fd;

	snprintf(addr, sizeof(addr), "unix:%s/given.sock", env_dir());
	unlink(addr + strlen("unix:"));
	fd = open_listener(addr);
	give(&fd, 1);
	snprintf(text, sizeof(text), "[forward one]\nlisten = %s\n" TO_UPSTREAM, addr);
	d = rig_start(*state, text);
	rig_open(addr);
	rig_stop(d);
	assert_int_equal(stat(addr + strlen("unix:"), &st), 0);
	rig_dial(NULL, addr); /* and somebody still listens */
	close(fd);
}

ROW_ONCE(useless_descriptors)
{
	static const int types[] = { SOCK_STREAM, SOCK_DGRAM }; /* the first does not listen */
	int fds[] = { open_listener(TWO), STDIN_FILENO }, pair[2], any;

	give(fds, 1);
	rig_refuses(*state, FORWARD_ONE,
		    "no forward listens on " TWO ", which systemd has opened "
		    "for culvert");
	give(fds, 2);
	rig_refuses(*state, FORWARD_ONE,
		    "descriptor 4, which systemd has opened for culvert: not a "
		    "stream socket that listens");
	close(fds[0]);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, pair), 0);
		give(pair, 1);
		rig_refuses(*state, FORWARD_ONE, "not a stream socket that listens");
		close(pair[0]);
		close(pair[1]);
	}
	/* systemd's ListenStream=PORT */
	any = listen_on_any(0);
	give(&any, 1);
	rig_refuses(*state, "[forward one]\nlisten = :9001\n" TO_UPSTREAM,
		    "takes IPv4 clients, too");
	close(any);
}

/* --- the watchdog --- */

#define WATCHDOG_USEC "120000"
#define QUIET_MS 300 /* more than twice that */
#define MESSAGES 12  /* of threads that are not watched, before that is taken for granted */
#define THREADS_MAX 64

static int notify_fd = -1;

static void listen_for_messages(void)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	snprintf(un.sun_path, sizeof(un.sun_path), "%s/notify", env_dir());
	unlink(un.sun_path);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_true(notify_fd >= 0);
	assert_int_equal(bind(notify_fd, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_int_equal(chmod(un.sun_path, 0666), 0);
	setenv("NOTIFY_SOCKET", un.sun_path, 1);
	setenv("WATCHDOG_USEC", WATCHDOG_USEC, 1);
}

/* Is there a "WATCHDOG=1" within MS?  Other messages do not count. */
static bool hear(int ms)
{
	struct pollfd p = { .fd = notify_fd, .events = POLLIN };
	char text[256];
	ssize_t n;

	while (poll(&p, 1, ms) == 1) {
		n = recv(notify_fd, text, sizeof(text) - 1, 0);
		if (n < 0)
			continue;
		text[n] = '\0';
		if (strstr(text, "WATCHDOG=1"))
			return true;
	}
	return false;
}

static void forget_messages(void)
{
	while (hear(0))
		;
}

static size_t count_text(struct daemon *d, const char *text)
{
	char *log = daemon_stderr(d), *at = log;
	size_t n = 0;

	while (at && (at = strstr(at, text))) {
		n++;
		at += strlen(text);
	}
	free(log);
	return n;
}

/*
 * Stop thread TID until a thread is said to hang, and let it go on again: then there must be
 * messages.  Were there none before?  (If it is not watched, another may have been late.)
 */
static bool silent_without(struct daemon *d, pid_t tid)
{
	size_t before = count_text(d, " has hung");
	bool noticed = false, silent = false;

	assert_int_equal(hold_begin(tid), 0);
	for (int i = 0; i < MESSAGES && !noticed; i++) {
		hear(QUIET_MS);
		noticed = count_text(d, " has hung") > before;
	}
	if (noticed) {
		forget_messages();
		silent = !hear(QUIET_MS);
	}
	hold_end(tid);
	if (!hear(RIG_PATIENCE_MS))
		fail_msg("systemd is not told that all is well again");
	return silent;
}

ROW_ONCE(watchdog)
{
	pid_t pid, tids[THREADS_MAX];
	size_t n, silent = 0;
	struct daemon *d;

	listen_for_messages();
	/* nobody reads messages before that, and sd_notify(3) waits for room */
	d = rig_start(*state, "[culvert]\nworkers = 2\nprobe = no\n" FORWARD_ONE);
	for (int i = 0; i < 3; i++)
		assert_true(hear(RIG_PATIENCE_MS)); /* of an idle daemon */
	pid = rig_pid(d);
	n = hold_threads(pid, tids, THREADS_MAX);
	for (size_t i = 0; i < n; i++)
		if (tids[i] != pid)
			silent += silent_without(d, tids[i]);
	assert_true(silent >= 2);
	assert_true(count_text(d, "worker 0 has hung") > 0);
	assert_true(count_text(d, "worker 1 has hung") > 0);
	assert_int_equal(count_text(d, "control"), 0); /* nobody waits for it */
	/* the one that tells systemd; nobody is left to notice */
	assert_int_equal(kill(pid, SIGSTOP), 0);
	forget_messages();
	hear(100); /* one may have been on its way */
	assert_false(hear(QUIET_MS));
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_true(hear(RIG_PATIENCE_MS));
	rig_stop(d);
}

/* Without WATCHDOG_USEC there is nothing to tell. */
ROW_ONCE(no_watchdog)
{
	struct daemon *d;

	listen_for_messages();
	unsetenv("WATCHDOG_USEC");
	d = rig_start(*state, FORWARD_ONE);
	assert_false(hear(QUIET_MS / 2));
	rig_stop(d);
}

/* After each test nothing is given, and nobody is told. */
static void tidy(void)
{
	give(NULL, 0);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	if (notify_fd >= 0)
		close(notify_fd);
	notify_fd = -1;
}

int main(void)
{
	env_need_ipv6("test_service");
	rig_tidy = tidy;
	return rig_run("test_service", TEST_SECONDS);
}
