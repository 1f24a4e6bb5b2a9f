// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/control_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json_add.h"
#include "base/log.h"
#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERCRED)),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERGROUPS)),
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(recvfrom),
	SYSCALL(sendto));

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

struct control_peer control_peer_of(int fd, uid_t uid, gid_t gid)
{
	struct control_peer peer = { .may_ask = false };
	socklen_t len = sizeof(struct ucred);
	struct ucred is;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &is, &len) || len != sizeof(is))
		return peer;
	peer.uid = is.uid;
	peer.pid = is.pid;
	peer.may_change = is.uid == 0 || is.uid == uid;
	peer.may_ask = peer.may_change || is.gid == gid || has_group(fd, gid);
	return peer;
}

/* --- requests and answers --- */

struct json_object *control_answer_line(control_answer_fn *fn, void *arg,
					const struct control_peer *peer, const char *line,
					size_t len)
{
	struct command_request req;
	struct json_object *answer;

	if (!command_parse(line, len, &req, &answer))
		return answer;
	if (command_changes(&req) && !peer->may_change)
		answer = command_error_json(ERROR_PERMISSION,
					    "%s: permission denied: only root and the daemon's own "
					    "account may change anything", req.command->name);
	else
		answer = fn(arg, &req, peer);
	command_close(&req);
	/* cppcheck-suppress returnDanglingLifetime ; an answer holds copies alone */
	return answer;
}

/*
 * A client that has closed its socket, which POLLHUP says.  One that has only said that it will ask
 * no more (shutdown(2), POLLRDHUP) waits for the answer.
 */
static bool has_gone(const struct control_client *c)
{
	struct pollfd p = { .fd = c->fd };

	return poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR);
}

/* Who answers a client. */
struct answerer {
	const struct control_client *client;
	control_answer_fn *fn;
	void *arg;
};

/*
 * Who has given up, because this process was stopped for example, has done something else by now: a
 * change would come as a surprise.
 */
static struct json_object *answer_present(void *arg, const struct command_request *req,
					  const struct control_peer *peer)
{
	const struct answerer *a = arg;

	if (!command_changes(req) || !has_gone(a->client))
		return a->fn(a->arg, req, peer);
	log_warning("control: %s: not done: who asked for it has gone without waiting for the "
		    "answer (uid %u, pid %d)", req->command->name, peer->uid, (int)peer->pid);
	return command_error_json(ERROR_FAILED, "nobody waits for the answer");
}

static struct json_object *make_answer(const struct control_client *c, control_answer_fn *fn,
				       void *arg)
{
	struct answerer present = { c, fn, arg };

	if (!c->peer.may_ask)
		return command_error_json(ERROR_PERMISSION,
					  "permission denied: only root, the daemon's own account "
					  "and members of its group may ask");
	if (c->got >= sizeof(c->request) - 1)
		return command_error_json(ERROR_TOO_LONG, "the request is too long: at most %zu "
					  "bytes and a newline", sizeof(c->request) - 2);
	return control_answer_line(answer_present, &present, &c->peer, c->request, c->got);
}

/* --- one client --- */

void control_client_refuse(int fd, struct control_spare *spare)
{
	/* as command_error_json() would say it */
	static const char busy[] = "{\"error\":{\"code\":\"busy\",\"message\":"
				   "\"too many clients at a time: ask again later\"}}\n";

	(void)send(fd, busy, sizeof(busy) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	control_spare_close(spare, fd);
}

void control_client_begin(struct control_client *c, int fd, struct control_spare *spare,
			  const struct control_peer *peer, uint64_t now_ms)
{
	c->state = CLIENT_READING;
	c->fd = fd;
	c->spare = spare;
	c->peer = *peer;
	c->until_ms = now_ms + CONTROL_REQUEST_MS;
	c->text = c->made = NULL;
	c->got = c->len = c->sent = 0;
}

void control_client_drop(struct control_client *c)
{
	if (c->state == CLIENT_FREE)
		return;
	control_spare_close(c->spare, c->fd);
	free(c->made);
	c->text = c->made = NULL;
	c->state = CLIENT_FREE;
}

short control_client_events(const struct control_client *c)
{
	if (c->state == CLIENT_READING)
		return POLLIN;
	return c->state == CLIENT_WRITING ? POLLOUT : 0;
}

/* Up to the newline or the end, or until there is no room left. */
static void read_some(struct control_client *c)
{
	size_t room = sizeof(c->request) - 1 - c->got;
	ssize_t n = recv(c->fd, c->request + c->got, room, MSG_DONTWAIT);
	char *end;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		control_client_drop(c);
		return;
	}
	if (!n) {
		/* it says no more: that is as good as a newline */
		c->request[c->got] = '\0';
		c->state = CLIENT_ASKING;
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

void control_client_late(struct control_client *c)
{
	/* as command_error_json() would say it */
	static const char late[] = "{\"error\":{\"code\":\"timeout\",\"message\":"
				   "\"the request was not complete in time\"}}\n";

	if (c->state == CLIENT_READING)
		read_some(c);
	if (c->state == CLIENT_ASKING)
		return;
	if (c->state == CLIENT_READING)
		(void)send(c->fd, late, sizeof(late) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (c->state == CLIENT_WRITING)
		log_limited(LOG_WARNING, "control: uid %u, pid %d has not taken its answer in time",
			    c->peer.uid, (int)c->peer.pid);
	control_client_drop(c);
}

void control_client_step(struct control_client *c)
{
	if (c->state == CLIENT_READING)
		read_some(c);
	else if (c->state == CLIENT_WRITING)
		write_some(c);
}

/*
 * Only the text is kept while it is written: the tree is many times as large.  A short one takes
 * the place of the request, which needs no memory: what has been done can be told.
 */
static void keep_text(struct control_client *c, const char *text, size_t len)
{
	char *to = c->request;

	if (len >= sizeof(c->request))
		to = c->made = malloc(len + 1);
	if (!to)
		return;
	memcpy(to, text, len);
	to[len] = '\n';
	c->text = to;
	c->len = len + 1;
}

void control_client_answer(struct control_client *c, control_answer_fn *fn, void *arg,
			   uint64_t now_ms)
{
	/* as command_error_json() would say it */
	static const char no_memory[] = "{\"error\":{\"code\":\"no-memory\",\"message\":"
					"\"the daemon has no memory for an answer\"}}\n";
	struct json_object *answer;
	const char *text;
	size_t len;

	c->text = no_memory;
	c->len = sizeof(no_memory) - 1;
	json_begin();
	answer = make_answer(c, fn, arg);
	text = json_line(answer, 0, &len);
	if (text)
		keep_text(c, text, len);
	json_object_put(answer);
	c->state = CLIENT_WRITING;
	c->until_ms = now_ms + CONTROL_ANSWER_MS;
	write_some(c);
}
