/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_CONTROL_RIG_H
#define CULVERT_TESTS_CONTROL_RIG_H

/*
 * A control socket in a directory of its own, and clients that do as they like.  Include after
 * cmocka.h.
 */

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/control.h"
#include "seeded.h"
#include "temp_dir.h"

#define PATIENCE_MS 8000

struct rig {
	char dir[64];
	char path[108];
	struct control *control; /* NULL: closed by the test */
	size_t large;            /* bytes of the answer to "large" */
	_Atomic unsigned int changes; /* that were asked for */
	char err[256];
};

static unsigned int descriptors_before;

/* An answer of exactly SIZE bytes, without the newline. */
static inline struct json_object *answer_of_size(size_t size)
{
	const size_t frame = strlen("{\"x\":\"\"}");
	struct json_object *o = json_object_new_object();
	char *x = malloc(size);

	if (!o || !x || size < frame)
		abort();
	memset(x, 'x', size);
	json_object_object_add(o, "x", json_object_new_string_len(x, (int)(size - frame)));
	free(x);
	return o;
}

/* What is asked for as LARGE is as large as the test wants.  On the control thread. */
#define LARGE "{\"command\":\"sessions\"}"

static inline struct json_object *answer(void *arg, const struct command_request *req,
					 const struct control_peer *peer)
{
	struct rig *rig = arg;
	struct json_object *o;

	(void)peer;
	rig->changes += command_changes(req);
	if (command_number(req->command) == COMMAND_SESSIONS)
		return answer_of_size(rig->large);
	o = json_object_new_object();
	json_object_object_add(o, "text", json_object_new_string("two\nlines"));
	return o;
}

static inline int open_control(struct rig *rig, struct control **ret)
{
	rig->err[0] = '\0';
	return control_open(rig->path, getuid(), getgid(), ret, rig->err, sizeof(rig->err));
}

/* Without a daemon. */
static inline int dir_setup(void **state)
{
	static struct rig rig;

	memset(&rig, 0, sizeof(rig));
	if (temp_dir_make(rig.dir))
		return -1;
	snprintf(rig.path, sizeof(rig.path), "%s/control.sock", rig.dir);
	descriptors_before = count_descriptors();
	*state = &rig;
	return 0;
}

static inline int rig_setup(void **state)
{
	struct rig *rig;

	if (dir_setup(state))
		return -1;
	rig = *state;
	return open_control(rig, &rig->control) || control_start(rig->control, answer, rig);
}

static inline int rig_teardown(void **state)
{
	struct rig *rig = *state;
	int r;

	control_close(rig->control);
	unlink(rig->path); /* what a test has put in its place */
	r = rmdir(rig->dir); /* nothing else is left in it */
	if (count_descriptors() != descriptors_before)
		return -1;
	return r;
}

/* --- clients --- */

static inline int dial(const char *path)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0 && strlen(path) < sizeof(un.sun_path));
	strcpy(un.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	return fd;
}

/* The daemon may be gone by then: what counts is what it answers. */
static inline void say(int fd, const void *data, size_t len)
{
	while (len) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

		if (n < 0)
			return;
		data = (const char *)data + n;
		len -= (size_t)n;
	}
}

/* Everything up to the end of the connection, and closes it.  Returns the length. */
static inline size_t hear(int fd, char *buf, size_t size)
{
	uint64_t until = clock_now_ms() + PATIENCE_MS;
	size_t len = 0;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n;

		if (clock_now_ms() >= until || poll(&p, 1, (int)(until - clock_now_ms())) <= 0)
			fail_msg("no answer and no end after %d ms", PATIENCE_MS);
		assert_true(len < size - 1);
		n = recv(fd, buf + len, size - 1 - len, 0);
		if (n <= 0)
			break; /* the end, or ECONNRESET: it did not read everything */
		len += (size_t)n;
	}
	buf[len] = '\0';
	close(fd);
	return len;
}

/* Asks with LEN bytes, as they are. */
static inline size_t ask(const struct rig *rig, const void *data, size_t len, char *buf,
			 size_t size)
{
	int fd = dial(rig->path);

	say(fd, data, len);
	return hear(fd, buf, size);
}

/* ANSWER is exactly one line with one JSON object that has KEY. */
static inline void expect_line(const char *text, size_t len, const char *key)
{
	struct json_object *o;

	/* cppcheck-suppress uninitvar ; with a length there are bytes */
	assert_true(len > 0 && text[len - 1] == '\n');
	assert_ptr_equal(memchr(text, '\n', len), text + len - 1);
	o = json_tokener_parse(text);
	if (!json_object_is_type(o, json_type_object) || !json_object_object_get_ex(o, key, NULL))
		fail_msg("no \"%s\" in: %s", key, text);
	json_object_put(o);
}

/* Whatever others did: the next client is served. */
static inline void expect_alive(const struct rig *rig)
{
	static const char request[] = "{\"command\":\"status\"}\n";
	char buf[256];

	expect_line(buf, ask(rig, request, strlen(request), buf, sizeof(buf)), "text");
}

#define ON_RIG(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
#define ON_DIR(f) cmocka_unit_test_setup_teardown(f, dir_setup, rig_teardown)

#endif
