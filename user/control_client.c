// SPDX-License-Identifier: BSD-2-Clause
#include "control_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "json_add.h"
#include "syscall_filter.h"

SYSCALLS_NEEDED(
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERCRED)),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERGROUPS)),
	SYSCALL(recvfrom),
	SYSCALL(sendto),
	SYSCALL(dup3), /* the spare descriptor */
	SYSCALL(close));

/* --- who asks --- */

static bool has_group(int fd, gid_t gid)
{
	gid_t none, *groups;
	socklen_t len = 0;
	bool found = false;

	/* with no room the kernel says how much is needed */
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, &none, &len) || errno != ERANGE)
		return false;
	groups = malloc(len);
	if (!groups)
		return false;
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len))
		for (size_t i = 0; !found && i < len / sizeof(*groups); i++)
			found = groups[i] == gid;
	free(groups);
	return found;
}

bool control_peer_may_ask(int fd, uid_t uid, gid_t gid)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) || len != sizeof(peer))
		return false;
	return peer.uid == 0 || peer.uid == uid || peer.gid == gid || has_group(fd, gid);
}

/* --- requests and answers --- */

static struct json_object *error_answer(const char *text)
{
	struct json_object *o = json_object_new_object();

	json_add(o, "error", json_object_new_string(text));
	return o;
}

/* NULL unless the whole line is one JSON value. */
static struct json_object *parse(const char *line, size_t len)
{
	struct json_tokener *t = json_tokener_new();
	struct json_object *o = NULL;

	if (!t)
		return NULL;
	json_tokener_set_flags(t, JSON_TOKENER_STRICT);
	o = json_tokener_parse_ex(t, line, (int)len);
	if (o && (json_tokener_get_error(t) != json_tokener_success ||
		  json_tokener_get_parse_end(t) != len)) {
		json_object_put(o);
		o = NULL;
	}
	json_tokener_free(t);
	return o;
}

struct json_object *control_answer_line(control_answer_fn *fn, void *arg, const char *line,
					size_t len)
{
	struct json_object *request = parse(line, len), *command = NULL, *answer = NULL;

	if (!json_object_is_type(request, json_type_object) ||
	    !json_object_object_get_ex(request, "command", &command) ||
	    !json_object_is_type(command, json_type_string) ||
	    strlen(json_object_get_string(command)) != (size_t)json_object_get_string_len(command))
		answer = error_answer("a request is one line: {\"command\":\"NAME\"}");
	else
		answer = fn(arg, json_object_get_string(command));
	json_object_put(request);
	return answer ?: error_answer("unknown command (known: sessions, status)");
}

static struct json_object *make_answer(const struct control_client *c, control_answer_fn *fn,
				       void *arg)
{
	if (c->stranger)
		return error_answer("permission denied: only root, the daemon's own account and "
				    "members of its group may ask");
	if (c->got >= sizeof(c->request) - 1)
		return error_answer("the request is too long");
	return control_answer_line(fn, arg, c->request, c->got);
}

/* --- one client --- */

void control_spare_close(struct control_spare *spare, int fd)
{
	/*
	 * dup3(2) closes FD and takes its number in one step: no other thread can come in between
	 */
	if (spare && spare->fd < 0 && dup3(spare->copied, fd, O_CLOEXEC) == fd)
		spare->fd = fd;
	else
		close(fd);
}

void control_client_begin(struct control_client *c, int fd, struct control_spare *spare,
			  bool stranger, long long now_ms)
{
	c->state = CLIENT_READING;
	c->fd = fd;
	c->spare = spare;
	c->stranger = stranger;
	c->until_ms = now_ms + CONTROL_REQUEST_MS;
	c->text = NULL;
	c->got = c->len = c->sent = 0;
}

void control_client_drop(struct control_client *c)
{
	if (c->state == CLIENT_FREE)
		return;
	control_spare_close(c->spare, c->fd);
	free(c->text);
	c->text = NULL;
	c->state = CLIENT_FREE;
}

short control_client_events(const struct control_client *c)
{
	if (c->state == CLIENT_READING)
		return POLLIN;
	return c->state == CLIENT_WRITING ? POLLOUT : 0;
}

/* Up to the newline, or until there is no room left. */
static void read_some(struct control_client *c)
{
	size_t room = sizeof(c->request) - 1 - c->got;
	ssize_t n = recv(c->fd, c->request + c->got, room, MSG_DONTWAIT);
	char *end;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		control_client_drop(c);
		return;
	}
	end = memchr(c->request + c->got, '\n', (size_t)n);
	c->got += (size_t)n;
	if (end) {
		*end = '\0';
		c->got = (size_t)(end - c->request);
	}
	if (end || c->got == sizeof(c->request) - 1)
		c->state = CLIENT_ASKING;
}

static void write_some(struct control_client *c)
{
	ssize_t n = send(c->fd, c->text + c->sent, c->len - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		c->sent += (size_t)n;
	if (n < 0 || c->sent == c->len)
		control_client_drop(c);
}

void control_client_step(struct control_client *c)
{
	if (c->state == CLIENT_READING)
		read_some(c);
	else if (c->state == CLIENT_WRITING)
		write_some(c);
}

/* Only the text is kept while it is written: the tree is many times as large. */
void control_client_answer(struct control_client *c, control_answer_fn *fn, void *arg,
			   long long now_ms)
{
	struct json_object *answer = make_answer(c, fn, arg);
	size_t len = 0;
	const char *text = NULL;

	if (answer) /* else there is no memory, and json-c would say "null" */
		text = json_object_to_json_string_length(answer, JSON_C_TO_STRING_PLAIN, &len);
	c->text = text ? malloc(len + 1) : NULL;
	if (c->text) {
		memcpy(c->text, text, len);
		c->text[len] = '\n';
		c->len = len + 1;
	}
	json_object_put(answer);
	if (!c->text) {
		control_client_drop(c);
		return;
	}
	c->state = CLIENT_WRITING;
	c->until_ms = now_ms + CONTROL_ANSWER_MS;
	write_some(c);
}
