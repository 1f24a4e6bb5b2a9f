// SPDX-License-Identifier: BSD-2-Clause
/*
 * The session log: a line for each session, whatever carries it, with true figures; what may become
 * of its file while sessions run; and a log, be it that of sessions or the daemon's own, that
 * cannot be opened or that nobody takes: no session waits for it, and neither does the start or the
 * end.
 */
#include "forward_rig.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "hold.h"
#include "load.h"

#define TEST_SECONDS 200
#define NOBODY 65534
#define PLACE "/mnt" /* where our file system is */
#define LOG PLACE "/log"
#define GONE PLACE "/gone/log"
#define CLOSED "127.0.0.1:9199" /* nobody listens */
#define LOGGING(path) "[culvert]\nuser = nobody\nsession-log = " path "\n"
#define TALK FORWARD("talk", ONE, "")
#define NOWHERE "[forward nowhere]\nlisten = " TWO "\nupstream = " CLOSED "\n"
#define LINES_MAX 20000

static struct json_object *lines[LINES_MAX];
static size_t n_lines;

static void forget_lines(void)
{
	while (n_lines)
		json_object_put(lines[--n_lines]);
}

/* Add those of PATH to the lines.  A line that is no JSON, or no whole line, ends the test. */
static void read_lines(const char *path)
{
	FILE *f = fopen(path, "re");
	char text[8192];

	assert_non_null(f);
	while (fgets(text, sizeof(text), f)) {
		assert_true(n_lines < LINES_MAX);
		lines[n_lines] = strchr(text, '\n') ? json_tokener_parse(text) : NULL;
		if (!lines[n_lines++])
			fail_msg("%s: not a line of JSON: \"%s\"", path, text);
	}
	fclose(f);
}

/* PATH has N lines: all that there are now. */
static void expect_lines(const char *path, size_t n)
{
	forget_lines();
	read_lines(path);
	assert_int_equal(n_lines, n);
}

/* Wait until the log has N lines. */
static void wait_lines(struct daemon *d, size_t n)
{
	rig_wait_status(d, "session_log.lines", (int64_t)n);
	expect_lines(LOG, n);
}

/* The line of the session of CLIENT. */
static struct json_object *line_of(const char *client)
{
	for (size_t i = 0; i < n_lines; i++)
		if (!strcmp(json_text(lines[i], "client"), client))
			return lines[i];
	fail_msg("no line of %s", client);
	return NULL;
}

/* A file system that goes with us. */
static void mount_place(void)
{
	if (!unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	    !mount("culvert-test", PLACE, "tmpfs", MS_NOSUID | MS_NODEV,
		   "size=64m,mode=755,uid=65534"))
		return;
	printf("skip: no file system of its own: %s\n", strerror(errno));
	exit(EXIT_SKIP);
}

#define ROTATIONS 100

static const char *rotated(int i)
{
	return textf(LOG ".%d", i);
}

/* Whatever a test leaves behind. */
static void remove_all(void)
{
	umount(PLACE "/small");
	unlink(PLACE "/small/log");
	rmdir(PLACE "/small");
	unlink(GONE);
	rmdir(PLACE "/gone");
	forget_lines();
	unlink(LOG);
	for (int i = 0; i < ROTATIONS; i++)
		unlink(rotated(i));
}

/* --- what it says --- */

static int64_t flow_sum(struct json_object *line, size_t dir)
{
	struct json_object *f = json_object_array_get_idx(json_at(line, "flows"), dir);

	return json_int(f, "copy_bytes") + json_int(f, "splice_bytes") +
	       json_int(f, "kernel_bytes");
}

/* The books of the lines are those of the status. */
static void check_sums(struct daemon *d, const char *forward, int64_t finished, int64_t refused)
{
	struct json_object *o = rig_forward(d, forward);
	int64_t up = 0, down = 0, sessions = 0, without = 0;

	for (size_t i = 0; i < n_lines; i++) {
		if (strcmp(json_text(lines[i], "forward"), forward) != 0)
			continue;
		up += json_int(lines[i], "bytes_to_upstream");
		down += json_int(lines[i], "bytes_to_client");
		sessions += json_at(lines[i], "id") != NULL;
		without += json_at(lines[i], "id") == NULL;
	}
	assert_int_equal(json_int(o, "bytes_to_upstream"), up);
	assert_int_equal(json_int(o, "bytes_to_client"), down);
	assert_int_equal(json_int(o, "finished"), finished);
	assert_int_equal(sessions, finished);
	assert_int_equal(without, refused);
}

/* "127.0.0.1:PORT" of FD's own end. */
static const char *name_of(int fd)
{
	return textf("127.0.0.1:%d", net_port(fd, false));
}

static void check_line(const char *client, const char *end, int64_t up, int64_t down)
{
	struct json_object *line = line_of(client);

	assert_string_equal(json_text(line, "end"), end);
	assert_string_equal(json_text(line, "forward"), "talk");
	assert_string_equal(json_text(line, "upstream"), RIG_UPSTREAM);
	assert_int_equal(json_int(line, "bytes_to_upstream"), up);
	assert_int_equal(json_int(line, "bytes_to_client"), down);
	assert_int_equal(flow_sum(line, 0), up);
	assert_int_equal(flow_sum(line, 1), down);
	assert_int_equal(strlen(json_text(line, "time")), strlen("2026-11-22T06:44:01.123Z"));
	assert_true(strcmp(json_text(line, "start"), json_text(line, "time")) <= 0);
	assert_in_range(json_int(line, "connect_ms"), 0, 60000);
	assert_true(json_int(line, "duration_ms") >= json_int(line, "connect_ms"));
}

/* --- what sessions do --- */

#define MUCH 3000000

/* MUCH bytes. */
static void bulk(int from, int to)
{
	static const char zero[MUCH];
	struct pouring p;

	start_pouring(&p, from, zero, MUCH);
	drink(to, zero, MUCH);
	pthread_join(p.thread, NULL);
}

/* --- a line for each --- */

/* A conversation, as long as it takes to come to its carrier. */
static void conversation(struct daemon *d, const char *engine)
{
	const char *carrier = rig_carrier(d, engine);
	struct ends e = rig_open_carried(d, engine, "talk", ONE);
	const char *name = name_of(e.client);
	struct json_object *line;
	int64_t up, down, handovers;

	rig_talk_on(e, 10);
	up = rig_flow_int(d, "talk", 0, "bytes");
	down = rig_flow_int(d, "talk", 1, "bytes");
	handovers = rig_flow_int(d, "talk", 0, "handovers");
	close_both(e);
	wait_lines(d, 1);
	check_line(name, "finished", up, down);
	line = line_of(name);
	for (size_t dir = 0; dir < 2; dir++) {
		struct json_object *flow = flow_of(line, dir);

		assert_string_equal(json_text(flow, "carrier"), carrier);
		if (!strcmp(carrier, "sockmap") || !strcmp(carrier, "graft"))
			assert_true(json_int(flow, "kernel_bytes") >= 10L * MESSAGE);
		else
			assert_int_equal(json_int(flow, "kernel_bytes"), 0);
		assert_true(strcmp(carrier, "splice") ||
			    json_int(flow, "splice_bytes") == flow_sum(line, dir));
		assert_true(strcmp(carrier, "copy") ||
			    json_int(flow, "copy_bytes") == flow_sum(line, dir));
	}
	assert_int_equal(json_int(flow_of(line, 0), "handovers"), handovers);
}

/* Megabytes one way, then one answer: whatever carriers that takes, every byte is in the line. */
static void one_way(struct daemon *d)
{
	struct ends e = connect_pair(NULL, ONE);
	const char *name = name_of(e.client);

	bulk(e.client, e.server);
	say(e.server, e.client, 1);
	close_both(e);
	wait_lines(d, 2);
	check_line(name, "finished", MUCH, MESSAGE);
}

static void resets(struct daemon *d)
{
	for (size_t who = 0; who < 2; who++) {
		struct ends e = connect_pair(NULL, ONE);
		const char *name = name_of(e.client);

		rig_talk_on(e, 5);
		rig_reset(who ? e.server : e.client);
		assert_int_equal(rig_end(who ? e.client : e.server, RIG_PATIENCE_MS), ECONNRESET);
		wait_lines(d, 3 + who);
		check_line(name, who ? "upstream-reset" : "client-reset", 5L * MESSAGE,
			   5L * MESSAGE);
	}
}

/* Line N of the log: a client of FORWARD at TO, which is reset. */
static struct json_object *turned_away(struct daemon *d, const char *to, const char *forward,
				       size_t n, const char *end)
{
	int client = rig_dial(NULL, to);
	struct json_object *line;

	assert_int_equal(rig_end(client, RIG_PATIENCE_MS), ECONNRESET);
	wait_lines(d, n);
	line = line_of(name_of(client));
	assert_string_equal(json_text(line, "end"), end);
	assert_string_equal(json_text(line, "forward"), forward);
	return line;
}

static void without_upstream(struct daemon *d)
{
	struct json_object *line = turned_away(d, TWO, "nowhere", 5, "connect-refused");

	assert_string_equal(json_text(line, "upstream"), CLOSED);
	assert_null(json_at(line, "connect_ms"));
	assert_int_equal(json_object_array_length(json_at(line, "flows")), 0);

	line = turned_away(d, THREE, "closed", 6, "denied");
	assert_null(json_at(line, "id"));
	assert_null(json_at(line, "upstream"));
}

ROW(lines_of_sessions)
{
	struct daemon *d = rig_start(*state, LOGGING(LOG) "grace = 0\n" TALK NOWHERE FORWARD(
						     "closed", THREE, "allow = 127.0.0.77\n"));
	const char *name;
	struct ends e;

	conversation(d, *state);
	one_way(d);
	resets(d);
	without_upstream(d);
	check_sums(d, "talk", 4, 0);
	check_sums(d, "nowhere", 1, 0);
	check_sums(d, "closed", 0, 1);
	e = connect_pair(NULL, ONE);
	rig_talk_on(e, 3);
	assert_int_equal(rig_status(d, "session_log.lines"), 6); /* it lives */
	name = name_of(e.client);
	rig_end_daemon(d);
	expect_lines(LOG, 7);
	check_line(name, "grace-over", 3L * MESSAGE, 3L * MESSAGE);
}

/* A probe has no line, but what fails has. */
ROW_ONCE(without_empty_ones)
{
	struct daemon *d = rig_start(*state, LOGGING(LOG) "session-log-empty = no\n" TALK NOWHERE);

	close_both(connect_pair(NULL, ONE));
	rig_hang_up(connect_pair(NULL, ONE));
	is_turned_away(NULL, TWO);
	short_session();
	wait_lines(d, 2);
	assert_string_equal(json_text(lines[0], "end"), "connect-refused");
	assert_string_equal(json_text(lines[1], "end"), "finished");
	rig_stop(d);
}

/* --- its file --- */

static void rotate(struct daemon *d, const char *to)
{
	assert_int_equal(rename(LOG, to), 0);
	daemon_signal(d, SIGUSR1);
	RIG_WAIT(!access(LOG, F_OK), "the log is not opened anew");
}

static void count_ids(int64_t n)
{
	char *seen = calloc((size_t)n + 1, 1);

	assert_non_null(seen);
	assert_int_equal(n_lines, n);
	for (size_t i = 0; i < n_lines; i++) {
		int64_t id = json_int(lines[i], "id");

		assert_in_range(id, 1, n);
		assert_int_equal(seen[id]++, 0);
		assert_string_equal(json_text(lines[i], "end"), "finished");
		assert_int_equal(json_int(lines[i], "bytes_to_upstream"), LOAD_MESSAGES * MESSAGE);
		assert_int_equal(json_int(lines[i], "bytes_to_client"), LOAD_MESSAGES * MESSAGE);
	}
	free(seen);
}

ROW_ONCE(rotation)
{
	struct daemon *d = rig_start(*state, LOGGING(LOG) TALK);
	int64_t accepted;

	load_begin(ONE, upstream_fd, 1, 0);
	for (int i = 0; i < ROTATIONS; i++)
		rotate(d, rotated(i));
	load_end();
	rig_wait_idle(d);
	accepted = json_int(rig_forward(d, "talk"), "accepted");
	assert_true(accepted > 0);
	rig_wait_status(d, "session_log.lines", accepted);
	assert_int_equal(rig_status(d, "session_log.lost"), 0);
	assert_int_equal(rig_status(d, "session_log.errors"), 0);
	forget_lines();
	for (int i = 0; i < ROTATIONS; i++) {
		read_lines(rotated(i));
		unlink(rotated(i));
	}
	read_lines(LOG);
	count_ids(accepted);
	rig_stop(d);
}

/* --- no room, no directory --- */

#define BALLAST PLACE "/small/ballast"
#define SMALL PLACE "/small/log"

static void mount_small(void)
{
	static const char block[4096];
	int fd;

	assert_int_equal(mkdir(PLACE "/small", 0755), 0);
	assert_int_equal(mount("culvert-test", PLACE "/small", "tmpfs", MS_NOSUID | MS_NODEV,
			       "size=256k,mode=755,uid=65534"),
			 0);
	fd = open(BALLAST, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	for (int i = 0; i < 62; i++) /* of 64 pages */
		assert_int_equal(write(fd, block, sizeof(block)), sizeof(block));
	close(fd);
}

/* Sessions go on; lines are lost and counted; and none is there in part. */
ROW_ONCE(full_disk)
{
	struct daemon *d;
	int64_t lost, n = 0;

	mount_small();
	d = rig_start(*state, LOGGING(SMALL) TALK);
	while (!rig_status(d, "session_log.lost")) {
		short_session();
		assert_true(++n < 1000);
	}
	for (int i = 0; i < 10; i++, n++)
		short_session();
	rig_wait_status(d, "resources.sessions", 0);
	assert_true(rig_status(d, "session_log.errors") >= 1);
	assert_int_equal(unlink(BALLAST), 0);
	RIG_WAIT(rig_status(d, "session_log.lines") + rig_status(d, "session_log.lost") >= n,
		 "some sessions have neither a line nor lost it");
	lost = rig_status(d, "session_log.lost");
	for (int i = 0; i < 10; i++, n++)
		short_session();
	rig_wait_status(d, "session_log.lines", n - lost);
	assert_int_equal(rig_status(d, "session_log.lost"), lost);
	expect_lines(SMALL, (size_t)(n - lost));
	rig_stop(d);
}

/* --- a log that is not taken --- */

/* Where the account may make no file, logrotate has to: `create`. */
ROW_ONCE(directory_of_root)
{
	struct daemon *d;
	int fd;

	assert_int_equal(mkdir(PLACE "/gone", 0755), 0);
	d = rig_start(*state, LOGGING(GONE) TALK);
	short_session();
	rig_wait_status(d, "session_log.lines", 1);
	assert_int_equal(rename(GONE, LOG), 0);
	daemon_signal(d, SIGUSR1);
	rig_wait_status(d, "session_log.errors", 1);
	fd = open(GONE, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(fchown(fd, NOBODY, NOBODY), 0);
	close(fd);
	daemon_signal(d, SIGHUP); /* what logrotate's users send to most daemons */
	rig_wait_log(d, "log: opened anew");
	short_session();
	rig_wait_status(d, "session_log.lines", 2);
	expect_lines(LOG, 1);
	rig_stop(d);
}

static bool reload_says(struct daemon *d, const char *error)
{
	return strstr(json_text(query(d, "status"), "reload.session_log_error"), error);
}

/* logrotate has made the file as root: the reload says so, and it is tried again. */
ROW_ONCE(file_of_root)
{
	struct daemon *d;

	assert_int_equal(mkdir(PLACE "/gone", 0755), 0);
	d = rig_start(*state, LOGGING(GONE) TALK);
	assert_int_equal(rename(GONE, LOG), 0);
	rig_put(GONE, "");
	assert_int_equal(chmod(GONE, 0640), 0);
	daemon_signal(d, SIGHUP);
	RIG_WAIT(reload_says(d, "Permission denied"), "the reload says nothing");
	short_session();
	rig_wait_status(d, "session_log.lines", 1);
	assert_int_equal(chown(GONE, NOBODY, NOBODY), 0);
	short_session();
	rig_wait_log(d, "log: opened anew");
	rig_wait_status(d, "session_log.lines", 2);
	expect_lines(GONE, 1);
	rig_stop(d);
}

static void wait_hopeless(struct daemon *d)
{
	rig_close_sockets();
	daemon_signal(d, SIGTERM);
	rig_wait_log(d, "the last lines are lost: it cannot be written");
}

/* A disk that answers no more: the thread that writes never comes back from it. */
ROW_ONCE(hung_disk)
{
	struct daemon *d = rig_start(*state, LOGGING(LOG) TALK);
	pid_t writer;
	int status;

	short_session();
	rig_wait_status(d, "session_log.lines", 1);
	RIG_WAIT((writer = hold_find(rig_pid(d), SYS_futex)) > 0, "nobody waits for lines");
	assert_int_equal(hold_begin(writer), 0);
	short_session();
	assert_int_equal(hold_before(writer, SYS_write, RIG_PATIENCE_MS), 0);
	for (int i = 0; i < 20; i++)
		short_session();
	daemon_signal(d, SIGUSR1);
	short_session();
	assert_int_equal(rig_status(d, "session_log.lines"), 1);
	wait_hopeless(d);
	assert_int_equal(waitpid(writer, &status, __WALL), writer);
	rig_join(d);
}

/* Sessions, and their end, and the daemon's, with a log of its own that nobody takes. */
static void logging_to(int fd)
{
	static const char *const args[] = { "--user", "nobody",     "--log-level", "debug",
					    ONE,      RIG_UPSTREAM, NULL };
	struct daemon_conf conf = { .args = args, .log_to = fd };
	char why[1024];

	if (daemon_start(&conf, &running, why, sizeof(why)))
		fail_msg("%s", why);
	for (int i = 0; i < 20; i++)
		short_session();
	rig_stop(running);
}

static void fill(int fd)
{
	static const char page[4096];

	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	while (write(fd, page, sizeof(page)) > 0)
		;
	assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
}

/* Full from the start, as with a reader that is stopped; and then without a reader: EPIPE. */
ROW_ONCE(log_is_full)
{
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	fill(fds[1]);
	logging_to(fds[1]);
	close(fds[0]);
	logging_to(fds[1]);
	close(fds[1]);
}

ROW_ONCE(log_is_closed)
{
	logging_to(DAEMON_NO_STDERR);
}

int main(void)
{
	rig_prepare = mount_place;
	rig_tidy = remove_all;
	return rig_run("test_session_log", TEST_SECONDS);
}
