// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a client gets REQUEST_MS to send its request and DEADLINE_MS to take the answer; one that is slow, silent or sends garbage delays other clients so long at most, and never
 * a session.
 */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

#define REQUEST_MS 500
#define DEADLINE_MS 2000
#define REQUEST_MAX 4096

struct control {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int fd;
	int stop; /* eventfd */
	bool bound, started;
	dev_t dev; /* of the socket's file, */
	ino_t ino; /* so that a newer daemon's is not removed */
	pthread_t thread;
	control_answer_fn *answer;
	void *arg;
};

static long long clock_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (long long)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

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
	if (listen(c->fd, 16) || lstat(c->path, &st))
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
	c->fd = c->stop = -1;
	r = -EINVAL;
	if (!*path)
		goto fail;
	r = -ENAMETOOLONG;
	if (strlen(path) >= sizeof(c->path))
		goto fail;
	strcpy(c->path, path);
	c->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = c->stop < 0 ? -errno : bind_socket(c, uid, gid);
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
	if (c && c->stop >= 0)
		close(c->stop);
	free(c);
	return r;
}

/* --- serving --- */

/* False: the time is up, or the daemon stops. */
static bool wait_for(struct control *c, int fd, short events, long long until)
{
	struct pollfd p[2] = { { .fd = fd, .events = events }, { .fd = c->stop, .events = POLLIN } };

	for (;;) {
		long long left = until - clock_ms();
		int n;

		if (left <= 0)
			return false;
		n = poll(p, 2, (int)left);
		if (n < 0 && errno == EINTR)
			continue;
		return n > 0 && !p[1].revents;
	}
}

/* One line into LINE, without the newline.  False: none came, or (LINE is full) it is too long. */
static bool read_request(struct control *c, int fd, char *line, size_t size, long long until,
			 size_t *ret_len)
{
	size_t n = 0;

	*ret_len = 0;
	while (n < size - 1 && wait_for(c, fd, POLLIN, until)) {
		ssize_t got = recv(fd, line + n, size - 1 - n, MSG_DONTWAIT);
		char *end;

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (got <= 0)
			return false;
		n += (size_t)got;
		*ret_len = n;
		end = memchr(line, '\n', n);
		if (end) {
			*end = '\0';
			*ret_len = (size_t)(end - line);
			return true;
		}
	}
	return false;
}

static bool send_all(struct control *c, int fd, const char *text, size_t len, long long until)
{
	size_t at = 0;

	while (at < len && wait_for(c, fd, POLLOUT, until)) {
		ssize_t n = send(fd, text + at, len - at, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return false;
		if (n > 0)
			at += (size_t)n;
	}
	return at == len;
}

static void write_answer(struct control *c, int fd, struct json_object *answer, long long until)
{
	size_t len;
	const char *text = json_object_to_json_string_length(answer, JSON_C_TO_STRING_PLAIN, &len);

	if (text && send_all(c, fd, text, len, until))
		send_all(c, fd, "\n", 1, until);
}

static struct json_object *error_answer(const char *text)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, "error", json_object_new_string(text));
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

static struct json_object *answer_line(struct control *c, const char *line, size_t len)
{
	struct json_object *request = parse(line, len), *command = NULL, *answer = NULL;

	if (!json_object_is_type(request, json_type_object) ||
	    !json_object_object_get_ex(request, "command", &command) ||
	    !json_object_is_type(command, json_type_string) ||
	    strlen(json_object_get_string(command)) != (size_t)json_object_get_string_len(command))
		answer = error_answer("a request is one line: {\"command\":\"NAME\"}");
	else
		answer = c->answer(c->arg, json_object_get_string(command));
	json_object_put(request);
	return answer ?: error_answer("unknown command (known: sessions, status)");
}

static void serve(struct control *c, int fd)
{
	long long until = clock_ms() + REQUEST_MS;
	struct json_object *answer;
	char line[REQUEST_MAX];
	size_t len;

	if (read_request(c, fd, line, sizeof(line), until, &len))
		answer = answer_line(c, line, len);
	else if (len == sizeof(line) - 1)
		answer = error_answer("the request is too long");
	else
		return;
	write_answer(c, fd, answer, clock_ms() + DEADLINE_MS);
	json_object_put(answer);
}

static void *run(void *arg)
{
	struct control *c = arg;
	struct pollfd p[2] = { { .fd = c->fd, .events = POLLIN }, { .fd = c->stop, .events = POLLIN } };

	for (;;) {
		int fd;

		if (poll(p, 2, -1) < 0)
			continue;
		if (p[1].revents)
			return NULL;
		fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			serve(c, fd);
			close(fd);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
			   errno == ENOBUFS) {
			poll(p + 1, 1, 100); /* the client waits in the backlog: do not spin */
		}
	}
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

void control_close(struct control *c)
{
	uint64_t one = 1;
	struct stat st;

	if (!c)
		return;
	if (c->started) {
		(void)!write(c->stop, &one, sizeof(one));
		pthread_join(c->thread, NULL);
	}
	close(c->fd);
	close(c->stop);
	if (!lstat(c->path, &st) && st.st_dev == c->dev && st.st_ino == c->ino)
		unlink(c->path);
	free(c);
}
