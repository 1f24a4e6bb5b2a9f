// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a few threads serve one client at a time each.  A client sends one line, is
 * sent one line, and its connection is closed.  A client has REQUEST_MS for the request and
 * CONTROL_ANSWER_MS to take the answer, so a client that is slow, silent or deaf keeps its thread
 * for four seconds.  If an answer has several pieces, each may take as long.  While all threads are
 * taken, further clients wait in the backlog of listen(2).  Each thread keeps a spare descriptor,
 * and closes it just before accept4(2).  So a client can ask why the daemon has no descriptors
 * left, unless a worker takes the spare one in between.  Metrics are served in the same way.
 *
 * The mode of the socket's file decides which accounts may connect, and so look.  The kernel names
 * the client (SO_PEERCRED): root and the daemon's account alone may make changes.
 */
#include "daemon/control_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "relay/listener.h"

#define BACKLOG 16
#define THREADS 8 /* for requests whose answers end; beside those for streams */
#define REQUEST_MS 2000
#define ACCEPT_PAUSE_MS 100 /* after a shortage of descriptors or memory */

SYSCALLS_ALLOWED(
	SYSCALL(accept4),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_PEERCRED)),
	SYSCALL(recvfrom), SYSCALL(sendto), SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(write), SYSCALL(close), SYSCALL(dup3), SYSCALL(unlink), SYSCALL(unlinkat));

struct control {
	struct sockaddr_un un; /* "": no file */
	int listener;
	int stop;           /* an eventfd that can be read when the threads are to end */
	pthread_t *threads; /* owned */
	unsigned int n_threads;
	int *spare; /* owned: a copy of the listener, for each thread that has not begun */
	unsigned int n_spare;
	pthread_mutex_t accepting; /* one thread waits for the next client */
	pthread_mutex_t answering; /* with thousands of forwards an answer takes megabytes */
	control_serve_fn *serve;
	control_answer_fn *answer; /* see control_start() */
	control_stream_fn *stream;
	void *arg;
	uid_t uid; /* beside root, the account that may make changes */
};

/* --- set-up --- */

static int make_directory(const char *path, uid_t uid, gid_t gid)
{
	char copy[sizeof(((struct sockaddr_un *)0)->sun_path)];
	const char *dir = dirname(strcpy(copy, path));

	if (mkdir(dir, 0755))
		return errno == EEXIST ? 0 : -errno;
	/* the unprivileged daemon may then remove the socket when it exits */
	return geteuid() == 0 && lchown(dir, uid, gid) ? -errno : 0;
}

/* A socket that listens at A.  -errno. */
static int control_socket(const struct addr *a, bool both, uid_t uid, gid_t gid)
{
	bool file = !addr_is_inet(a);
	int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r = fd < 0 ? -errno : 0, one = 1, alone = !both, own;
	mode_t mask;

	if (!r && file)
		r = make_directory(a->un.sun_path, uid, gid) ?: unix_remove_stale(&a->un, a->len);
	if (!file)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (a->ss.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &alone, sizeof(alone));
	/*
	 * A file has mode 0660 at any umask.  Its group is GID from the start: a later change of
	 * the group would leave time to put another file in its place.
	 */
	mask = umask(0117);
	own = setfsgid(gid);
	if (!r && (bind(fd, &a->sa, a->len) || listen(fd, BACKLOG)))
		r = -errno;
	setfsgid((gid_t)own);
	umask(mask);
	if (r && fd >= 0)
		close(fd);
	return r ?: fd;
}

int control_listen(const struct addr *a, bool both, uid_t uid, gid_t gid, struct control **ret)
{
	struct control *c;
	int fd, stop = eventfd(0, EFD_CLOEXEC);
	bool handed;

	if (stop < 0)
		return -errno;
	if (!given_open(a, false, 1, &fd, &handed))
		fd = control_socket(a, both, uid, gid);
	if (fd < 0) {
		close(stop);
		return fd;
	}
	c = allocated(calloc(1, sizeof(*c)));
	c->uid = uid;
	c->listener = fd;
	c->stop = stop;
	if (!addr_is_inet(a))
		c->un = a->un;
	pthread_mutex_init(&c->accepting, NULL);
	pthread_mutex_init(&c->answering, NULL);
	*ret = c;
	return 0;
}

int control_open(const char *path, uid_t uid, gid_t gid, struct control **ret)
{
	struct addr a = { .un.sun_family = AF_UNIX };
	const char *hint = "";
	int r;

	snprintf(a.un.sun_path, sizeof(a.un.sun_path), "%s", path);
	a.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(a.un.sun_path) + 1);
	r = control_listen(&a, false, uid, gid, ret);
	if (r == -EADDRINUSE)
		hint = " (another culvert is running; give it its own --control)";
	return r ? log_complain(r, "control socket %s: %s%s", path, strerror(-r), hint) : 0;
}

/* --- requests and answers --- */

struct json_object *control_answer(control_answer_fn *fn, void *arg, const struct request *req,
				   const struct ucred *peer, bool may_change)
{
	struct json_object *answer;

	if (request_changes(req) && !may_change)
		answer = request_error_json(ERROR_PERMISSION,
					    "%s: permission denied: only root and the daemon's own "
					    "account may change anything",
					    req->command->name);
	else
		answer = fn(arg, req);
	if (request_changes(req))
		log_write(LOG_NOTICE, "control: %s: %s (by uid %u, pid %d)",
			  json_object_to_json_string_ext(req->json, JSON_C_TO_STRING_PLAIN),
			  json_object_to_json_string_ext(answer, JSON_C_TO_STRING_PLAIN), peer->uid,
			  peer->pid);
	return answer;
}

/*
 * Make a line of ANSWER, which the caller frees, and release ANSWER.  NULL: there is no memory.
 * Only the text is kept, because the tree of objects is many times as large.
 */
static char *answer_text(struct json_object *answer)
{
	size_t len;
	const char *text = json_line(answer, 0, &len);
	char *copy = NULL;

	if (text && asprintf(&copy, "%s\n", text) < 0)
		copy = NULL;
	json_object_put(answer);
	return copy;
}

/* --- clients --- */

/* Wait for EVENTS of FD.  1: they have come; 0: not by END_MS; -ESHUTDOWN: the threads are to end. */
static int wait_for(const struct control *c, int fd, short events, uint64_t end_ms)
{
	struct pollfd p[] = { { .fd = fd, .events = events }, { .fd = c->stop, .events = POLLIN } };
	uint64_t now_ms = clock_ms();
	int left = end_ms == NEVER ? -1 : end_ms > now_ms ? (int)(end_ms - now_ms) : 0, n;

	do {
		n = poll(p, 2, left);
	} while (n < 0); /* EINTR, or no memory: the threads go on */
	return p[1].revents ? -ESHUTDOWN : n > 0;
}

int control_wait(const struct control *c, int fd, int ms)
{
	return wait_for(c, fd, POLLIN, ms < 0 ? NEVER : clock_ms() + (uint64_t)ms);
}

int control_read(const struct control *c, int fd, const char *end, int ms, char *text, size_t size)
{
	uint64_t end_ms = clock_ms() + (uint64_t)ms;
	char *found = NULL;
	size_t len = 0;
	ssize_t n;

	do {
		if (len == size - 1)
			return -E2BIG;
		if (wait_for(c, fd, POLLIN, end_ms) <= 0)
			return -ETIMEDOUT;
		n = recv(fd, text + len, size - 1 - len, MSG_DONTWAIT);
		if (n < 0)
			return -errno;
		len += (size_t)n;
		found = memmem(text, len, end, strlen(end));
	} while (n && !found);
	*(found ?: text + len) = '\0';
	return 0;
}

int control_send(const struct control *c, int fd, int ms, const char *text, size_t len)
{
	uint64_t end_ms = clock_ms() + (uint64_t)ms;

	do { /* send first: once the threads are to end, wait_for() fails; send(2) can succeed */
		ssize_t n = send(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (n > 0) {
			text += n;
			len -= (size_t)n;
		}
	} while (len && wait_for(c, fd, POLLOUT, end_ms) > 0);
	return len ? -ETIMEDOUT : 0;
}

/* An error that needs no memory. */
static const char no_memory[] = "{\"error\":{\"code\":\"" ERROR_NO_MEMORY "\",\"message\":"
				"\"the daemon has no memory for the answer\"}}\n";

static void serve(struct control *c, int fd, void *arg)
{
	char line[CONTROL_REQUEST_MAX], *text;
	int r = control_read(c, fd, "\n", REQUEST_MS, line, sizeof(line));
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t len = sizeof(peer);
	struct request req = { .given = 0 };
	struct json_object *answer;
	bool done = false;

	answer = r == -E2BIG ? request_error_json(ERROR_TOO_LONG,
						  "the request has to be shorter than 4 KiB") :
		 r ? request_error_json(ERROR_TIMEOUT, "the request was not complete in time") :
		     request_parse(line, &req);
	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	pthread_mutex_lock(&c->answering);
	if (!answer && req.command) { /* no command: there was no memory for the error */
		answer = control_answer(c->answer, arg, &req, &peer,
					peer.uid == 0 || peer.uid == c->uid);
		done = answer && !json_object_object_get(answer, "error");
	}
	text = answer_text(answer);
	pthread_mutex_unlock(&c->answering);
	if (!done || !req.command->in_pieces)
		control_send(c, fd, CONTROL_ANSWER_MS, text ?: no_memory,
			     strlen(text ?: no_memory));
	free(text);
	if (done)
		c->stream(arg, c, &req, fd);
	request_close(&req);
}

/* --- the threads --- */

static void *run(void *arg)
{
	struct control *c = arg;
	int fd; /* the client's; between clients a copy of the listener, closed before accept4(2) */

	pthread_mutex_lock(&c->accepting);
	fd = c->spare[--c->n_spare];
	while (wait_for(c, c->listener, POLLIN, NEVER) > 0) {
		if (fd >= 0)
			close(fd);
		fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		pthread_mutex_unlock(&c->accepting);
		if (fd >= 0) {
			c->serve(c, fd, c->arg);
			dup3(c->listener, fd, O_CLOEXEC); /* closes the client's */
		} else {
			poll(NULL, 0, ACCEPT_PAUSE_MS);
		}
		pthread_mutex_lock(&c->accepting);
	}
	pthread_mutex_unlock(&c->accepting);
	if (fd >= 0)
		close(fd);
	return NULL;
}

int control_serve(struct control *c, control_serve_fn *serve_one, unsigned int streams, void *arg)
{
	unsigned int n = THREADS + streams;
	int r = 0;

	c->threads = allocated(calloc(n, sizeof(*c->threads)));
	c->spare = allocated(calloc(n, sizeof(*c->spare)));

	c->serve = serve_one;
	c->arg = arg;
	/* no client is served before each thread has its descriptor: status counts them */
	pthread_mutex_lock(&c->accepting);
	while (!r && c->n_threads < n) {
		c->spare[c->n_spare++] = fcntl(c->listener, F_DUPFD_CLOEXEC, 0);
		r = -pthread_create(&c->threads[c->n_threads], NULL, run, c);
		c->n_threads += !r;
	}
	pthread_mutex_unlock(&c->accepting);
	return r;
}

int control_start(struct control *c, control_answer_fn *answer, control_stream_fn *stream,
		  unsigned int streams, void *arg)
{
	c->answer = answer;
	c->stream = stream;
	return control_serve(c, serve, streams, arg);
}

int control_listener(const struct control *c)
{
	return c ? c->listener : -1;
}

void control_close(struct control *c, bool stays)
{
	if (!c)
		return;
	if (c->un.sun_path[0] && !stays) /* before another daemon may listen there */
		unlink(c->un.sun_path);
	eventfd_write(c->stop, 1);
	while (c->n_threads)
		pthread_join(c->threads[--c->n_threads], NULL);
	close(c->listener);
	close(c->stop);
	pthread_mutex_destroy(&c->accepting);
	pthread_mutex_destroy(&c->answering);
	free(c->threads);
	free(c->spare);
	free(c);
}
