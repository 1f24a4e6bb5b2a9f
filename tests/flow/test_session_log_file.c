// SPDX-License-Identifier: BSD-2-Clause
/* What may become of the session log's file while sessions run: they never notice. */
#include "session_log_rig.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "load.h"

#define TEST_SECONDS 100

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

#define ROTATIONS 100

/* Of the test before, however that has ended. */
static void remove_all(void)
{
	char path[64];

	umount(PLACE "/small");
	rmdir(PLACE "/small");
	forget_lines();
	unlink(LOG);
	for (int i = 0; i < ROTATIONS; i++) {
		snprintf(path, sizeof(path), LOG ".%d", i);
		unlink(path);
	}
}

static void rotation(void **state)
{
	struct daemon *d;
	struct json_object *status;
	char path[64], why[1024];
	int64_t accepted;

	remove_all();
	d = rig_start(*state, GLOBAL FORWARD);
	load_begin(ONE, upstream_fd, 1, 0, NULL);
	for (int i = 0; i < ROTATIONS; i++) {
		snprintf(path, sizeof(path), LOG ".%d", i);
		rotate(d, path);
	}
	load_end();
	if (daemon_wait_idle(d, RIG_PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
	status = query(d, "status");
	accepted = json_int(forward_of_status(status, "talk"), "accepted");
	json_object_put(status);
	assert_true(accepted > 0);
	rig_wait_status(d, "session_log.lines", accepted);
	assert_int_equal(rig_status(d, "session_log.lost"), 0);
	assert_int_equal(rig_status(d, "session_log.errors"), 0);
	forget_lines();
	for (int i = 0; i < ROTATIONS; i++) {
		snprintf(path, sizeof(path), LOG ".%d", i);
		read_lines(path);
		unlink(path);
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
			       "size=64k,mode=755,uid=65534"), 0);
	fd = open(BALLAST, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	for (int i = 0; i < 14; i++) /* of 16 pages */
		assert_int_equal(write(fd, block, sizeof(block)), sizeof(block));
	close(fd);
}

/* Each of N sessions has its line, or has lost it. */
static void wait_counted(struct daemon *d, int64_t n)
{
	RIG_WAIT(rig_status(d, "session_log.lines") + rig_status(d, "session_log.lost") >= n,
		 "some sessions have neither a line nor lost it");
}

/* Sessions go on; lines are lost and counted; and none is there in part. */
static void full_disk(void **state)
{
	struct daemon *d;
	int64_t lost, n = 0;

	remove_all();
	mount_small();
	d = rig_start(*state, "[culvert]\nuser = nobody\nsession-log = " SMALL "\n" FORWARD);
	while (!rig_status(d, "session_log.lost")) {
		short_session();
		assert_true(++n < 1000);
	}
	for (int i = 0; i < 10; i++, n++)
		short_session();
	rig_wait_status(d, "resources.sessions", 0);
	assert_true(rig_status(d, "session_log.errors") >= 1);
	assert_int_equal(unlink(BALLAST), 0);
	wait_counted(d, n);
	lost = rig_status(d, "session_log.lost");
	for (int i = 0; i < 10; i++, n++)
		short_session();
	rig_wait_status(d, "session_log.lines", n - lost);
	assert_int_equal(rig_status(d, "session_log.lost"), lost);
	forget_lines();
	read_lines(SMALL);
	assert_int_equal(n_lines, n - lost);
	rig_stop(d);
}

/* As below the systemd unit, outside its own directories. */
static void read_only(void **state)
{
	struct daemon *d;

	remove_all();
	assert_int_equal(mkdir(PLACE "/small", 0755), 0);
	assert_int_equal(chown(PLACE "/small", NOBODY, NOBODY), 0);
	d = rig_start(*state, "[culvert]\nuser = nobody\nsession-log = " SMALL "\n" FORWARD);
	assert_int_equal(mount("culvert-test", PLACE "/small", "tmpfs",
			       MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=755,uid=65534"), 0);
	daemon_signal(d, SIGUSR1);
	rig_wait_log(d, "is written on: Read-only file system: under the systemd unit "
			"/var/log/culvert can be written (LogsDirectory=), and " PLACE "/small "
			"with ReadWritePaths= in a drop-in");
	assert_int_equal(umount(PLACE "/small"), 0);
	unlink(SMALL);
	rig_stop(d);
}

int main(void)
{
	static const struct rig_row rows[] = {
		{ "rotation", rotation },
		{ "full-disk", full_disk },
		{ "read-only", read_only },
	};

	return run_with_place("test_session_log_file", TEST_SECONDS, rows, 3);
}
