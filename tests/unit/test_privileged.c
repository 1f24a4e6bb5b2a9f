/* SPDX-License-Identifier: BSD-2-Clause */
/* The privileged process itself, asked as the daemon asks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/file.h"
#include "daemon/privileged.h"
#include "daemon/privileged_client.h"
#include "privileged_rig.h"

#define SERVICE "[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:http\n"
#define NAMED "[forward a]\nlisten = 127.0.0.1:0\nupstream = db.invalid:5432\n"

static char err[2048];

/* What close(2) does to a privileged process that is started meanwhile: wait first, or end it. */
#define CLOSE_MS 100
static enum { AS_EVER, SLOWLY, IS_THE_END } closes;
static bool in_child;

static void note_child(void)
{
	in_child = true;
}

int close(int fd)
{
	if (in_child && closes == SLOWLY)
		poll(NULL, 0, CLOSE_MS);
	if (in_child && closes == IS_THE_END)
		_exit(1);
	return (int)syscall(SYS_close, fd);
}

static struct privileged *start(const char *text)
{
	struct privileged *p = NULL;

	write_file(text);
	assert_int_equal(config_parse(3, words, &config), 0);
	if (privileged_start(&config, 3, words, &p, err, sizeof(err)))
		fail_msg("%s", err);
	return p;
}

static struct privileged *start_closing(int how)
{
	struct privileged *p;

	closes = how;
	p = start(NUMBERS);
	closes = AS_EVER;
	return p;
}

static void stop(struct privileged *p)
{
	pid_t pid = privileged_pid(p);
	int status;

	privileged_stop(p);
	assert_int_equal(waitpid(pid, &status, 0), pid); /* at the end of its socket */
	assert_int_equal(status, 0);
	config_close(&config);
}

/* --- the configuration file --- */

static uint32_t read_good(struct privileged *p, uint32_t in_use, const char *want, size_t len)
{
	uint32_t generation = 0;
	size_t got_len = 0;
	char *got = NULL;

	if (privileged_read_config(p, in_use, &got, &got_len, &generation, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(got_len, len);
	assert_memory_equal(got, want, len);
	free(got);
	return generation;
}

static int read_bad(struct privileged *p, uint32_t in_use)
{
	uint32_t generation = 0;
	size_t len = 0;
	char *text = NULL;
	int r = privileged_read_config(p, in_use, &text, &len, &generation, err, sizeof(err));

	assert_true(r < 0);
	assert_null(text);
	return r;
}

static void test_config(void **state)
{
	struct privileged *p = start(NUMBERS);
	char other[80];

	(void)state;
	assert_int_equal(read_good(p, 0, NUMBERS, strlen(NUMBERS)), 1);
	write_file(NAMED);
	assert_int_equal(read_good(p, 1, NAMED, strlen(NAMED)), 2);
	write_file("[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:9\nnonsense = 1\n");
	assert_int_equal(read_bad(p, 2), -EINVAL);
	assert_non_null(strstr(err, "c:4: nonsense: unknown key"));
	write_bytes("[forward a]\0\n", 13);
	assert_int_equal(read_bad(p, 2), -EINVAL);
	assert_non_null(strstr(err, "a control character"));
	write_file("");
	assert_int_equal(read_bad(p, 2), -EINVAL);
	assert_non_null(strstr(err, "nothing to forward"));
	assert_int_equal(chmod(path, 0622), 0);
	assert_int_equal(read_bad(p, 2), -EPERM);
	assert_non_null(strstr(err, "can be written by others"));
	snprintf(other, sizeof(other), "%s.away", path);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(read_bad(p, 2), -ENOENT);
	assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for its writer */
	assert_int_equal(read_bad(p, 2), -EINVAL);
	unlink(path);
	assert_int_equal(rename(other, path), 0);
	write_file(NAMED);
	assert_int_equal(read_good(p, 2, NAMED, strlen(NAMED)), 3);
	write_file(SERVICE); /* which it looks up itself */
	assert_int_equal(read_good(p, 3, SERVICE, strlen(SERVICE)), 4);
	stop(p);
}

/* Of any size that a file may have, and one byte more. */
static void test_large_config(void **state)
{
	struct privileged *p = start(NUMBERS);
	size_t size = CONFIG_FILE_MAX, head = strlen(NAMED);
	char *text = malloc(size + 1);

	(void)state;
	assert_non_null(text);
	memcpy(text, NAMED, head);
	memset(text + head, '\n', size + 1 - head);
	for (size_t i = head; i < size; i += 40)
		text[i] = ';';
	write_bytes(text, size);
	assert_int_equal(read_good(p, 0, text, size), 1);
	write_bytes(text, size + 1);
	assert_int_equal(read_bad(p, 1), -EINVAL);
	assert_non_null(strstr(err, "more than 1048576 bytes"));
	free(text);
	stop(p);
}

/* --- listeners --- */

static void check_listener(int fd, const struct addr *want, int family)
{
	struct addr a = { .len = sizeof(a.ss) };
	socklen_t len = sizeof(int);
	int value = 0, client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(getsockname(fd, (struct sockaddr *)&a.ss, &a.len), 0);
	assert_true(addr_equal(&a, want));
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len), 0);
	assert_int_equal(value, 1);
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(connect(client, (struct sockaddr *)&a.ss, a.len), 0);
	close(client);
}

#define MANY (2 * PRIVILEGED_FDS + 5)

static void test_listen(void **state)
{
	struct privileged *p = start(NUMBERS);
	struct addr a = config.forwards[0].listen.addrs[0], b;
	int fds[MANY];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		a = config.forwards[i].listen.addrs[0];
		if (privileged_listen(p, config.generation, i, &a, false, MANY, fds, err, sizeof(err)))
			fail_msg("%s", err);
		check_listener(fds[0], &a, a.ss.ss_family);
		check_listener(fds[MANY - 1], &a, a.ss.ss_family);
		b = a;
		/* SO_REUSEPORT alone would let them in */
		assert_int_equal(privileged_listen(p, config.generation, i, &b, false, 1, fds, err,
						   sizeof(err)), -EADDRINUSE);
		assert_int_equal(privileged_listen(p, config.generation, i, &b, true, 1, fds, err,
						   sizeof(err)), 0);
		check_listener(fds[0], &a, a.ss.ss_family);
		for (size_t k = 0; k < MANY; k++)
			close(fds[k]);
	}
	assert_int_equal(privileged_listen(p, config.generation, 0, &a, false, 1, fds, err, sizeof(err)),
			 -EPERM);
	assert_non_null(strstr(err, "does not listen on that address"));
	stop(p);
}

static void test_unix_listener(void **state)
{
	struct sockaddr_un { sa_family_t family; char path[108]; } *un;
	char text[256], err2[64];
	struct privileged *p;
	struct addr a;
	struct stat st;
	int fd, fd2;

	(void)state;
	snprintf(text, sizeof(text), "[culvert]\nseccomp = kill\n[forward u]\n"
		 "listen = unix:%s/s\nupstream = 127.0.0.1:9\n", folder);
	p = start(text);
	a = config.forwards[0].listen.addrs[0];
	un = (void *)&a.ss;
	if (privileged_listen(p, config.generation, 0, &a, false, 1, &fd, err, sizeof(err)))
		fail_msg("%s", err);
	check_listener(fd, &a, AF_UNIX);
	assert_int_equal(stat(un->path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0666);
	/* somebody listens */
	assert_int_equal(privileged_listen(p, config.generation, 0, &a, false, 1, &fd2, err2,
					   sizeof(err2)), -EADDRINUSE);
	close(fd); /* nobody does: left over */
	assert_int_equal(privileged_listen(p, config.generation, 0, &a, false, 1, &fd, err,
					   sizeof(err)), 0);
	check_listener(fd, &a, AF_UNIX);
	close(fd);
	unlink(un->path);
	stop(p);
}

#define MARKED "[culvert]\nseccomp = kill\nmark = 7\ntransparent = yes\n[forward a]\n" \
	       "listen = 127.0.0.1:0\nupstream = db.invalid:5432\n"

static int option_of(int fd, int level, int name)
{
	socklen_t len = sizeof(int);
	int value = -1;

	assert_int_equal(getsockopt(fd, level, name, &value, &len), 0);
	return value;
}

static void test_sockets(void **state)
{
	struct privileged *p;
	struct config_source from = { MARKED, sizeof(MARKED) - 1 };
	struct config marked;
	int fds[MANY];

	(void)state;
	p = start(NUMBERS);
	assert_int_equal(privileged_sockets(p, 0, 0, AF_INET, 1, fds, err, sizeof(err)), -EPERM);
	assert_non_null(strstr(err, "the forward has no mark"));
	write_file(MARKED);
	assert_int_equal(config_parse_from(3, words, &from, &marked), 0);
	assert_int_equal(read_good(p, 0, MARKED, sizeof(MARKED) - 1), 1);
	for (int i = 0; i < 2; i++) {
		int family = i ? AF_INET6 : AF_INET;
		int r = privileged_sockets(p, 1, 0, family, MANY, fds, err, sizeof(err));

		if (r == -EAFNOSUPPORT) /* a kernel without IPv6 */
			continue;
		if (geteuid()) { /* and the capability is missing */
			assert_int_equal(r, -EPERM);
			continue;
		}
		assert_int_equal(r, 0);
		for (int k = 0; k < MANY; k++) {
			assert_int_equal(option_of(fds[k], SOL_SOCKET, SO_MARK), 7);
			assert_int_equal(option_of(fds[k], SOL_SOCKET, SO_DOMAIN), family);
			assert_int_equal(i ? option_of(fds[k], IPPROTO_IPV6, IPV6_TRANSPARENT) :
					     option_of(fds[k], IPPROTO_IP, IP_TRANSPARENT), 1);
			assert_true(fcntl(fds[k], F_GETFL) & O_NONBLOCK);
			assert_true(fcntl(fds[k], F_GETFD) & FD_CLOEXEC);
			close(fds[k]);
		}
	}
	config_close(&marked);
	stop(p);
}

/* Both the configuration in use and the one that was read last count, and no other. */
static void test_generations(void **state)
{
	static const char two[] = "[forward a]\nlisten = 127.0.0.2:0\nupstream = db.invalid:1\n";
	struct privileged *p = start(NUMBERS);
	struct config next = { 0 };
	struct config_source from = { two, sizeof(two) - 1 };
	struct addr old = config.forwards[0].listen.addrs[0], new;
	int fd;

	(void)state;
	write_file(two);
	assert_int_equal(config_parse_from(3, words, &from, &next), 0);
	next.generation = read_good(p, 0, two, sizeof(two) - 1);
	new = next.forwards[0].listen.addrs[0];
	for (int i = 0; i < 3; i++) { /* that the daemon does not take over */
		struct addr a = old, b = new;

		assert_int_equal(privileged_listen(p, config.generation, 0, &a, false, 1, &fd, err,
						   sizeof(err)), 0);
		close(fd);
		assert_int_equal(privileged_listen(p, next.generation, 0, &b, false, 1, &fd, err,
						   sizeof(err)), 0);
		close(fd);
		a = old;
		assert_int_equal(privileged_listen(p, next.generation, 0, &a, false, 1, &fd, err,
						   sizeof(err)), -EPERM);
		next.generation = read_good(p, 0, two, sizeof(two) - 1);
	}
	read_good(p, next.generation, two, sizeof(two) - 1);
	assert_int_equal(privileged_listen(p, config.generation, 0, &old, false, 1, &fd, err, sizeof(err)),
			 -EPERM);
	assert_int_equal(privileged_listen(p, next.generation, 0, &new, false, 1, &fd, err,
					   sizeof(err)), 0);
	close(fd);
	config_close(&next);
	stop(p);
}

/* --- the session log --- */

/* Anew each time, and to be appended to; and no file but that one. */
static void test_open_log(void **state)
{
	char text[300], log[80], content[20] = "";
	struct privileged *p;
	int fd;

	(void)state;
	snprintf(log, sizeof(log), "%s/log", folder);
	snprintf(text, sizeof(text), "[culvert]\nsession-log = %s\nseccomp = kill\n"
		 "[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:1\n", log);
	p = start(text);
	for (int i = 0; i < 2; i++) {
		fd = privileged_open_log(p, err, sizeof(err));
		if (fd < 0)
			fail_msg("%s", err);
		assert_int_equal(write(fd, "abc\n", 4), 4);
		close(fd);
	}
	fd = open(log, O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, content, sizeof(content)), 8);
	close(fd);
	assert_int_equal(unlink(log), 0);
	assert_int_equal(symlink("/dev/null", log), 0);
	assert_int_equal(privileged_open_log(p, err, sizeof(err)), -ELOOP);
	assert_non_null(strstr(err, "a symbolic link is not followed"));
	assert_int_equal(unlink(log), 0);
	stop(p);
	p = start("[forward a]\nlisten = 127.0.0.1:0\nupstream = 127.0.0.1:1\n");
	assert_int_equal(privileged_open_log(p, err, sizeof(err)), -EPERM);
	assert_string_equal(err, "there is no session log");
	stop(p);
	assert_int_equal(privileged_open_log(NULL, err, sizeof(err)), -EPERM);
}

/* --- nobody else has what it hands over --- */

/*
 * Such a file would stay in epoll when its descriptor here is closed, and what came for it then
 * would be told of whatever is at that place in memory by that time.
 */
static void test_closed(void **state)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int fd, epoll = epoll_create1(EPOLL_CLOEXEC);
	struct privileged *p;
	struct addr a;

	(void)state;
	p = start_closing(SLOWLY);
	a = config.forwards[0].listen.addrs[0];
	if (privileged_listen(p, config.generation, 0, &a, false, 1, &fd, err, sizeof(err)))
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
static void test_ends_before_closed(void **state)
{
	struct privileged *p = start_closing(IS_THE_END);
	struct addr a = config.forwards[0].listen.addrs[0];
	int fds[PRIVILEGED_FDS], before = dup(STDERR_FILENO), after;

	(void)state;
	close(before);
	/* of one that joins, nothing is closed before the answer */
	assert_int_equal(privileged_listen(p, config.generation, 0, &a, true, PRIVILEGED_FDS, fds, err,
					   sizeof(err)), -EPIPE);
	assert_non_null(strstr(err, "has ended"));
	after = dup(STDERR_FILENO);
	close(after);
	assert_int_equal(after, before);
	assert_false(privileged_runs(p));
	assert_int_equal(waitpid(privileged_pid(p), NULL, 0), privileged_pid(p));
	privileged_stop(p);
	config_close(&config);
}

/* --- without it --- */

/* The daemon goes on, and is told why there is nothing to be had. */
static void test_killed(void **state)
{
	struct privileged *p = start(NUMBERS);
	struct addr a = config.forwards[0].listen.addrs[0];
	int fd;

	(void)state;
	assert_int_equal(kill(privileged_pid(p), SIGKILL), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(read_bad(p, 0), -EPIPE);
		assert_non_null(strstr(err, "has ended"));
		assert_int_equal(privileged_listen(p, config.generation, 0, &a, false, 1, &fd, err,
						   sizeof(err)), -EPIPE);
	}
	privileged_reap(p);
	privileged_stop(p);
	config_close(&config);
}

static void test_none(void **state)
{
	(void)state;
	assert_int_equal(read_bad(NULL, 0), -EPERM);
	assert_non_null(strstr(err, "--privileged-process"));
	assert_int_equal(privileged_pid(NULL), -1);
	privileged_reap(NULL);
	privileged_stop(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_large_config),
		cmocka_unit_test(test_listen),
		cmocka_unit_test(test_unix_listener),
		cmocka_unit_test(test_sockets),
		cmocka_unit_test(test_generations),
		cmocka_unit_test(test_open_log),
		cmocka_unit_test(test_closed),
		cmocka_unit_test(test_ends_before_closed),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_none),
	};

	if (pthread_atfork(NULL, NULL, note_child))
		return 1;
	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
