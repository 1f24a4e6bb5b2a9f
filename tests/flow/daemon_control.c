/* SPDX-License-Identifier: BSD-2-Clause */
/* The control socket, and what it answers. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"

struct json_object *json_at(struct json_object *o, const char *path)
{
	char key[64];

	while (o && *path) {
		size_t n = strcspn(path, ".");

		if (n >= sizeof(key))
			return NULL;
		memcpy(key, path, n);
		key[n] = '\0';
		if (!json_object_is_type(o, json_type_object) ||
		    !json_object_object_get_ex(o, key, &o))
			return NULL;
		path += n + (path[n] == '.');
	}
	return o;
}

int64_t json_int(struct json_object *o, const char *path)
{
	o = json_at(o, path);
	return o ? json_object_get_int64(o) : 0;
}

const char *json_text(struct json_object *o, const char *path)
{
	const char *text;

	o = json_at(o, path);
	text = o ? json_object_get_string(o) : NULL;
	return text ? text : "";
}

static int control_connect(struct daemon *d)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", daemon_control(d));
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return fd;
}

/* Everything up to the end of the stream; the caller frees *RET_TEXT in any case. */
static int read_answer(int fd, int64_t deadline, char **ret_text, size_t *ret_len)
{
	size_t size = 0;

	for (;;) {
		struct pollfd pfd = { .fd = fd, .events = POLLIN };
		int64_t left = deadline - now_ms();
		ssize_t n;

		if (left <= 0 || poll(&pfd, 1, (int)left) == 0)
			return -ETIMEDOUT;
		if (*ret_len + 1 >= size) {
			size = size ? size * 2 : 65536;
			*ret_text = realloc(*ret_text, size);
			if (!*ret_text)
				return -ENOMEM;
		}
		n = recv(fd, *ret_text + *ret_len, size - 1 - *ret_len, 0);
		if (n < 0 && errno != EAGAIN)
			return -errno;
		if (n == 0)
			return 0;
		if (n > 0)
			*ret_len += (size_t)n;
	}
}

int daemon_ask(struct daemon *d, const char *line, int timeout_ms, struct json_object **ret)
{
	int64_t deadline = now_ms() + timeout_ms;
	char request[4096], *text = NULL;
	size_t len = 0;
	int fd, r;

	*ret = NULL;
	fd = control_connect(d);
	if (fd < 0)
		return fd;
	snprintf(request, sizeof(request), "%s\n", line);
	if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0) {
		r = -errno;
		goto out;
	}
	r = read_answer(fd, deadline, &text, &len);
	if (r < 0)
		goto out;
	if (text)
		text[len] = '\0';
	*ret = text ? json_tokener_parse(text) : NULL;
	if (!json_object_is_type(*ret, json_type_object)) {
		json_object_put(*ret);
		*ret = NULL;
		r = -EBADMSG;
	}
out:
	free(text);
	close(fd);
	return r;
}

int daemon_query(struct daemon *d, const char *command, int timeout_ms, struct json_object **ret)
{
	char line[80];
	int r;

	snprintf(line, sizeof(line), "{\"command\":\"%s\"}", command);
	r = daemon_ask(d, line, timeout_ms, ret);
	if (!r && json_at(*ret, "error")) {
		json_object_put(*ret);
		*ret = NULL;
		r = -EBADMSG;
	}
	return r;
}

int daemon_resources(struct daemon *d, int timeout_ms, struct daemon_resources *ret)
{
	struct json_object *o = NULL, *res;
	int r = daemon_query(d, "status", timeout_ms, &o);

	if (r < 0)
		return r;
	res = json_at(o, "resources");
	*ret = (struct daemon_resources){
		.sessions = json_int(res, "sessions"),
		.slots_used = json_int(res, "slots_used"),
		.kernel_memory = json_int(res, "kernel_memory"),
		.pipes = json_int(res, "pipes"),
		.pipes_idle = json_int(res, "pipes_idle"),
		.buffers = json_int(res, "buffers"),
		.fds = json_int(res, "fds"),
	};
	r = res && ret->fds > 0 ? 0 : -EBADMSG;
	json_object_put(o);
	return r;
}
