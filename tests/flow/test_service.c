// SPDX-License-Identifier: BSD-2-Clause
/*
 * Listening sockets that culvert is given, as by systemd (socket activation).  service_systemd.py
 * has systemd itself, and its watchdog.
 */
#include "forward_rig.h"

#include <sys/stat.h>

#define TEST_SECONDS 240
#define FORWARD_ONE FORWARD("one", ONE, "")
#define FORWARD_TWO FORWARD("two", TWO, "")

/* What the next daemon is given; each descriptor stays ours, too. */
static void give(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		assert_true(fds[i] >= 0);
	rig_given = fds;
	rig_n_given = n;
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

/* One socket for every address of each family. */
ROW_ONCE(given_families)
{
	int fds[] = { net_listen("0.0.0.0:9001", 100), listen_on_any(1) };
	struct daemon *d;

	give(fds, 2);
	d = rig_start(*state, FORWARD("one", ":9001", ""));
	is_served(ONE);
	is_served("[::1]:9001");
	rig_stop(d);
	close(fds[0]);
	close(fds[1]);
}

/* A forward that goes and comes back has its socket again, and the client that came between. */
ROW_ONCE(given_reload)
{
	int fd = net_listen(ONE, 100);
	struct daemon *d;
	struct ends e;

	give(&fd, 1);
	d = rig_start(*state, FORWARD_ONE);
	is_served(ONE);
	rig_reload_good(d, FORWARD_TWO);
	is_served(TWO);
	e.client = rig_dial(NULL, ONE);
	rig_accept_none();
	rig_reload_good(d, FORWARD_ONE);
	e.server = rig_accept();
	rig_talk_on(e, 10);
	rig_stop(d);
	close(fd);
}

static int udp_socket(const char *addr)
{
	int fd = keep(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	struct sockaddr_storage own;
	socklen_t len;

	assert_int_equal(net_addr(addr, &own, &len), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, len), 0);
	return fd;
}

/* Clients of every worker are answered at ONE. */
static void ask_all(int server)
{
	struct sockaddr_storage to, from;
	socklen_t to_len, len = sizeof(from);

	assert_int_equal(net_addr(ONE, &to, &to_len), 0);
	for (char i = 0; i < 20; i++) {
		int client = udp_socket("127.0.0.1:0");
		char got = -1;

		assert_int_equal(sendto(client, &i, 1, 0, (struct sockaddr *)&to, to_len), 1);
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
ROW_ONCE(given_udp)
{
#define FORWARD_UDP FORWARD("udp", ONE "/udp", "responses = 1\n")
	int fds[] = { net_listen(ONE, 100), udp_socket(ONE) }, server = udp_socket(RIG_UPSTREAM);
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
ROW_ONCE(given_unix)
{
	const char *addr = textf("unix:%s/given.sock", env_dir());
	struct daemon *d;
	struct stat st;
	int fd;

	unlink(addr + strlen("unix:"));
	fd = net_listen(addr, 100);
	give(&fd, 1);
	d = rig_start(*state, textf(FORWARD("one", "%s", ""), addr));
	rig_open(addr);
	rig_stop(d);
	assert_int_equal(stat(addr + strlen("unix:"), &st), 0);
	rig_dial(NULL, addr); /* and somebody still listens */
	close(fd);
}

ROW_ONCE(useless_descriptors)
{
	static const int types[] = { SOCK_STREAM, SOCK_DGRAM }; /* the first does not listen */
	int fds[] = { net_listen(TWO, 100), STDIN_FILENO }, pair[2], any;

	give(fds, 1);
	rig_refuses(*state, FORWARD_ONE,
		    "no forward listens on " TWO ", which systemd has opened "
		    "for culvert");
	give(fds, 2);
	rig_refuses(*state, FORWARD_ONE,
		    "descriptor 4, which systemd has opened for culvert, is of no "
		    "use: it needs ListenStream=");
	close(fds[0]);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, pair), 0);
		give(pair, 1);
		rig_refuses(*state, FORWARD_ONE, "is of no use: it needs ListenStream=");
		close(pair[0]);
		close(pair[1]);
	}
	/* systemd's ListenStream=PORT */
	any = listen_on_any(0);
	give(&any, 1);
	rig_refuses(*state, FORWARD("one", ":9001", ""), "[::] also needs BindIPv6Only=ipv6-only");
	close(any);
}

/* After each test nothing is given. */
static void tidy(void)
{
	give(NULL, 0);
}

int main(void)
{
	env_need_ipv6("test_service");
	rig_tidy = tidy;
	return rig_run("test_service", TEST_SECONDS);
}
