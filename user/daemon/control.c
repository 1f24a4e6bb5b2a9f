// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one thread serves a few clients with poll(2).  A client sends one line, is
 * sent one line, and its connection is closed.  It has REQUEST_MS for the request and
 * ANSWER_MS to take the answer, so a client that is slow, silent or deaf keeps its place for two
 * and a half seconds.  While all places are taken, the others wait in the backlog of listen(2).
 *
 * The kernel says who is at the other end.  Whoever may not ask is refused at accept(2) and gets no
 * place.  Whoever may only look is refused when the request turns out to be a change.
 */
#include "daemon/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

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
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(accept4),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERCRED)),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERGROUPS)),
	SYSCALL(recvfrom),
	SYSCALL(sendto),
	SYSCALL(read), /* the eventfd */
	SYSCALL(write),
	SYSCALL(close),
	/* lstat(2) and unlink(2) at the end */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_SYMLINK_NOFOLLOW)),
	SYSCALL(lstat),
	SYSCALL(unlink),
	SYSCALL(unlinkat));

/* A place for a client.  FD -1: free.  ANSWER NULL: the request is not complete. */
struct client {
	int fd;
	struct control_peer peer;
	uint64_t until_ms; /* deadline for the request, then for the answer */
	char request[CONTROL_REQUEST_MAX];
	size_t got;
	char *answer; /* owned */
	size_t len, sent;
};

struct control {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int fd;
	int wake; /* eventfd */
	_Atomic bool stop;
	_Atomic uint64_t turns;
	bool bound, started;
	dev_t dev; /* of the socket's file, */
	ino_t ino; /* so that a newer daemon's is not removed */
	pthread_t thread;
	control_answer_fn *answer;
	void *arg;
	uid_t uid; /* who may change */
	gid_t gid; /* who may ask */
	uint64_t accept_ms; /* accept no client before */
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
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return -errno;
	mask = umask(0117);
	r = bind_as(c->fd, &un, uid, gid);
	umask(mask);
	if (r)
		return r;
	c->bound = true;
	if (listen(c->fd, BACKLOG) || lstat(c->path, &st))
		return -errno;
	c->dev = st.st_dev;
	c->ino = st.st_ino;
	return 0;
}

int control_open(const char *path, uid_t uid, gid_t gid, struct control **ret, char *err,
		 size_t errlen)
{
	struct control *c = calloc(1, sizeof(*c));
	int r = -ENOMEM;

	if (!c)
		goto fail;
	c->fd = c->wake = -1;
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		c->clients[i].fd = -1;
	c->uid = uid;
	c->gid = gid;
	r = -EINVAL;
	if (!*path)
		goto fail;
	r = -ENAMETOOLONG;
	if (strlen(path) >= sizeof(c->path))
		goto fail;
	strcpy(c->path, path);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = c->wake < 0 ? -errno : bind_socket(c, uid, gid);
	if (r)
		goto fail;
	*ret = c;
	return 0;
fail:
	snprintf(err, errlen, "control socket %s: %s%s", path, strerror(-r),
		 r == -EADDRINUSE ? " (another culvert is running; give it its own --control)"
		 : r == -EACCES || r == -ENOENT || r == -EROFS
			 ? " (give another path with --control)"
			 : "");
	if (c && c->bound)
		unlink(c->path);
	if (c && c->fd >= 0)
		close(c->fd);
	if (c && c->wake >= 0)
		close(c->wake);
	free(c);
	return r;
}

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

/*
 * Root, UID, and members of GID may ask, be it their primary or a supplementary group at the time
 * of their connect(2).  Root and UID may change.
 */
static struct control_peer peer_of(int fd, uid_t uid, gid_t gid)
{
	struct control_peer peer = { .fd = fd };
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

/*
 * The client has closed its socket.  One that has only shut it down for writing still waits for the
 * answer.
 */
static bool has_gone(const struct control_peer *peer)
{
	struct pollfd p = { .fd = peer->fd };

	return poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR);
}

/* --- requests and answers --- */

/*
 * Refuse a change whose client has given up, because this process was stopped for example: nobody
 * expects the change any more.
 */
static struct json_object *abandoned(const struct command_request *req,
				     const struct control_peer *peer)
{
	log_warning("control: %s: not done: who asked for it has gone without waiting for the "
		    "answer (uid %u, pid %d)", req->command->name, peer->uid, (int)peer->pid);
	return command_error_json(ERROR_FAILED, "nobody waits for the answer");
}

struct json_object *control_answer_line(control_answer_fn *fn, void *arg,
					const struct control_peer *peer, const char *line,
					size_t len)
{
	struct command_request req;
	struct command_refusal why;
	struct json_object *answer;

	if (!command_parse(line, len, &req, &why))
		return command_error_json(why.code, "%s", why.message);
	if (command_changes(&req) && !peer->may_change)
		answer = command_error_json(ERROR_PERMISSION,
					    "%s: permission denied: only root and the daemon's own "
					    "account may change anything", req.command->name);
	else if (command_changes(&req) && has_gone(peer))
		answer = abandoned(&req, peer);
	else
		answer = fn(arg, &req, peer);
	command_close(&req);
	/* cppcheck-suppress returnDanglingLifetime ; an answer holds copies alone */
	return answer;
}

static void drop(struct client *c)
{
	close(c->fd);
	free(c->answer);
	*c = (struct client){ .fd = -1 };
}

/* Send an error that needs no memory.  A socket to which nothing was written has room for it. */
static void refuse(int fd, enum command_error e, const char *message)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}\n",
			 command_error_name(e), message);

	(void)send(fd, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void write_some(struct client *c)
{
	ssize_t n = send(c->fd, c->answer + c->sent, c->len - c->sent,
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
static void answer_request(struct control *control, struct client *c, bool too_long)
{
	struct json_object *answer;
	const char *text;
	size_t len;

	json_begin();
	answer = too_long ? command_error_json(ERROR_TOO_LONG, "the request is too long: at most "
					       "%d bytes and a newline", CONTROL_REQUEST_MAX - 2) :
			    control_answer_line(control->answer, control->arg, &c->peer,
						c->request, c->got);
	text = json_line(answer, 0, &len);
	c->answer = text ? malloc(len + 1) : NULL;
	if (!c->answer) {
		json_object_put(answer);
		refuse(c->fd, ERROR_NO_MEMORY, "the daemon has no memory for the answer");
		drop(c);
		return;
	}
	memcpy(c->answer, text, len);
	c->answer[len] = '\n';
	c->len = len + 1;
	json_object_put(answer);
	c->until_ms = clock_ms() + ANSWER_MS;
	write_some(c);
}

/* Read on.  A newline ends the request, or the end of what the client writes (shutdown(2)). */
static void read_some(struct control *control, struct client *c)
{
	size_t room = sizeof(c->request) - 1 - c->got;
	ssize_t n = recv(c->fd, c->request + c->got, room, MSG_DONTWAIT);
	char *end;

	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			drop(c);
		return;
	}
	end = memchr(c->request + c->got, '\n', (size_t)n);
	c->got = end ? (size_t)(end - c->request) : c->got + (size_t)n;
	if (end || !n || (size_t)n == room)
		answer_request(control, c, !end && (size_t)n == room);
}

static void drop_late(struct client *c)
{
	if (c->answer)
		log_limited(LOG_WARNING, "control: uid %u, pid %d has not taken its answer in time",
			    c->peer.uid, (int)c->peer.pid);
	else
		refuse(c->fd, ERROR_TIMEOUT, "the request was not complete in time");
	drop(c);
}

/* --- serving --- */

static struct client *free_place(struct control *c)
{
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (c->clients[i].fd < 0)
			return &c->clients[i];
	return NULL;
}

/*
 * Accept while there is a place, but in one turn no more than the backlog holds: strangers who
 * connect in a loop take no place, and would keep this thread here.
 */
static void accept_clients(struct control *c)
{
	struct client *place;

	for (int i = 0; i <= BACKLOG && (place = free_place(c)); i++) {
		int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct control_peer peer;

		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
				c->accept_ms = clock_ms() + ACCEPT_PAUSE_MS;
			return;
		}
		peer = peer_of(fd, c->uid, c->gid);
		if (peer.may_ask) {
			*place = (struct client){ .fd = fd, .peer = peer,
						  .until_ms = clock_ms() + REQUEST_MS };
			continue;
		}
		refuse(fd, ERROR_PERMISSION, "permission denied: only root, the daemon's own "
		       "account and members of its group may ask");
		close(fd);
	}
}

/* Milliseconds from NOW to the next deadline; -1: there is none. */
static int timeout_of(const struct control *c, bool accepting, uint64_t now)
{
	uint64_t first = accepting ? NEVER : c->accept_ms;

	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (c->clients[i].fd >= 0 && c->clients[i].until_ms < first)
			first = c->clients[i].until_ms;
	if (first == NEVER)
		return -1;
	return first > now ? (int)(first - now) : 0;
}

enum { POLL_WAKE, POLL_LISTENER, POLL_CLIENTS };

/*
 * One turn.  A client is late only if it was late before poll(2): where it is this thread that was
 * held up, a request that has come meanwhile counts.
 */
static void serve_once(struct control *c)
{
	struct pollfd p[POLL_CLIENTS + CLIENTS_MAX];
	uint64_t n, now = clock_ms();
	bool accepting = c->accept_ms <= now;

	p[POLL_WAKE] = (struct pollfd){ .fd = c->wake, .events = POLLIN };
	p[POLL_LISTENER] = (struct pollfd){ .fd = accepting && free_place(c) ? c->fd : -1,
					    .events = POLLIN };
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		p[POLL_CLIENTS + i] = (struct pollfd){
			.fd = c->clients[i].fd,
			.events = c->clients[i].answer ? POLLOUT : POLLIN,
		};
	if (poll(p, POLL_CLIENTS + CLIENTS_MAX, timeout_of(c, accepting, now)) < 0)
		return;
	for (size_t i = 0; i < CLIENTS_MAX; i++) {
		struct client *client = &c->clients[i];

		if (p[POLL_CLIENTS + i].revents && client->answer)
			write_some(client);
		else if (p[POLL_CLIENTS + i].revents)
			read_some(c, client);
		if (client->fd >= 0 && client->until_ms <= now)
			drop_late(client);
	}
	if (p[POLL_LISTENER].revents)
		accept_clients(c);
	if (p[POLL_WAKE].revents)
		(void)!read(c->wake, &n, sizeof(n));
	atomic_store_explicit(&c->turns, c->turns + 1, memory_order_relaxed);
}

static void *run(void *arg)
{
	struct control *c = arg;

	while (!c->stop)
		serve_once(c);
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (c->clients[i].fd >= 0)
			drop(&c->clients[i]);
	return NULL;
}

int control_start(struct control *c, control_answer_fn *answer, void *arg)
{
	int r;

	c->answer = answer;
	c->arg = arg;
	r = -pthread_create(&c->thread, NULL, run, c);
	c->started = !r;
	return r;
}

const _Atomic uint64_t *control_turns(const struct control *c)
{
	return &c->turns;
}

void control_wake(struct control *c)
{
	uint64_t one = 1;

	(void)!write(c->wake, &one, sizeof(one));
}

void control_close(struct control *c)
{
	struct stat st;

	if (!c)
		return;
	if (c->started) {
		c->stop = true;
		control_wake(c);
		pthread_join(c->thread, NULL);
	}
	close(c->fd);
	close(c->wake);
	if (!lstat(c->path, &st) && st.st_dev == c->dev && st.st_ino == c->ino)
		unlink(c->path);
	free(c);
}
