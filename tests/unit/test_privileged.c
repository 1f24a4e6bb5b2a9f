/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The privileged process: what it may be asked for, what it gives to the daemon, and what it does
 * where somebody else asks, who has taken over the daemon.  `seccomp = kill`: a system call that
 * its filter does not know ends it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "config/read.h"
#include "config_rig.h"
#include "daemon/privileged_client.h"
#include "base/sandbox.h"
#include "seeded.h"

#define HEAD "[culvert]\nseccomp = kill\n"
#define NUMBERS                                                                                    \
	HEAD "[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:9\n"                         \
	     "[forward b]\nlisten = [::1]:0\nupstream = 127.0.0.1:9\n"
#define NAMED HEAD "[forward a]\nlisten = 127.0.0.1:0\nupstream = db.invalid:5432\n"
#define SERVICE HEAD "[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:http\n"
#define MANY WORKERS_MAX /* descriptors: as many as can be asked for */

static char err[2048];
static char *words[] = { (char *)"run", (char *)"--config", rig_path, NULL };
static struct config config; /* of the start */

static void parse(const char *text, struct config *c)
{
	rig_write(text);
	assert_int_equal(config_read(3, words, -1, c), 0);
}

/* --- what it may be asked for --- */

static struct config known[2];

static int judge(const struct privileged_request *q)
{
	const struct forward_conf *fc;
	const char *why = NULL;
	int r = privileged_judge(q, sizeof(*q), known, &fc, &why);

	assert_true(r ? why && *why : (fc != NULL) == (q->op != PRIVILEGED_READ_CONFIG));
	return r;
}

static struct privileged_request listen_on(const char *where)
{
	struct privileged_request q = { .op = PRIVILEGED_LISTEN, .count = 1 };
	struct endpoint e;

	assert_null(endpoint_parse(where, true, false, &e));
	q.addr = e.addrs[0];
	q.udp = e.udp;
	endpoint_close(&e);
	return q;
}

static void know(void)
{
	parse("[forward web]\nlisten = 0.0.0.0:443\nupstream = db.invalid:1\n"
	      "[forward any]\nlisten = [::1]:0\nupstream = db.invalid:2\n"
	      "[forward all]\nlisten = :25\nupstream = db.invalid:3\n"
	      "[forward udp]\nlisten = :53/udp\nupstream = db.invalid:3\n"
	      "[forward udp-marked]\nlisten = :54/udp\nupstream = db.invalid:3\nmark = 9\n"
	      "[forward file]\nlisten = unix:/run/a\nupstream = db.invalid:3\n"
	      "[forward hidden]\nlisten = unix:@a\nupstream = db.invalid:3\n"
	      "[forward marked]\nlisten = :26\nupstream = db.invalid:3\nmark = 7\n"
	      "[forward clear]\nlisten = :27\nupstream = db.invalid:3\ntransparent = yes\n",
	      &known[0]);
	parse("[forward web]\nlisten = 0.0.0.0:444\nupstream = db.invalid:1\n", &known[1]);
}

static void forget(void)
{
	config_close(&known[0]);
	config_close(&known[1]);
	memset(known, 0, sizeof(known));
}

/* Each address of LIST, which are between blanks. */
static void expect_listen(const char *list, int want)
{
	char copy[256], *at = copy;

	snprintf(copy, sizeof(copy), "%s", list);
	for (const char *where; (where = strsep(&at, " "));) {
		struct privileged_request q = listen_on(where);

		if (judge(&q) != want)
			fail_msg("%s: not %d", where, want);
	}
}

/* Port 0 is the kernel's choice, which is none of the privileged ones. */
TEST(test_listen_rules)
{
	know();
	expect_listen("0.0.0.0:443 0.0.0.0:444 [::1]:0 [::1]:1024 [::1]:65535 0.0.0.0:25 [::]:25 "
		      "0.0.0.0:53/udp unix:/run/a unix:@a",
		      0);
	expect_listen("0.0.0.0:445 127.0.0.1:443 [::]:443 0.0.0.0:0 [::1]:1023 [::2]:1024 "
		      "127.0.0.1:1024 127.0.0.1:25 0.0.0.0:27 0.0.0.0:53 0.0.0.0:25/udp "
		      "unix:/run/ab unix:/run unix:@ab",
		      -EPERM);
	forget();
}

/* A host name stands for any address. */
TEST(test_host_rules)
{
	parse("[forward h]\nlisten = host.invalid:993-995\nupstream = 192.0.2.1:3\n", &known[0]);
	expect_listen("192.0.2.1:993 [2001:db8::1]:993 192.0.2.1:995", 0);
	expect_listen("192.0.2.1:996 192.0.2.1:992 192.0.2.1:0 192.0.2.1:5000 unix:@a", -EPERM);
	forget();
	parse("[forward h]\nlisten = host.invalid:0\nupstream = 192.0.2.1:3\n", &known[0]);
	expect_listen("192.0.2.1:0 192.0.2.1:5000", 0);
	expect_listen("192.0.2.1:993 unix:@a", -EPERM);
	forget();
}

#define SOCKETS(...)                                                                               \
	{                                                                                          \
		.op = PRIVILEGED_SOCKETS, __VA_ARGS__                                              \
	}
#define REVIVE(shift)                                                                              \
	{                                                                                          \
		.op = PRIVILEGED_REVIVE, .count = 1, .side = {.ipv6 = 1, .read_shift = (shift) }   \
	}

TEST(test_other_rules)
{
	static const struct {
		int want;
		struct privileged_request q;
	} cases[] = {
		{ 0, SOCKETS(.count = 1, .family = AF_INET, .mark = 7) },
		{ 0, SOCKETS(.count = WORKERS_MAX, .family = AF_INET6, .transparent = 1) },
		{ 0, SOCKETS(.count = 1, .family = AF_INET, .mark = 9, .udp = 1) },
		{ -EPERM, SOCKETS(.count = 1, .family = AF_INET, .mark = 9) },
		{ -EPERM, SOCKETS(.count = 1, .family = AF_INET, .mark = 7, .udp = 1) },
		{ -EBADMSG, SOCKETS(.count = 1, .family = AF_INET, .mark = 9, .udp = 2) },
		{ -EPERM, SOCKETS(.count = 1, .family = AF_INET) },
		{ -EPERM, SOCKETS(.count = 1, .family = AF_INET, .mark = 8) },
		{ -EPERM, SOCKETS(.count = 1, .family = AF_INET, .mark = 7, .transparent = 1) },
		{ -EBADMSG, SOCKETS(.count = 1, .family = AF_UNIX, .mark = 7) },
		{ -EBADMSG, SOCKETS(.count = 1, .family = AF_PACKET, .mark = 7) },
		{ -EBADMSG, SOCKETS(.count = 0, .family = AF_INET, .mark = 7) },
		{ 0, { .op = PRIVILEGED_READ_CONFIG, .count = PRIVILEGED_FILES } },
		{ 0, { .op = PRIVILEGED_READ_CONFIG, .count = PRIVILEGED_FILES, .took = 1 } },
		{ -EBADMSG, { .op = PRIVILEGED_READ_CONFIG, .count = PRIVILEGED_FILES, .took = 2 } },
		{ -EBADMSG, { .op = PRIVILEGED_READ_CONFIG, .count = 2 } },
		{ -EBADMSG, { .op = 0, .count = 1 } },
		{ -EBADMSG, { .op = 1000, .count = 1 } },
		{ 0, REVIVE(14) },
		{ -EBADMSG, REVIVE(15) },
	};
	struct privileged_request q = { .op = PRIVILEGED_READ_CONFIG, .count = PRIVILEGED_FILES };

	know();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (judge(&cases[i].q) != cases[i].want)
			fail_msg("case %zu: not %d", i, cases[i].want);
	known[0].file = NULL; /* none was given at the start */
	assert_int_equal(judge(&q), -EPERM);
	forget();
}

TEST(test_odd_listeners)
{
	static const struct {
		int want;
		const char *where;
		unsigned int count, joins, udp;
	} rows[] = {
		{ -EBADMSG, "unix:/run/a", 1, 1, 0 },
		{ -EBADMSG, "unix:/run/a", 1, 0, 1 },
		{ -EBADMSG, "unix:/run/a", 2, 0, 0 },
		{ -EBADMSG, "0.0.0.0:443", 1, 2, 0 },
		{ 0, "0.0.0.0:443", WORKERS_MAX, 1, 0 },
		{ -EBADMSG, "0.0.0.0:443", WORKERS_MAX + 1, 1, 0 },
	};
	struct privileged_request q = { 0 };

	know();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		q = listen_on(rows[i].where);
		q.count = rows[i].count;
		q.joins = rows[i].joins;
		q.udp = rows[i].udp;
		if (judge(&q) != rows[i].want)
			fail_msg("row %zu: not %d", i, rows[i].want);
	}
	q.count = 1;
	for (socklen_t len = 0; len < 300; len++) {
		q.addr.len = len;
		assert_int_equal(judge(&q), len == sizeof(struct sockaddr_in) ? 0 : -EBADMSG);
	}
	forget();
}

/* --- what it gives --- */

/* What close(2) does to a privileged process that is started meanwhile: wait first, or end it. */
#define CLOSE_MS 100
static enum { AS_EVER, SLOWLY, IS_THE_END } closes;
static pid_t self;

int close(int fd)
{
	if (closes == SLOWLY && getpid() != self)
		poll(NULL, 0, CLOSE_MS);
	if (closes == IS_THE_END && getpid() != self)
		_exit(1);
	return (int)syscall(SYS_close, fd);
}

static struct privileged *start(const char *text)
{
	struct privileged *p = NULL;

	parse(text, &config);
	assert_int_equal(privileged_start(&config, 3, words, NULL, &p), 0);
	return p;
}

static struct privileged *start_closing(int how)
{
	struct privileged *p;

	self = getpid();
	closes = how;
	p = start(NUMBERS);
	closes = AS_EVER;
	return p;
}

/* Its exit code once it has ended, 1000 + the signal that has ended it. */
static int end_of(struct privileged *p)
{
	int status;

	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	close(p->fd);
	free(p);
	config_close(&config);
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void stop(struct privileged *p)
{
	shutdown(p->fd, SHUT_RDWR);
	assert_int_equal(end_of(p), 0);
}

static void write_and_read(struct privileged *p, bool took, const char *text)
{
	int fds[PRIVILEGED_FILES];
	char got[1024];

	rig_write(text);
	if (privileged_open_config(p, took, fds, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(read(fds[PRIVILEGED_CONFIG], got, sizeof(got)), strlen(text));
	assert_memory_equal(got, text, strlen(text));
	for (int i = 0; i < PRIVILEGED_FILES; i++)
		close(fds[i]);
}

static void read_bad(struct privileged *p, int error, const char *says)
{
	int fds[PRIVILEGED_FILES];

	assert_int_equal(privileged_open_config(p, false, fds, err, sizeof(err)), error);
	if (!strstr(err, says))
		fail_msg("%s", err);
}

TEST(test_config)
{
	struct privileged *p = start(NUMBERS);

	write_and_read(p, false, NUMBERS);
	write_and_read(p, true, SERVICE); /* which it looks up itself */
	rig_write("[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:9\nnonsense = 1\n");
	read_bad(p, -EINVAL, "c:4: nonsense: unknown key");
	assert_int_equal(chmod(rig_path, 0622), 0);
	read_bad(p, -EPERM, "can be written by others");
	unlink(rig_path);
	read_bad(p, -ENOENT, "");
	write_and_read(p, false, NAMED);
	stop(p);
}

static int ask_for_listener(struct privileged *p, const struct forward_conf *fc, bool joins)
{
	struct addr a = fc->listen.addrs[0];
	int fd, r = privileged_listen(p, fc, &a, joins, 1, &fd, err, sizeof(err));

	if (!r)
		close(fd);
	return r;
}

/* Both the configuration in use and the one that was read last count, and no other. */
TEST(test_kept)
{
	static const char two[] = HEAD
		"[forward a]\nlisten = 127.0.0.2:0\nupstream = db.invalid:1\n";
	struct privileged *p = start(NUMBERS);
	const struct forward_conf *old = &config.forwards[0], *new;
	struct config next;

	parse(two, &next);
	new = &next.forwards[0];
	for (int i = 0; i < 3; i++) { /* that the daemon does not take over */
		write_and_read(p, false, two);
		assert_int_equal(ask_for_listener(p, old, false), 0);
		assert_int_equal(ask_for_listener(p, new, false), 0);
	}
	rig_write("");
	read_bad(p, -EINVAL, "nothing to forward");
	assert_int_equal(ask_for_listener(p, new, false), -EPERM);
	write_and_read(p, false, two);
	write_and_read(p, true, two);
	assert_int_equal(ask_for_listener(p, old, false), -EPERM);
	assert_non_null(strstr(err, "no forward listens on that address"));
	assert_int_equal(ask_for_listener(p, new, false), 0);
	config_close(&next);
	stop(p);
}

static void check_listener(int fd, const struct addr *want)
{
	struct addr a = { .len = sizeof(a.ss) };
	int client = socket(want->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(getsockname(fd, (struct sockaddr *)&a.ss, &a.len), 0);
	assert_true(addr_equal(&a, want));
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(connect(client, (struct sockaddr *)&a.ss, a.len), 0);
	close(client);
}

/* One datagram to A comes to one of the N sockets FDS. */
static void check_receives(const int *fds, size_t n, const struct addr *a)
{
	int client = socket(a->ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct pollfd ready[MANY];

	for (size_t i = 0; i < n; i++)
		ready[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
	assert_int_equal(sendto(client, "a", 1, 0, (struct sockaddr *)&a->ss, a->len), 1);
	assert_int_equal(poll(ready, n, 5000), 1);
	close(client);
}

TEST(test_listen)
{
	struct privileged *p = start(
		NUMBERS "[forward c]\nlisten = 127.0.0.1:0/udp\nupstream = 127.0.0.1:9\n"
			"[forward d]\nlisten = [::1]:0/udp\nupstream = 127.0.0.1:9\n");
	int fds[MANY], fd;

	for (size_t i = 0; i < 4; i++) {
		const struct forward_conf *fc = &config.forwards[i];
		struct addr a = fc->listen.addrs[0], b;

		if (privileged_listen(p, fc, &a, false, MANY, fds, err, sizeof(err)))
			fail_msg("%s", err);
		b = a;
		/* SO_REUSEPORT alone would let them in */
		assert_int_equal(privileged_listen(p, fc, &b, false, 1, &fd, err, sizeof(err)),
				 -EADDRINUSE);
		if (fc->listen.udp) {
			check_receives(fds, MANY, &a);
		} else {
			check_listener(fds[0], &a);
			check_listener(fds[MANY - 1], &a);
			assert_int_equal(
				privileged_listen(p, fc, &b, true, 1, &fd, err, sizeof(err)), 0);
			check_listener(fd, &a);
			close(fd);
		}
		for (size_t k = 0; k < MANY; k++)
			close(fds[k]);
	}
	stop(p);
}

TEST(test_unix_listener)
{
	char text[256], file[128];
	struct privileged *p;
	struct stat st;
	struct addr a;
	int fd;

	snprintf(file, sizeof(file), "%s/s", rig_dir);
	snprintf(text, sizeof(text), HEAD "[forward u]\nlisten = unix:%s\nupstream = 127.0.0.1:9\n",
		 file);
	p = start(text);
	a = config.forwards[0].listen.addrs[0];
	for (int i = 0; i < 2; i++) { /* the file of the first is left over */
		if (privileged_listen(p, config.forwards, &a, false, 1, &fd, err, sizeof(err)))
			fail_msg("%s", err);
		check_listener(fd, &a);
		assert_int_equal(stat(file, &st), 0);
		assert_int_equal(st.st_mode & 0777, 0666);
		/* somebody listens */
		assert_int_equal(ask_for_listener(p, config.forwards, false), -EADDRINUSE);
		close(fd);
	}
	unlink(file);
	stop(p);
}

/*
 * Nobody else has what it hands over.  Such a file would stay in epoll when its descriptor here is
 * closed, and what came for it then would be told of whatever is at that place in memory by then.
 */
TEST(test_closed)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int fd, epoll = epoll_create1(EPOLL_CLOEXEC);
	struct privileged *p = start_closing(SLOWLY);
	struct addr a = config.forwards[0].listen.addrs[0];

	if (privileged_listen(p, config.forwards, &a, false, 1, &fd, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev), 0);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a.ss, a.len), -1);
	assert_int_equal(errno, ECONNREFUSED);
	assert_int_equal(epoll_wait(epoll, &ev, 1, 0), 0);
	close(fd);
	close(epoll);
	stop(p);
}

/* It may end before it has closed them: then none are used, and none are kept. */
TEST(test_ends_before_closed)
{
	struct privileged *p = start_closing(IS_THE_END);
	struct addr a = config.forwards[0].listen.addrs[0];
	int fds[MANY], before = dup(STDERR_FILENO), after;

	close(before);
	/* of one that joins, nothing is closed before the answer */
	assert_int_equal(privileged_listen(p, config.forwards, &a, true, MANY, fds, err,
					   sizeof(err)),
			 -EPIPE);
	after = dup(STDERR_FILENO);
	close(after);
	assert_int_equal(after, before);
	assert_int_equal(end_of(p), 1);
}

/* --- who has taken over the daemon --- */

static struct privileged_request good_request(void)
{
	return (struct privileged_request){ .op = PRIVILEGED_LISTEN,
					    .count = 1,
					    .addr = config.forwards[0].listen.addrs[0] };
}

TEST(test_malformed)
{
	static const size_t sizes[] = { 1, 4, sizeof(struct privileged_request) - 1,
					sizeof(struct privileged_request) + 1, 60000 };
	static char noise[60000];

	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)(i * 7919 >> 3);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct privileged *p = start(NUMBERS);

		assert_int_equal(send(p->fd, noise, sizes[i], MSG_NOSIGNAL), sizes[i]);
		assert_int_equal(end_of(p), 1);
	}
}

/* It takes no descriptors, and keeps none of those that it hands over. */
TEST(test_descriptors)
{
	struct privileged *p = start(NUMBERS);
	struct privileged_request q = good_request();
	char room[CMSG_SPACE(sizeof(int))] = { 0 }, byte;
	struct iovec iov = { &q, sizeof(q) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = room,
			    .msg_controllen = sizeof(room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	struct privileged_answer a;
	unsigned int before;
	char name[64];

	snprintf(name, sizeof(name), "/proc/%d/fd", (int)p->pid);
	before = descriptors_of(name); /* 0: not dumpable, which root alone looks at */
	if (!geteuid() && !BUILT_WITH_SANITIZER)
		assert_int_equal(before, 4);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &(int){ STDERR_FILENO }, sizeof(int));
	for (int i = 0; i < 2 * WORKERS_MAX; i++) { /* what comes first goes unread */
		assert_int_equal(sendmsg(p->fd, &m, MSG_NOSIGNAL), sizeof(q));
		assert_int_equal(recv(p->fd, &byte, 1, 0), 1);
		assert_int_equal(recv(p->fd, &a, sizeof(a), 0), sizeof(a));
		assert_int_equal(a.error, 0);
	}
	assert_int_equal(descriptors_of(name), before);
	stop(p);
}

/* What a terminal or systemd sends to all is for the daemon to heed. */
TEST(test_signals)
{
	static const int signals[] = { SIGINT,  SIGQUIT, SIGTERM, SIGHUP, SIGUSR1,
				       SIGUSR2, SIGALRM, SIGPIPE, SIGTSTP };
	struct privileged *p = start(NUMBERS);

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		assert_int_equal(kill(p->pid, signals[i]), 0);
	assert_int_equal(ask_for_listener(p, config.forwards, false), 0);
	stop(p);
}

UNIT_MAIN(rig_open, rig_close)
