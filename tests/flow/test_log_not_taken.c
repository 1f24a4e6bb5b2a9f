// SPDX-License-Identifier: BSD-2-Clause
/*
 * A log that cannot be opened, or that nobody takes, be it that of sessions or the daemon's own: no
 * session waits for it, and neither does the start or the end.
 */
#include "session_log_rig.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "hold.h"

#define TEST_SECONDS 100

static pid_t stopped; /* 0: none */

static void remove_all(void)
{
	if (stopped)
		kill(stopped, SIGKILL);
	stopped = 0;
	forget_lines();
	unlink(PLACE "/gone/log");
	rmdir(PLACE "/gone");
	unlink(LOG);
}

static void directory_gone(void **state)
{
	const char *conf = "[culvert]\nuser = nobody\nsession-log = " PLACE "/gone/log\n" FORWARD;
	struct daemon *d;

	assert_int_equal(mkdir(PLACE "/gone", 0755), 0);
	assert_int_equal(chown(PLACE "/gone", NOBODY, NOBODY), 0);
	d = rig_start(*state, conf);
	short_session();
	rig_wait_status(d, "session_log.lines", 1);
	assert_int_equal(unlink(PLACE "/gone/log"), 0);
	assert_int_equal(rmdir(PLACE "/gone"), 0);
	daemon_signal(d, SIGUSR1);
	rig_wait_status(d, "session_log.errors", 1);
	short_session();
	rig_wait_status(d, "session_log.lines", 2); /* into the file that has no name any more */
	rig_wait_log(d, "cannot be opened anew, so the old file is written on: ");
	rig_wait_log(d, "(install -d -o nobody " PLACE "/gone)");
	assert_int_equal(mkdir(PLACE "/gone", 0755), 0);
	assert_int_equal(chown(PLACE "/gone", NOBODY, NOBODY), 0);
	daemon_signal(d, SIGUSR1);
	while (access(PLACE "/gone/log", F_OK))
		poll(NULL, 0, 5);
	short_session();
	rig_wait_status(d, "session_log.lines", 3);
	forget_lines();
	read_lines(PLACE "/gone/log");
	assert_int_equal(n_lines, 1);
	rig_stop(d);
}

/* Where the account may make no file, the privileged process does it; without that one nobody. */
static void directory_of_root(void **state)
{
	static const char *const globals[] = { "", "privileged-process = no\n" };
	char conf[400];

	for (size_t without = 0; without < 2; without++) {
		struct daemon *d;

		remove_all();
		assert_int_equal(mkdir(PLACE "/gone", 0755), 0);
		snprintf(conf, sizeof(conf), "[culvert]\nuser = nobody\nsession-log = " PLACE
			 "/gone/log\n%s" FORWARD, globals[without]);
		d = rig_start(*state, conf);
		short_session();
		rig_wait_status(d, "session_log.lines", 1);
		assert_int_equal(rename(PLACE "/gone/log", LOG), 0);
		daemon_signal(d, SIGUSR1);
		if (without)
			rig_wait_status(d, "session_log.errors", 1);
		while (!without && access(PLACE "/gone/log", F_OK))
			poll(NULL, 0, 5);
		short_session();
		rig_wait_status(d, "session_log.lines", 2);
		forget_lines();
		read_lines(LOG);
		assert_int_equal(n_lines, without ? 2 : 1);
		rig_stop(d);
	}
}

/* Whoever reads the log through a FIFO and stops doing so holds up nobody. */
static void deaf_reader(void **state)
{
	struct daemon *d;
	int fd;

	assert_int_equal(mkfifo(LOG, 0600), 0);
	assert_int_equal(chown(LOG, NOBODY, NOBODY), 0);
	fd = open(LOG, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_SETPIPE_SZ, 4096) >= 0);
	d = rig_start(*state, GLOBAL FORWARD);
	for (int i = 0; i < 30; i++)
		short_session();
	rig_stop(d);
	close(fd);
}

static void wait_hopeless(struct daemon *d)
{
	rig_close_sockets();
	daemon_signal(d, SIGTERM);
	rig_wait_log(d, "the last lines are lost: it cannot be written");
}

/* A disk that answers no more: the thread that writes never comes back from it. */
static void hung_disk(void **state)
{
	struct daemon *d = rig_start(*state, GLOBAL FORWARD);
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

/* The same for a privileged process that does not answer: the file is to be opened by it. */
static void hung_opener(void **state)
{
	struct daemon *d;

	assert_int_equal(mkdir(PLACE "/gone", 0755), 0);
	d = rig_start(*state, "[culvert]\nuser = nobody\nsession-log = " PLACE "/gone/log\n"
			      FORWARD);
	short_session();
	rig_wait_status(d, "session_log.lines", 1);
	stopped = daemon_privileged(d);
	assert_true(stopped > 0);
	assert_int_equal(kill(stopped, SIGSTOP), 0);
	assert_int_equal(rename(PLACE "/gone/log", LOG), 0);
	daemon_signal(d, SIGUSR1);
	for (int i = 0; i < 20; i++)
		short_session();
	wait_hopeless(d);
	rig_join(d);
}

/* Sessions, and their end, and the daemon's, with a log of its own that nobody takes. */
static void logging_to(int fd)
{
	static const char *const args[] = { "--user", "nobody", "--log-level", "debug", ONE,
					    RIG_UPSTREAM, NULL };
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
static void log_is_full(void **state)
{
	int fds[2];

	(void)state;
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	fill(fds[1]);
	logging_to(fds[1]);
	close(fds[0]);
	logging_to(fds[1]);
	close(fds[1]);
}

static void log_is_closed(void **state)
{
	(void)state;
	logging_to(DAEMON_NO_STDERR);
}

/* What carries the sessions does not matter. */
static const struct rig_row rows[] = {
	{ "directory-gone", directory_gone, true },
	{ "directory-of-root", directory_of_root, true },
	{ "deaf-reader", deaf_reader, true },
	{ "hung-disk", hung_disk, true },
	{ "hung-opener", hung_opener, true },
	{ "full", log_is_full, true },
	{ "closed", log_is_closed, true },
};

int main(void)
{
	rig_tidy = remove_all;
	return run_with_place("test_log_not_taken", TEST_SECONDS, rows,
			      sizeof(rows) / sizeof(rows[0]));
}
