/* SPDX-License-Identifier: BSD-2-Clause */
/* The control socket, and what it answers. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon.h"

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

int daemon_ask(struct daemon *d, const char *line, int timeout_ms, struct json_object **ret)
{
	struct timeval patience = { timeout_ms / 1000, timeout_ms % 1000 * 1000 };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r = 0;

	*ret = NULL;
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", daemon_control(d));
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)) < 0 || dprintf(fd, "%s\n", line) < 0) {
		r = -errno;
	} else {
		errno = 0;
		*ret = json_object_from_fd(fd); /* up to the end of the stream */
		if (!json_object_is_type(*ret, json_type_object)) {
			r = errno == EAGAIN ? -ETIMEDOUT : errno ? -errno : -EBADMSG;
			json_object_put(*ret);
			*ret = NULL;
		}
	}
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
