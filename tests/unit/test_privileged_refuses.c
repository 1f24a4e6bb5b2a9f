/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The privileged process, asked as somebody would who has taken over the daemon: what it refuses,
 * when it ends, and what it has that could be got hold of.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/privileged.h"
#include "daemon/syscall_filter.h"
#include "privileged_rig.h"

struct raw {
	pid_t pid;
	int fd;
};

static struct raw start_raw(void)
{
	struct privileged_answer a;
	struct raw w;
	int fds[2];

	write_file(NUMBERS);
	assert_int_equal(config_parse(3, words, &config), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	w.pid = fork();
	if (!w.pid)
		privileged_run(fds[1], &config, 3, words);
	assert_true(w.pid > 0);
	close(fds[1]);
	w.fd = fds[0];
	assert_int_equal(recv(w.fd, &a, sizeof(a), 0), sizeof(a));
	if (a.error)
		fail_msg("%s", a.text);
	return w;
}

/* Its exit code once it has ended, 1000 + the signal that has ended it. */
static int end_of(struct raw *w)
{
	int status;

	assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
	close(w->fd);
	config_close(&config);
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int end_by_eof(struct raw *w)
{
	shutdown(w->fd, SHUT_RDWR);
	return end_of(w);
}

static struct privileged_request good_request(void)
{
	return (struct privileged_request){
		.op = PRIVILEGED_LISTEN, .count = 1,
		.addr = config.forwards[0].listen.addrs[0],
	};
}

/* What follows an answer with descriptors. */
static void expect_closed(struct raw *w)
{
	char c;

	assert_int_equal(recv(w->fd, &c, 1, MSG_TRUNC), 1);
	assert_int_equal(c, PRIVILEGED_CLOSED);
}

static int ask(struct raw *w, const struct privileged_request *q, struct privileged_answer *a)
{
	assert_int_equal(send(w->fd, q, sizeof(*q), MSG_NOSIGNAL), sizeof(*q));
	assert_int_equal(recv(w->fd, a, sizeof(*a), 0), sizeof(*a));
	if (!a->error)
		expect_closed(w);
	return a->error;
}

static void test_malformed(void **state)
{
	static const size_t sizes[] = { 1, 4, sizeof(struct privileged_request) - 1,
					sizeof(struct privileged_request) + 1, 60000 };
	static char noise[60000];

	(void)state;
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)(i * 7919 >> 3);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct raw w = start_raw();

		assert_int_equal(send(w.fd, noise, sizes[i], MSG_NOSIGNAL), sizes[i]);
		assert_int_equal(end_of(&w), 1);
	}
	for (int i = 0; i < 3; i++) {
		struct raw w = start_raw();
		struct privileged_request q = good_request();

		if (i == 0)
			q.op = 99;
		else if (i == 1)
			q.count = PRIVILEGED_FDS + 1;
		else
			q.addr.len = 5;
		assert_int_equal(send(w.fd, &q, sizeof(q), MSG_NOSIGNAL), sizeof(q));
		assert_int_equal(end_of(&w), 1);
	}
}

/* All forwards and generations near the edges, and all privileged ports. */
static void test_refused(void **state)
{
	struct raw w = start_raw();
	struct privileged_request good = good_request(), q = good;
	struct privileged_answer a;

	(void)state;
	for (uint32_t port = 1; port < 1024; port++) {
		((struct sockaddr_in *)&q.addr.ss)->sin_port = htons((uint16_t)port);
		assert_int_equal(ask(&w, &q, &a), EPERM);
	}
	q = good;
	((struct sockaddr_in *)&q.addr.ss)->sin_addr.s_addr = htonl(INADDR_ANY);
	assert_int_equal(ask(&w, &q, &a), EPERM);
	assert_string_equal(a.text, "the forward does not listen on that address");
	q = good;
	for (uint32_t i = 1; i; i <<= 1) {
		q.forward = i; /* 1 listens, but on another address */
		assert_int_equal(ask(&w, &q, &a), EPERM);
	}
	q = good;
	for (uint32_t i = 1; i; i <<= 1) {
		q.generation = i;
		assert_int_equal(ask(&w, &q, &a), EPERM);
	}
	for (int i = 0; i < 5000; i++)
		assert_int_equal(ask(&w, &q, &a), EPERM);
	assert_int_equal(ask(&w, &good, &a), 0); /* its socket goes unread, and is closed */
	assert_int_equal(end_by_eof(&w), 0);
}

static size_t descriptors_of(pid_t pid)
{
	char name[64];
	size_t n = 0;
	DIR *d;

	snprintf(name, sizeof(name), "/proc/%d/fd", (int)pid);
	d = opendir(name);
	if (!d) /* not dumpable: for root alone */
		return 0;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* It takes no descriptors, and keeps none of those that it hands over. */
static void test_descriptors(void **state)
{
	struct raw w = start_raw();
	struct privileged_request q = good_request();
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { &q, sizeof(q) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
			    .msg_controllen = sizeof(room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	struct privileged_answer a;
	size_t before = descriptors_of(w.pid);

	(void)state;
	if (!geteuid() && !syscall_filter_hindrance())
		assert_int_equal(before, 4);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &(int){ STDERR_FILENO }, sizeof(int));
	for (int i = 0; i < 300; i++) {
		assert_int_equal(sendmsg(w.fd, &m, MSG_NOSIGNAL), sizeof(q));
		assert_int_equal(recv(w.fd, &a, sizeof(a), 0), sizeof(a));
		assert_int_equal(a.error, 0);
		expect_closed(&w);
	}
	q.count = PRIVILEGED_FDS; /* it has room for as many as it may be asked for */
	assert_int_equal(ask(&w, &q, &a), 0);
	assert_int_equal(descriptors_of(w.pid), before);
	assert_int_equal(end_by_eof(&w), 0);
}

/* --- what it has --- */

static void test_confined(void **state)
{
	struct raw w = start_raw();
	char name[64], text[4096] = "", want[64];
	bool root = !geteuid();
	FILE *f;

	(void)state;
	snprintf(name, sizeof(name), "/proc/%d/status", (int)w.pid);
	f = fopen(name, "re");
	assert_non_null(f);
	assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
	fclose(f);
	assert_non_null(strstr(text, "Name:\tculvert-priv\n"));
	snprintf(want, sizeof(want), "Uid:\t%u\t%u\t%u\t%u\n", geteuid(), geteuid(), geteuid(),
		 geteuid());
	assert_non_null(strstr(text, want));
	assert_non_null(strstr(text, "CapInh:\t0000000000000000\n"));
	assert_non_null(strstr(text, "CapAmb:\t0000000000000000\n"));
	if (root) {
		assert_non_null(strstr(text, "Groups:\t \n"));
		assert_non_null(strstr(text, "CapPrm:\t0000000000001400\n"));
		assert_non_null(strstr(text, "CapEff:\t0000000000001400\n"));
		assert_non_null(strstr(text, "CapBnd:\t0000000000001400\n"));
	} else {
		assert_non_null(strstr(text, "CapPrm:\t0000000000000000\n"));
	}
	assert_non_null(strstr(text, "NoNewPrivs:\t1\n"));
	if (!syscall_filter_hindrance())
		assert_non_null(strstr(text, "Seccomp:\t2\n"));
	assert_int_equal(end_by_eof(&w), 0);
}

/* What a terminal or systemd sends to all is for the daemon to heed. */
static void test_signals(void **state)
{
	static const int signals[] = { SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2,
				       SIGALRM, SIGPIPE, SIGTSTP };
	struct raw w = start_raw();
	struct privileged_request q = good_request();
	struct privileged_answer a;

	(void)state;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		assert_int_equal(kill(w.pid, signals[i]), 0);
	assert_int_equal(ask(&w, &q, &a), 0);
	assert_int_equal(end_by_eof(&w), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_confined),
		cmocka_unit_test(test_signals),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
