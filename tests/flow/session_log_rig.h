/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_SESSION_LOG_RIG_H
#define CULVERT_TEST_SESSION_LOG_RIG_H

/*
 * What tests of the logs share: a small file system of their own, mounted where only the program
 * and its daemon see it, and the lines of the session log there.
 */
#pragma GCC diagnostic ignored "-Wunused-function" /* not every program needs all */

#include "forward_rig.h"

#include <sched.h>
#include <sys/mount.h>

#define NOBODY 65534
#define PLACE "/mnt" /* where our file system is */
#define LOG PLACE "/log"
#define CLOSED "127.0.0.1:9199" /* nobody listens */
#define GLOBAL "[culvert]\nuser = nobody\nsession-log = " LOG "\n"
#define FORWARD "[forward talk]\nlisten = " ONE "\n" TO_UPSTREAM
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

	if (!f) {
		fail_msg("%s: %s", path, strerror(errno));
		return;
	}
	while (fgets(text, sizeof(text), f)) {
		assert_true(n_lines < LINES_MAX);
		lines[n_lines] = strchr(text, '\n') ? json_tokener_parse(text) : NULL;
		if (!lines[n_lines++])
			fail_msg("%s: not a line of JSON: \"%s\"", path, text);
	}
	fclose(f);
}

/* Wait until the log has N lines. */
static void wait_lines(struct daemon *d, size_t n)
{
	rig_wait_status(d, "session_log.lines", (int64_t)n);
	forget_lines();
	read_lines(LOG);
	assert_int_equal(n_lines, n);
}

/* The line of the session whose client is at the port of FD. */
static struct json_object *line_of(const char *client)
{
	for (size_t i = 0; i < n_lines; i++)
		if (!strcmp(json_text(lines[i], "client"), client))
			return lines[i];
	fail_msg("no line of %s", client);
	return NULL;
}

static struct json_object *forward_of_status(struct json_object *status, const char *name)
{
	struct json_object *list = json_at(status, "forwards");

	for (size_t i = 0; i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		if (!strcmp(json_text(o, "name"), name))
			return o;
	}
	fail_msg("no forward %s", name);
	return NULL;
}

/* A request and its answer, and both ends close in peace. */
static void short_session(void)
{
	struct ends e = connect_pair(NULL, ONE);

	rig_talk_on(e, 1);
	close_both(e);
	forget(e.client);
	forget(e.server);
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

/* rig_run() with that file system, one for each engine. */
static int run_with_place(const char *prog, unsigned int seconds, const struct rig_row *rows,
			  size_t n)
{
	rig_prepare = mount_place;
	return rig_run(prog, seconds, rows, n);
}

#endif
