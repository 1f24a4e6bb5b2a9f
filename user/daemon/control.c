// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one thread serves a few clients in an event loop.  A client sends one line,
 * is sent one line, and its connection is closed.  It has REQUEST_MS for the request and
 * ANSWER_MS to take the answer, so a client that is slow, silent or deaf keeps its place for two
 * and a half seconds.  While all places are taken, the others wait in the backlog of listen(2).
 * A spare descriptor is kept for the one who asks why there is none left.
 *
 * The mode of the socket's file says who may connect, and so may look.  The kernel says who is at
 * the other end: whoever may only look is refused when the request turns out to be a change.
 */
#include "daemon/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/syscalls_needed.h"

#define BACKLOG 16
#define CLIENTS_MAX 8 /* at a time; with thousands of sessions an answer is megabytes */
#define REQUEST_MS 500
#define ANSWER_MS 2000
#define ACCEPT_PAUSE_MS 100 /* after a shortage of descriptors or memory */

SYSCALLS_NEEDED(
	SYSCALL(accept4),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERCRED)),
	SYSCALL(recvfrom),
	SYSCALL(sendto),
	SYSCALL(fcntl, SYSCALL_ARG(1, F_DUPFD_CLOEXEC)), /* the spare */
	SYSCALL(close),
	/* lstat(2) and unlink(2) at the end */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_SYMLINK_NOFOLLOW)),
	SYSCALL(lstat),
	SYSCALL(unlink),
	SYSCALL(unlinkat));

/* A place for a client.  ANSWER NULL: the request is not complete. */
struct client {
	struct source source; /* fd -1: the place is free */
	struct timer deadline;
	struct control *control;
	struct control_peer peer;
	char request[CONTROL_REQUEST_MAX];
	size_t got;
	char *answer; /* owned */
	size_t len, sent;
};

struct control {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct loop loop;
	struct source listener;
	struct timer again; /* to accept after a shortage */
	int spare;
	_Atomic bool stop;
	bool bound, started;
	dev_t dev; /* of the socket's file, */
	ino_t ino; /* so that a newer daemon's is not removed */
	pthread_t thread;
	control_answer_fn *answer;
	void *arg;
	uid_t uid; /* who may change */
	struct client clients[CLIENTS_MAX];
};

/* --- set-up --- */

static int make_directory(const char *path, uid_t uid, gid_t gid)
{
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
	char *slash;
	int fd, r;

	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return 0;
	*slash = '\0';
	if (mkdir(dir, 0755))
		return errno == EEXIST ? 0 : -errno;
	if (geteuid())
		return 0;
	/* the unprivileged daemon may then remove the socket when it exits */
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = fchown(fd, uid, gid) ? -errno : 0;
	close(fd);
	return r;
}

/*
 * As root: bind as the account, so that the file is its own from the start.  To bind as root and
 * chown(2) afterwards would follow whatever the account has put into its directory meanwhile.  In a
 * directory where the account may not create files it cannot do that either, and there root binds.
 */
static int bind_as(int fd, const struct sockaddr_un *un, uid_t uid, gid_t gid)
{
	int r = -EACCES;

	if (geteuid() == 0) {
		if (!setegid(gid)) {
			if (!seteuid(uid))
				r = bind(fd, (const struct sockaddr *)un, sizeof(*un)) ? -errno : 0;
			if (seteuid(0))
				return -errno;
		}
		if (setegid(0))
			return -errno;
		if (r != -EACCES)
			return r;
	}
	if (bind(fd, (const struct sockaddr *)un, sizeof(*un)))
		return -errno;
	if (geteuid() == 0 && lchown(un->sun_path, uid, gid))
		return -errno;
	return 0;
}

static int remove_stale(const struct sockaddr_un *un)
{
	struct stat st;
	int fd, r = 0;

	if (lstat(un->sun_path, &st))
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (!connect(fd, (const struct sockaddr *)un, sizeof(*un)) || errno == EAGAIN)
		r = -EADDRINUSE;
	else if (errno == ECONNREFUSED)
		r = unlink(un->sun_path) ? -errno : 0;
	close(fd);
	return r;
}

static int bind_socket(struct control *c, uid_t uid, gid_t gid)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct stat st;
	mode_t mask;
	int r;

	memcpy(un.sun_path, c->path, sizeof(un.sun_path));
	r = make_directory(c->path, uid, gid);
	r = r ?: remove_stale(&un);
	if (r)
		return r;
	c->listener.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->listener.fd < 0)
		return -errno;
	mask = umask(0117);
	r = bind_as(c->listener.fd, &un, uid, gid);
	umask(mask);
	if (r)
		return r;
	c->bound = true;
	if (listen(c->listener.fd, BACKLOG) || lstat(c->path, &st))
		return -errno;
	c->dev = st.st_dev;
	c->ino = st.st_ino;
	return 0;
}

static void stop_if_told(void *arg)
{
	struct control *c = arg;

	c->loop.stop = c->stop;
}

int control_open(const char *path, uid_t uid, gid_t gid, struct control **ret, char *err,
		 size_t errlen)
{
	struct control *c = allocated(calloc(1, sizeof(*c)));
	size_t len = strlen(path);
	int r;

	c->listener.fd = -1;
	c->uid = uid;
	r = loop_open(&c->loop, stop_if_told, c) ?: loop_reserve_timers(&c->loop, CLIENTS_MAX + 1);
	if (!r)
		r = !len ? -EINVAL : len >= sizeof(c->path) ? -ENAMETOOLONG : 0;
	if (!r)
		memcpy(c->path, path, len + 1);
	r = r ?: bind_socket(c, uid, gid);
	c->spare = fcntl(c->listener.fd, F_DUPFD_CLOEXEC, 0);
	if (!r) {
		*ret = c;
		return 0;
	}
	snprintf(err, errlen, "control socket %s: %s%s", path, strerror(-r),
		 r == -EADDRINUSE ? " (another culvert is running; give it its own --control)"
		 : r == -EACCES || r == -ENOENT || r == -EROFS
			 ? " (give another path with --control)"
			 : "");
	control_close(c);
	return r;
}

/* --- requests and answers --- */

struct json_object *control_answer_line(control_answer_fn *fn, void *arg,
					const struct control_peer *peer, const char *line)
{
	struct command_request req;
	struct json_object *answer = command_parse(line, &req);

	if (answer)
		return answer;
	if (command_changes(&req) && !peer->may_change)
		answer = command_error_json(ERROR_PERMISSION,
					    "%s: permission denied: only root and the daemon's own "
					    "account may change anything", req.command->name);
	else
		answer = fn(arg, &req);
	if (command_changes(&req))
		log_write(LOG_NOTICE, "control: %s: %s (by uid %u, pid %d)",
			  json_object_to_json_string_ext(req.json, JSON_C_TO_STRING_PLAIN),
			  json_object_to_json_string_ext(answer, JSON_C_TO_STRING_PLAIN),
			  peer->uid, (int)peer->pid);
	command_close(&req);
	/* cppcheck-suppress returnDanglingLifetime ; an answer holds copies alone */
	return answer;
}

static void accept_more(struct control *c);

static void drop(struct client *c)
{
	struct control *control = c->control;

	loop_watch(&control->loop, &c->source, 0, false);
	timer_cancel(&control->loop, &c->deadline);
	close(c->source.fd);
	free(c->answer);
	*c = (struct client){ .source.fd = -1, .control = control };
	if (control->spare < 0)
		control->spare = fcntl(control->listener.fd, F_DUPFD_CLOEXEC, 0);
	accept_more(control);
}

/* Send an error that needs no memory.  A socket to which nothing was written has room for it. */
static void refuse(int fd, const char *code, const char *message)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}\n",
			 code, message);

	(void)send(fd, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void write_some(struct client *c)
{
	ssize_t n = send(c->source.fd, c->answer + c->sent, c->len - c->sent,
			 MSG_DONTWAIT | MSG_NOSIGNAL);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		c->sent += (size_t)n;
	if (n < 0 || c->sent == c->len)
		drop(c);
}

/*
 * Make the answer and begin to write it.  Only its text is kept, since the tree of objects is many
 * times as large.
 */
static void answer_request(struct client *c, bool too_long)
{
	struct control *control = c->control;
	struct json_object *answer;
	const char *text;

	answer = too_long ? command_error_json(ERROR_TOO_LONG, "the request is too long: at most "
					       "%d bytes and a newline", CONTROL_REQUEST_MAX - 2) :
			    control_answer_line(control->answer, control->arg, &c->peer,
						c->request);
	text = json_line(answer, 0, &c->len);
	c->answer = text ? malloc(c->len + 1) : NULL;
	if (c->answer) {
		memcpy(c->answer, text, c->len);
		c->answer[c->len++] = '\n';
	}
	json_object_put(answer);
	timer_set(&control->loop, &c->deadline, clock_ms() + ANSWER_MS);
	if (c->answer && !loop_watch(&control->loop, &c->source, EPOLLOUT, true)) {
		write_some(c);
		return;
	}
	refuse(c->source.fd, ERROR_NO_MEMORY, "the daemon has no memory for the answer");
	drop(c);
}

/* Read on.  A newline ends the request, or the end of what the client writes (shutdown(2)). */
static void read_some(struct client *c)
{
	size_t room = sizeof(c->request) - 1 - c->got;
	ssize_t n = recv(c->source.fd, c->request + c->got, room, MSG_DONTWAIT);
	char *end;

	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			drop(c);
		return;
	}
	end = memchr(c->request + c->got, '\n', (size_t)n);
	c->got = end ? (size_t)(end - c->request) : c->got + (size_t)n;
	c->request[c->got] = '\0';
	if (end || !n || (size_t)n == room)
		answer_request(c, !end && (size_t)n == room);
}

static void on_client(struct source *s, uint32_t events)
{
	struct client *c = container_of(s, struct client, source);

	(void)events;
	if (c->answer)
		write_some(c);
	else
		read_some(c);
}

static void on_deadline(struct timer *t)
{
	struct client *c = container_of(t, struct client, deadline);

	if (!c->answer)
		refuse(c->source.fd, ERROR_TIMEOUT, "the request was not complete in time");
	drop(c);
}

/* --- accepting --- */

static struct client *free_place(struct control *c)
{
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (c->clients[i].source.fd < 0)
			return &c->clients[i];
	return NULL;
}

static void accept_more(struct control *c)
{
	loop_watch(&c->loop, &c->listener, EPOLLIN, free_place(c));
}

static void on_again(struct timer *t)
{
	accept_more(container_of(t, struct control, again));
}

static void take_client(struct control *c, int fd)
{
	struct client *place = free_place(c);
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t len = sizeof(peer);

	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	place->peer = (struct control_peer){ peer.uid == 0 || peer.uid == c->uid, peer.uid,
					     peer.pid };
	place->source.fd = fd;
	place->source.handle = on_client;
	place->deadline.fire = on_deadline;
	timer_set(&c->loop, &place->deadline, clock_ms() + REQUEST_MS);
	if (loop_watch(&c->loop, &place->source, EPOLLIN, true))
		drop(place);
	accept_more(c);
}

/* Accept one.  With no descriptor left, it gets the spare one. */
static void on_listener(struct source *s, uint32_t events)
{
	struct control *c = container_of(s, struct control, listener);
	int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd < 0 && (errno == EMFILE || errno == ENFILE) && c->spare >= 0) {
		close(c->spare);
		c->spare = -1;
		fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	}
	if (fd >= 0) {
		take_client(c, fd);
	} else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
		loop_watch(&c->loop, s, 0, false);
		timer_set(&c->loop, &c->again, clock_ms() + ACCEPT_PAUSE_MS);
	}
}

static void *run(void *arg)
{
	struct control *c = arg;

	accept_more(c);
	loop_run(&c->loop);
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (c->clients[i].source.fd >= 0)
			drop(&c->clients[i]);
	return NULL;
}

int control_start(struct control *c, control_answer_fn *answer, void *arg)
{
	int r;

	c->answer = answer;
	c->arg = arg;
	c->listener.handle = on_listener;
	c->again.fire = on_again;
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		c->clients[i] = (struct client){ .source.fd = -1, .control = c };
	r = -pthread_create(&c->thread, NULL, run, c);
	c->started = !r;
	return r;
}

struct loop *control_loop(struct control *c)
{
	return &c->loop;
}

void control_close(struct control *c)
{
	struct stat st;

	if (!c)
		return;
	if (c->started) {
		c->stop = true;
		loop_wake(&c->loop);
		pthread_join(c->thread, NULL);
	}
	if (c->bound && !lstat(c->path, &st) && st.st_dev == c->dev && st.st_ino == c->ino)
		unlink(c->path);
	if (c->listener.fd >= 0)
		close(c->listener.fd);
	if (c->spare >= 0)
		close(c->spare);
	loop_close(&c->loop);
	free(c);
}
