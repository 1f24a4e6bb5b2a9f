// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a line of the session log says, that each line is written once or counted as lost, and what
 * may be opened as a log.  What becomes of files and disks is in tests/flow/test_session_log.c.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "unit.h"
#include "base/clock.h"
#include "relay/forward.h"
#include "relay/session_json.h"
#include "relay/session_log.h"
#include "temp_dir.h"

#define PATIENCE_MS 20000
#define THREADS 4
#define EACH 3000

static struct forward_conf web = { .name = "web", .listen.udp = true };
static struct forward forward = { .conf = &web };
static char dir[TEMP_DIR_LEN];
static struct account account = { .name = "tester" };
static struct session_log *running;

static int enter(void **state)
{
	(void)state;
	account.uid = geteuid();
	account.gid = getegid();
	return temp_dir_make(dir) || chdir(dir);
}

static int leave(void **state)
{
	(void)state;
	return chdir("/") || temp_dir_remove(dir);
}

static void finish(void)
{
	session_log_close(running);
	running = NULL;
}

static int clean(void **state)
{
	(void)state;
	finish();
	unlink("log");
	unlink("fifo");
	unlink("link");
	rmdir("sub");
	return chmod(".", 0700);
}

static struct session_log *begin(const char *path, unsigned int sessions)
{
	char err[512] = "";

	if (session_log_open(path, &account, sessions, &running, err, sizeof(err)))
		fail_msg("%s", err);
	return running;
}

static struct session_log *start(const char *path, unsigned int sessions)
{
	struct session_log *l = begin(path, sessions);

	assert_int_equal(session_log_start(l), 0);
	return l;
}

static void refuse(struct session_log *l, unsigned int port)
{
	union client_addr a = { .in.sin_family = AF_INET, .in.sin_port = htons((uint16_t)port) };

	session_log_refused(l, &forward, &a, CAUSE_DENIED);
}

static int64_t figure(struct session_log *l, const char *key)
{
	struct json_object *o = session_log_json(l), *value = NULL;
	int64_t n;

	assert_true(json_object_object_get_ex(o, key, &value));
	n = json_object_get_int64(value);
	json_object_put(o);
	return n;
}

static void wait_for(struct session_log *l, const char *key, int64_t least)
{
	uint64_t deadline = clock_ms() + PATIENCE_MS;

	while (figure(l, key) < least) {
		if (clock_ms() > deadline)
			fail_msg("%s is %lld, not %lld", key, (long long)figure(l, key),
				 (long long)least);
		poll(NULL, 0, 5);
	}
}

/* How many lines PATH has, and the last of them; each must be one of JSON. */
static unsigned int lines_of(const char *path, char last[8192])
{
	FILE *f = fopen(path, "re");
	unsigned int n = 0;

	assert_non_null(f);
	for (; fgets(last, 8192, f); n++) {
		struct json_tokener *tok = json_tokener_new();
		struct json_object *o;

		json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
		o = json_tokener_parse_ex(tok, last, (int)strlen(last));
		if (!o || !strchr(last, '\n'))
			fail_msg("%s: not a line of JSON: \"%s\"", path, last);
		json_object_put(o);
		json_tokener_free(tok);
	}
	fclose(f);
	return n;
}

/* --- what a line says --- */

/* The only line of a log that V ends in. */
static const char *line_of(const struct session_view *v, unsigned int end)
{
	static char text[8192];

	unlink("log");
	start("log", 1);
	session_log_ended(running, v, end);
	finish();
	assert_int_equal(lines_of("log", text), 1);
	return text;
}

TEST_WITH(test_ended, NULL, clean)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "/run/a\"b" };
	struct session_view v = { .forward = &forward,
				  .id = 5,
				  .age_ms = 5000,
				  .connect_ms = 11,
				  .upstream = { .len = sizeof(un) } };

	memcpy(&v.upstream.ss, &un, sizeof(un));
	v.client.in.sin_family = AF_INET;
	v.client.in.sin_port = htons(4444);
	v.flows[0] = (struct flow_view){ .carrier = CARRIER_SPLICE,
					 .reason = REASON_BULK,
					 .copied = 250,
					 .spliced = 960,
					 .kernel = 700,
					 .datagrams = 9,
					 .handovers = 3 };
	v.flows[1] = (struct flow_view){ .carrier = CARRIER_SOCKMAP, .copied = 100 };
	assert_string_equal(
		strstr(line_of(&v, CAUSE_CLIENT_RESET), "\"id\""),
		"\"id\":5,\"forward\":\"web\",\"protocol\":\"udp\",\"client\":\"0.0.0.0:4444\","
		"\"upstream\":\"unix:/run/a\\\"b\",\"end\":\"client-reset\",\"duration_ms\":5000,"
		"\"connect_ms\":10,\"bytes_to_upstream\":1910,\"bytes_to_client\":100,\"flows\":["
		"{\"direction\":\"client-to-upstream\",\"carrier\":\"splice\",\"reason\":\"bulk\","
		"\"handovers\":3,\"copy_bytes\":250,\"splice_bytes\":960,\"kernel_bytes\":700,"
		"\"datagrams\":9},"
		"{\"direction\":\"upstream-to-client\",\"carrier\":\"sockmap\",\"reason\":\"start\""
		",\"handovers\":0,\"copy_bytes\":100,\"splice_bytes\":0,\"kernel_bytes\":0,"
		"\"datagrams\":0}]}\n");
	/* a proxy has told of the client, and no address was tried */
	v.upstream.len = 0;
	v.via.in.sin_family = AF_INET;
	v.connect_ms = 0;
	memset(v.flows, 0, sizeof(v.flows));
	assert_string_equal(strstr(line_of(&v, SESSION_FINISHED), ",\"client\""),
			    ",\"client\":\"0.0.0.0:4444\",\"via\":\"0.0.0.0:0\",\"upstream\":null,"
			    "\"end\":\"finished\",\"duration_ms\":5000,\"connect_ms\":null,"
			    "\"bytes_to_upstream\":0,\"bytes_to_client\":0,\"flows\":[]}\n");
}

/* A name is what the configuration says: whatever that is, the line is JSON. */
TEST_WITH(test_names, NULL, clean)
{
	static const struct {
		const char *name, *want;
	} names[] = {
		{ "b\xc3\xbcro-\xe2\x82\xac-\xf0\x9f\x9a\xb0",
		  "b\xc3\xbcro-\xe2\x82\xac-\xf0\x9f\x9a\xb0" },
		{ "q\"uo\\te", "q\\\"uo\\\\te" },
		{ "\x01\n", "\\u0001\\n" },
	};
	struct session_view v = { .forward = &forward };
	char longest[1000], want[64];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		web.name = names[i].name;
		snprintf(want, sizeof(want), "\"forward\":\"%s\"", names[i].want);
		assert_non_null(strstr(line_of(&v, 0), want));
	}
	memset(longest, 1, sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	web.name = longest;
	v.connect_ms = UINT32_MAX;
	v.flows[0].kernel = v.flows[1].kernel = UINT64_MAX;
	line_of(&v, 0);
	web.name = "web";
}

/* --- once, or lost --- */

/* A full queue loses lines, and has room again once it is written. */
TEST_WITH(test_full, NULL, clean)
{
	struct session_log *l = begin("log", 0);
	char text[8192];
	int64_t lost;

	for (unsigned int i = 0; i < 40000; i++)
		refuse(l, i);
	lost = figure(l, "lost");
	assert_in_range(lost, 1, 39900);
	assert_int_equal(session_log_start(l), 0);
	wait_for(l, "lines", 40000 - lost);
	for (unsigned int i = 0; i < 100; i++)
		refuse(l, i);
	wait_for(l, "lines", 40100 - lost); /* they come by themselves */
	assert_int_equal(figure(l, "lost"), lost);
	finish();
	assert_int_equal(lines_of("log", text), 40100 - lost);
}

static void *refuse_many(void *arg)
{
	for (unsigned int i = 0; i < EACH; i++)
		refuse(arg, i);
	return NULL;
}

/* The machine's clock is set while culvert ends: the kernel has another time than this. */
static int64_t clock_is_ahead_s;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	long r = syscall(SYS_clock_gettime, id, ts);

	if (id == CLOCK_REALTIME)
		ts->tv_sec += clock_is_ahead_s;
	return (int)r;
}

/*
 * All sessions that there may be can end at once; the last lines are written at the end, whatever
 * becomes of the machine's clock.
 */
TEST_WITH(test_threads, NULL, clean)
{
	struct session_log *l = start("log", THREADS * EACH);
	pthread_t threads[THREADS];
	char text[8192];

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, refuse_many, l), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(figure(l, "lost"), 0);
	clock_is_ahead_s = -3600;
	finish();
	clock_is_ahead_s = 0;
	assert_int_equal(lines_of("log", text), THREADS * EACH);
}

/* A FIFO may have a reader later, lose it, get another, and have one that does not read. */
TEST_WITH(test_fifo, NULL, clean)
{
	struct session_log *l;
	uint64_t begun;
	int fd;

	assert_int_equal(mkfifo("fifo", 0600), 0);
	l = start("fifo", 0);
	refuse(l, 1);
	wait_for(l, "lost", 1);
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	refuse(l, 2);
	wait_for(l, "lines", 1);
	close(fd);
	refuse(l, 3);
	wait_for(l, "lost", 2);
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	refuse(l, 4);
	wait_for(l, "lines", 2);
	assert_int_equal(figure(l, "lost"), 2);
	assert_int_equal(figure(l, "errors"), 2);
	for (unsigned int i = 0; i < 40000; i++)
		refuse(l, i);
	wait_for(l, "lost", 3); /* more than the FIFO and the queue hold */
	begun = clock_ms();
	finish();
	assert_true(clock_ms() - begun < 20 * SESSION_LOG_LAST_MS);
	close(fd);
}

/* --- its file --- */

static int open_log(const char *path)
{
	char err[512] = "";
	int fd = log_file_open(path, &account, err, sizeof(err));

	if (fd < 0)
		fail_msg("%s: %s", path, err);
	return fd;
}

static void is_refused(const char *path, int error, const char *why)
{
	char err[PATH_MAX + 512] = "";
	int fd = log_file_open(path, &account, err, sizeof(err));

	if (fd != error || !strstr(err, why))
		fail_msg("%s: %d, \"%s\"", path, fd, err);
}

TEST_WITH(test_open, NULL, clean)
{
	struct stat st;
	mode_t mask = umask(0);

	for (int i = 0; i < 2; i++) { /* it is appended to */
		int fd = open_log(i ? "./log" : "log");

		assert_int_equal(write(fd, "one\n", 4), 4);
		close(fd);
	}
	umask(mask);
	assert_int_equal(stat("log", &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0640);
	assert_int_equal(st.st_size, 8);
	close(open_log("/dev/null"));
}

TEST_WITH(test_refused, NULL, clean)
{
	char path[PATH_MAX + 10];

	close(open_log("log"));
	assert_int_equal(symlink("log", "link"), 0);
	is_refused("link", -ELOOP, "a symbolic link is not followed");
	assert_int_equal(mkdir("sub", 0700), 0);
	is_refused("sub", -EISDIR, "Is a directory");
	is_refused("missing/log", -ENOENT, "No such file");
	is_refused("log/log", -ENOTDIR, "Not a directory");
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	is_refused(path, -ENAMETOOLONG, "name too long");
	path[sizeof(path) - 5] = '/';
	is_refused(path, -ENAMETOOLONG, "name too long");
	assert_int_equal(mkfifo("fifo", 0600), 0);
	is_refused("fifo", -ENXIO, "No such device or address");
}

TEST_WITH(test_unsafe, NULL, clean)
{
	close(open_log("log"));
	assert_int_equal(chmod("log", 0666), 0);
	is_refused("log", -EPERM, "it has uid");
	assert_int_equal(chmod("log", 0660), 0);
	assert_int_equal(chmod(".", 0777), 0);
	is_refused("log", -EPERM, ". has uid");
	assert_int_equal(chmod(".", 01777), 0);
	close(open_log("log"));
	if (geteuid()) {
		printf("skip: the files of others: not root\n");
		return;
	}
	assert_int_equal(chown("log", 12345, 12345), 0);
	/* a kernel with fs.protected_regular says EACCES itself */
	assert_int_equal(chmod(".", 0700), 0);
	is_refused("log", -EPERM, "it has uid 12345 and mode");
	assert_int_equal(chown(".", 12345, 12345), 0);
	is_refused("log", -EPERM, ". has uid 12345 and mode");
	assert_int_equal(chown(".", 0, 0), 0);
}

static void is_opened_as(const char *path, const struct account *a, uid_t owner)
{
	char err[512] = "";
	int fd = log_file_open(path, a, err, sizeof(err));
	struct stat st;

	if (fd < 0)
		fail_msg("%s", err);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_uid, owner);
	assert_int_equal(geteuid(), 0);
	assert_int_equal(getegid(), 0);
	close(fd);
}

/* Root makes it, and gives it away; root's own file stays root's. */
TEST_WITH(test_open_as, NULL, clean)
{
	const struct account other = { .name = "other", .uid = 12345, .gid = 12346 };
	char err[512] = "", path[64];

	if (geteuid()) {
		printf("skip: not root\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/log", dir);
	assert_int_equal(chmod(dir, 0755), 0);
	is_opened_as(path, &other, 12345);
	is_opened_as(path, &other, 12345);
	assert_int_equal(chown("log", 0, 0), 0);
	is_opened_as(path, &other, 0);
	assert_int_equal(chmod("log", 0666), 0);
	assert_int_equal(log_file_open(path, &other, err, sizeof(err)), -EPERM);
	assert_non_null(strstr(err, "others must not be able to write"));
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	return unit_run(enter, leave);
}
