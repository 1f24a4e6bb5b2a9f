/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The control socket: its file, who may ask, and clients that are clumsy, hostile, silent or deaf.
 */

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/control_socket.h"
#include "seeded.h"
#include "temp_dir.h"

#define PATIENCE_MS 8000
#define REQUEST_MS 2000 /* the daemon's deadlines, */
#define ANSWER_MS 2000
#define PLACES 8 /* and how many clients it serves at a time */
#define LARGE_BYTES 3000000
#define STATUS "{\"command\":\"status\"}"
#define LARGE "{\"command\":\"forwards\"}" /* its answer has LARGE_BYTES */
#define CHANGE "{\"command\":\"kill\",\"all\":true}"

/* No accounts of this machine are needed: ids are numbers. */
#define ACCOUNT 61234
#define GROUP 61235
#define OTHER 61236

static char dir[64], path[108], err[256];
static struct control *control; /* NULL: closed by the test */
static unsigned int descriptors_before;

/* On a control thread. */
static struct json_object *answer(void *arg, const struct request *req)
{
	static char large[LARGE_BYTES - sizeof("{\"x\":\"\"}")];
	struct json_object *o = json_object_new_object();

	(void)arg;
	memset(large, 'x', sizeof(large));
	if (command_number(req->command) == COMMAND_FORWARDS)
		json_object_object_add(o, "x", json_object_new_string_len(large, sizeof(large)));
	else
		json_object_object_add(o, "text", json_object_new_string("two\nlines"));
	return o;
}

static int open_as(uid_t uid, gid_t gid, struct control **ret)
{
	int r;

	log_keep_complaint(err, sizeof(err));
	r = control_open(path, uid, gid, ret);
	log_keep_complaint(NULL, 0);
	return r;
}

static void no_stream(void *arg, const struct control *c, const struct request *req, int fd)
{
	(void)arg;
	(void)c;
	(void)req;
	(void)fd;
}

static int open_control(void)
{
	return open_as(getuid(), getgid(), &control);
}

static void close_control(void)
{
	control_close(control, false);
	control = NULL;
}

static int dir_setup(void **state)
{
	(void)state;
	log_set_level(LOG_ERR);
	if (temp_dir_make(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/control.sock", dir);
	descriptors_before = count_descriptors();
	return 0;
}

static int rig_setup(void **state)
{
	return dir_setup(state) || open_control() ||
	       control_start(control, answer, no_stream, 0, NULL);
}

static int rig_teardown(void **state)
{
	(void)state;
	close_control();
	unlink(path); /* what a test has put in its place */
	return rmdir(dir) || count_descriptors() != descriptors_before ? -1 : 0;
}

/* --- clients --- */

static void connect_to(int fd)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	strcpy(un.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
}

static int dial(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	connect_to(fd);
	return fd;
}

/* The daemon may be gone by then: what counts is what it answers. */
static void say(int fd, const char *data, size_t len)
{
	ssize_t n;

	for (; len && (n = send(fd, data, len, MSG_NOSIGNAL)) > 0; len -= (size_t)n)
		data += n;
}

static void say_text(int fd, const char *text)
{
	say(fd, text, strlen(text));
}

/* Everything up to the end of the connection, which is then closed.  Returns the length. */
static size_t hear(int fd, char *buf, size_t size)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	size_t len = 0;
	ssize_t n;

	do {
		if (poll(&p, 1, PATIENCE_MS) <= 0)
			fail_msg("no answer and no end after %d ms", PATIENCE_MS);
		n = recv(fd, buf + len, size - 1 - len, 0);
		len += n > 0 ? (size_t)n : 0;
	} while (n > 0);
	buf[len] = '\0';
	close(fd);
	return len;
}

/* What FD is told is exactly one line with one JSON object that has WHAT in it. */
static void expect_heard(int fd, const char *what)
{
	struct json_object *o;
	char buf[1024];
	size_t len = hear(fd, buf, sizeof(buf));

	assert_true(len > 0 && strchr(buf, '\n') == buf + len - 1);
	o = json_tokener_parse(buf);
	assert_true(json_object_is_type(o, json_type_object));
	json_object_put(o);
	if (!strstr(buf, what))
		fail_msg("no %s in: %s", what, buf);
}

static void expect(const void *request, size_t len, const char *what)
{
	int fd = dial();

	say(fd, request, len);
	expect_heard(fd, what);
}

#define GOOD "{\"text\":\"two\\nlines\"}"
#define ERROR(code) "{\"error\":{\"code\":\"" code "\""

/* Whatever others did: the next client is served. */
static void expect_alive(void)
{
	expect(STATUS "\n", strlen(STATUS "\n"), GOOD);
}

#define ON_RIG(f) TEST_WITH(f, rig_setup, rig_teardown)

/* --- requests --- */

ON_RIG(test_requests)
{
	static const struct {
		const char *request, *answer;
	} cases[] = {
		{ " { \"command\" : \"status\" } \n", GOOD },
		{ "status\n", GOOD },
		{ STATUS "\r\n", GOOD },
		{ STATUS "\nanother line\n" STATUS "\n", GOOD },
		{ "\xff\xfe\xfd\n", ERROR("malformed") },
		{ "{\"command\":\"%n%s\"}\n", ERROR("unknown-command") },
	};
	char line[CONTROL_REQUEST_MAX + 1];
	int fd;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect(cases[i].request, strlen(cases[i].request), cases[i].answer);
	/* in many pieces; who has no more to say needs no newline */
	fd = dial();
	for (size_t i = 0; i < sizeof(STATUS) - 1; i++) {
		say(fd, &STATUS[i], 1);
		short_pause();
	}
	shutdown(fd, SHUT_WR);
	expect_heard(fd, GOOD);
	/* as long as may be */
	memset(line, ' ', sizeof(line));
	memcpy(line, STATUS, strlen(STATUS));
	line[CONTROL_REQUEST_MAX - 2] = '\n';
	expect(line, CONTROL_REQUEST_MAX - 1, GOOD);
	line[CONTROL_REQUEST_MAX - 2] = ' ';
	expect(line, CONTROL_REQUEST_MAX + 1, ERROR("too-long"));
}

/* A large answer arrives whole, whoever has left before. */
ON_RIG(test_leaves)
{
	static char buf[LARGE_BYTES + 2];
	size_t len;
	int fd;

	for (int i = 0; i < 2 * PLACES; i++) {
		fd = dial();
		say_text(fd, i % 2 ? LARGE "\n" : LARGE);
		if (i % 2)
			assert_true(recv(fd, buf, 65536, MSG_WAITALL) > 0);
		close(fd);
	}
	fd = dial();
	say_text(fd, LARGE "\n");
	len = hear(fd, buf, sizeof(buf));
	assert_int_equal(len, LARGE_BYTES);
	assert_int_equal(buf[len - 1], '\n');
}

/* --- deadlines --- */

/* The next one waits until the time of those before it is up, who are told so. */
ON_RIG(test_silent)
{
	uint64_t begin = clock_ms();
	int fds[PLACES];

	for (int i = 0; i < PLACES; i++) {
		fds[i] = dial();
		say(fds[i], STATUS, (size_t)i);
	}
	expect_alive();
	assert_in_range(clock_ms() - begin, REQUEST_MS / 2, 3 * REQUEST_MS);
	for (int i = 0; i < PLACES; i++)
		expect_heard(fds[i], ERROR("timeout"));
}

static void deafen(int *fds, int n)
{
	for (int i = 0; i < n; i++) {
		struct pollfd p = { .events = POLLIN };

		p.fd = fds[i] = dial();
		say_text(fds[i], LARGE "\n");
		assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	}
}

ON_RIG(test_deaf)
{
	uint64_t begin = clock_ms();
	int fds[PLACES];

	deafen(fds, PLACES);
	expect_alive();
	assert_in_range(clock_ms() - begin, ANSWER_MS / 2, 4 * ANSWER_MS);
	for (int i = 0; i < PLACES; i++)
		close(fds[i]);
}

/* The daemon ends at once, whatever its clients do. */
ON_RIG(test_close_is_quick)
{
	uint64_t begin;
	int fds[2];

	deafen(fds, 1);
	fds[1] = dial();
	begin = clock_ms();
	close_control();
	assert_true(clock_ms() - begin < REQUEST_MS / 4);
	close(fds[0]);
	close(fds[1]);
}

/* With no descriptor left, each client has the spare one of a thread. */
ON_RIG(test_no_descriptor)
{
	struct rlimit before, none;
	int fds[3];

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (int i = 0; i < 3; i++)
		fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	none = (struct rlimit){ (rlim_t)fds[2] + 1, before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	for (int i = 0; i < 3; i++) {
		connect_to(fds[i]);
		say_text(fds[i], STATUS "\n");
	}
	for (int i = 0; i < 3; i++)
		expect_heard(fds[i], GOOD);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* --- who may ask --- */

struct peer {
	const char *what;
	uid_t uid;
	gid_t gid, group;   /* primary and supplementary */
	int looks, changes; /* what ask_as() gives */
};

/* In a child: nothing of cmocka.  1: answered, 2: refused with a reason, 101: no connection. */
static int ask_as(const struct peer *p, const char *request)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	char buf[512] = "";
	int fd;

	if (setgroups(1, &p->group) || setresgid(p->gid, p->gid, p->gid) ||
	    setresuid(p->uid, p->uid, p->uid))
		return 100;
	alarm(PATIENCE_MS / 1000);
	strcpy(un.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)))
		return 101;
	say_text(fd, request);
	if (recv(fd, buf, sizeof(buf) - 1, 0) <= 0)
		return 102;
	return strstr(buf, GOOD) ? 1 : strstr(buf, ERROR("permission-denied")) ? 2 : 103;
}

static void expect_as(const struct peer *p, const char *request, int due)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(ask_as(p, request));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != due)
		fail_msg("%s, %s: %x", p->what, request, status);
}

#define ON_DIR(f) TEST_WITH(f, dir_setup, rig_teardown)

ON_DIR(test_peers)
{
	static const struct peer peers[] = {
		{ "root", 0, OTHER, OTHER, 1, 1 },
		{ "the account", ACCOUNT, GROUP, OTHER, 1, 1 },
		{ "primary group", OTHER, GROUP, OTHER, 1, 2 },
		{ "supplementary group", OTHER, OTHER, GROUP, 1, 2 },
		{ "nobody special", OTHER, OTHER, OTHER, 101, 101 },
		{ "a group with the account's number", OTHER, OTHER, ACCOUNT, 101, 101 },
		{ "an account with the group's number", GROUP, OTHER, OTHER, 101, 101 },
	};
	struct stat st;

	if (geteuid()) {
		printf("skip: only root can be another user\n");
		skip();
	}
	assert_int_equal(open_as(ACCOUNT, GROUP, &control), 0);
	assert_int_equal(control_start(control, answer, no_stream, 0, NULL), 0);
	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_gid, GROUP);
	for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++) {
		expect_as(&peers[i], STATUS "\n", peers[i].looks);
		expect_as(&peers[i], CHANGE "\n", peers[i].changes);
	}
	/* with the file open to all, everybody may look, and credentials decide about changes */
	assert_int_equal(chmod(path, 0666), 0);
	expect_as(&peers[4], STATUS "\n", 1);
	expect_as(&peers[4], CHANGE "\n", 2);
}

/* --- the file --- */

/* It does not open, and says why; what is at the path stays as it is. */
static void expect_refused(int error)
{
	struct control *c = NULL;
	struct stat before, after;
	bool existed = !lstat(path, &before);

	assert_int_equal(open_as(getuid(), getgid(), &c), error);
	assert_null(c);
	assert_non_null(strstr(err, path));
	assert_non_null(strstr(err, strerror(-error)));
	assert_int_equal(!lstat(path, &after), existed);
	if (existed)
		assert_int_equal(after.st_ino, before.st_ino);
}

/* Bound and closed: what a daemon that was killed leaves behind. */
static void leave_stale(const char *where, int type)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(un.sun_path, where);
	assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	close(fd);
}

ON_DIR(test_file)
{
	mode_t old = umask(0777), mask;
	struct stat st;

	control_close(NULL, false);
	leave_stale(path, SOCK_STREAM); /* which is replaced */
	assert_int_equal(open_control(), 0);
	mask = umask(old);
	assert_int_equal(mask, 0777); /* put back */
	assert_int_equal(lstat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_uid, getuid());
	expect_refused(-EADDRINUSE); /* bound, but not served yet */
	assert_int_equal(control_start(control, answer, no_stream, 0, NULL), 0);
	expect_refused(-EADDRINUSE);
	expect_alive();
	close_control();
	assert_int_equal(access(path, F_OK), -1);
}

ON_DIR(test_no_socket)
{
	char target[128];
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);

	close(fd);
	expect_refused(-EEXIST);
	unlink(path);
	/* a link, even one to a stale socket, is not followed */
	snprintf(target, sizeof(target), "%s/target", dir);
	assert_int_equal(symlink(target, path), 0);
	leave_stale(target, SOCK_STREAM);
	expect_refused(-EEXIST);
	unlink(target);
	unlink(path);
}

ON_DIR(test_path)
{
	struct stat st;
	char run[80];

	/* its directory is made, but not those above */
	snprintf(run, sizeof(run), "%s/run", dir);
	snprintf(path, sizeof(path), "%s/control.sock", run);
	assert_int_equal(open_control(), 0);
	assert_int_equal(stat(run, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	close_control();
	assert_int_equal(rmdir(run), 0);
	snprintf(path, sizeof(path), "%s/none/run/control.sock", dir);
	expect_refused(-ENOENT);
}

UNIT_MAIN(NULL, NULL)
