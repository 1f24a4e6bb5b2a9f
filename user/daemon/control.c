// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one thread serves several clients with poll(2), so that one that is slow,
 * silent or deaf delays nobody else.  Each has a deadline for its request and one for taking the
 * answer.  Few answers wait to be taken: with thousands of sessions they are megabytes.
 *
 * Places and answers are shared out by what a client may do, and no rank can use those of another:
 * so whoever may only watch cannot keep out those who may change something, however it behaves.
 * Who that is shows only after accept(2), so everybody is accepted as long as there is a place for
 * a master, and sent away if its own rank has none left.  For the same reason one answer is made at
 * a time, and then it is looked who else has come.  Masters come first; else who came first.
 *
 * When sessions have taken all descriptors, which is when `culvert status` is wanted most, spare
 * ones are left for a client at a time, the last of them for a master.
 */
#include "daemon/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/new_thread.h"
#include "base/syscalls_needed.h"
#include "daemon/control_client.h"

#define BACKLOG 16
#define ACCEPT_PAUSE_MS 100 /* no descriptor, no memory: clients wait in the backlog */

SYSCALLS_NEEDED(
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(accept4),
	SYSCALL(read), /* the eventfd */
	SYSCALL(write),
	SYSCALL(close),
	/* lstat(2) and unlink(2) at the end */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_SYMLINK_NOFOLLOW)),
	SYSCALL(lstat),
	SYSCALL(unlink),
	SYSCALL(unlinkat));

/* What a client may do. */
enum rank {
	STRANGERS, /* nothing: they are told so */
	WATCHERS,  /* ask */
	MASTERS,   /* change something */
	RANKS,
};

/*
 * At most so many clients of a rank at a time, and so many of them that take their answers; and the
 * spare descriptors that must be left when one has come.
 */
struct share {
	unsigned int places, answers, spares;
};

#define CLIENTS_MAX (4 + 24 + 8)

static const struct share shares[RANKS] = {
	[STRANGERS] = { 4, 4, CONTROL_SPARES }, /* a short answer, which does not wait */
	[WATCHERS] = { 24, 4, 1 },
	[MASTERS] = { 8, 2, 0 },
};

struct control {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int fd;
	int wake; /* eventfd */
	_Atomic bool stop;
	_Atomic uint64_t turns;
	struct control_spare spare;
	bool bound, started;
	dev_t dev; /* of the socket's file, */
	ino_t ino; /* so that a newer daemon's is not removed */
	pthread_t thread;
	control_answer_fn *answer;
	void *arg;
	uid_t uid; /* who may ask */
	gid_t gid;
	uint64_t accept_ms; /* not before */
	uint64_t accepted; /* clients, ever */
	uint64_t arrived[CLIENTS_MAX]; /* ACCEPTED when that client came */
	struct control_client clients[CLIENTS_MAX];
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
	control_spare_init(&c->spare, c->wake);
	control_spare_have(&c->spare);
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

/* --- serving --- */

static enum rank rank_of(const struct control_peer *peer)
{
	if (peer->may_change)
		return MASTERS;
	return peer->may_ask ? WATCHERS : STRANGERS;
}

/* How many clients of RANK are in STATE. */
static unsigned int count(const struct control *c, enum rank rank, enum control_client_state state)
{
	unsigned int n = 0;

	for (size_t i = 0; i < CLIENTS_MAX; i++)
		n += c->clients[i].state == state && rank_of(&c->clients[i].peer) == rank;
	return n;
}

static bool has_place(const struct control *c, enum rank rank)
{
	return count(c, rank, CLIENT_READING) + count(c, rank, CLIENT_ASKING) +
	       count(c, rank, CLIENT_WRITING) < shares[rank].places;
}

static bool may_answer(const struct control *c, enum rank rank)
{
	return count(c, rank, CLIENT_WRITING) < shares[rank].answers;
}

/* Somebody waits for what clients of RANK have: to be answered, or for a descriptor. */
static bool somebody_waits(const struct control *c, enum rank rank)
{
	return (count(c, rank, CLIENT_ASKING) && !may_answer(c, rank)) ||
	       c->accept_ms > clock_ms();
}

/* When client I is late; NEVER: it waits for this thread. */
static uint64_t deadline(const struct control *c, size_t i)
{
	const struct control_client *client = &c->clients[i];

	if (!control_client_events(client))
		return NEVER;
	if (client->state == CLIENT_WRITING && somebody_waits(c, rank_of(&client->peer)))
		return client->until_ms - (CONTROL_ANSWER_MS - CONTROL_TURN_MS);
	return client->until_ms;
}

/* Accept, with a spare descriptor if there is no other. */
static int accept_fd(struct control *c)
{
	int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0 || (errno != EMFILE && errno != ENFILE) || !control_spare_spend(&c->spare))
		return fd;
	return accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* False: there was nobody, or could not be. */
static bool accept_client(struct control *c)
{
	int fd = accept_fd(c);
	struct control_peer peer;
	enum rank rank;
	size_t i = 0;

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			c->accept_ms = clock_ms() + ACCEPT_PAUSE_MS;
		control_spare_have(&c->spare);
		return false;
	}
	peer = control_peer_of(fd, c->uid, c->gid);
	rank = rank_of(&peer);
	if (!has_place(c, rank) || control_spare_left(&c->spare) < shares[rank].spares) {
		control_client_refuse(fd, &c->spare);
		return true;
	}
	while (c->clients[i].state != CLIENT_FREE)
		i++;
	c->arrived[i] = ++c->accepted;
	control_client_begin(&c->clients[i], fd, &c->spare, &peer, clock_ms());
	return true;
}

/*
 * All that wait, since the last one may be a master; but not for ever.  Without a look, accept(2)
 * would say that there is no descriptor where there is nobody.
 */
static void accept_clients(struct control *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };

	for (int i = 0; i <= BACKLOG && has_place(c, MASTERS); i++)
		if (poll(&p, 1, 0) <= 0 || !accept_client(c))
			return;
}

/* Whose turn it is to be answered, or NULL. */
static struct control_client *next_asking(struct control *c, enum rank rank)
{
	uint64_t first = NEVER;
	size_t found = 0;

	if (!may_answer(c, rank))
		return NULL;
	for (size_t i = 0; i < CLIENTS_MAX; i++) {
		if (c->clients[i].state == CLIENT_ASKING && c->arrived[i] < first &&
		    rank_of(&c->clients[i].peer) == rank) {
			first = c->arrived[i];
			found = i;
		}
	}
	return first == NEVER ? NULL : &c->clients[found];
}

/* False: there is none that could be. */
static bool answer_one(struct control *c)
{
	struct control_client *client = NULL;

	for (int rank = RANKS - 1; rank >= 0 && !client; rank--)
		client = next_asking(c, (enum rank)rank);
	if (client)
		control_client_answer(client, c->answer, c->arg, clock_ms());
	return client;
}

/* Those whose time is up; first, so that others have their turn instead of them. */
static void drop_late(struct control *c)
{
	uint64_t now = clock_ms();
	bool late[CLIENTS_MAX];

	for (size_t i = 0; i < CLIENTS_MAX; i++)
		late[i] = deadline(c, i) <= now;
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (late[i])
			control_client_late(&c->clients[i]);
}

/* How long poll(2) may wait, or -1. */
static int next_deadline(struct control *c, bool accepting)
{
	uint64_t now = clock_ms(), first = NEVER;

	for (size_t i = 0; i < CLIENTS_MAX; i++) {
		uint64_t at = deadline(c, i);

		first = at < first ? at : first;
	}
	if (!accepting && c->accept_ms < first)
		first = c->accept_ms;
	if (first == NEVER)
		return -1;
	return first > now ? (int)(first - now) : 0; /* some may be late by now */
}

enum { POLL_WAKE, POLL_LISTENER, POLL_CLIENTS };

/* False: to stop. */
static bool serve_once(struct control *c)
{
	bool accepting = c->accept_ms <= clock_ms();
	struct pollfd p[POLL_CLIENTS + CLIENTS_MAX];
	uint64_t n;
	int timeout;

	drop_late(c);
	timeout = answer_one(c) ? 0 : next_deadline(c, accepting);
	p[POLL_WAKE] = (struct pollfd){ .fd = c->wake, .events = POLLIN };
	p[POLL_LISTENER] = (struct pollfd){ .fd = -1, .events = POLLIN };
	if (accepting && has_place(c, MASTERS))
		p[POLL_LISTENER].fd = c->fd;
	for (size_t i = 0; i < CLIENTS_MAX; i++) {
		short events = control_client_events(&c->clients[i]);

		p[POLL_CLIENTS + i] = (struct pollfd){ .fd = events ? c->clients[i].fd : -1,
						       .events = events };
	}
	if (poll(p, POLL_CLIENTS + CLIENTS_MAX, timeout) < 0)
		return true;
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (p[POLL_CLIENTS + i].revents)
			control_client_step(&c->clients[i]);
	if (p[POLL_LISTENER].revents)
		accept_clients(c);
	if (p[POLL_WAKE].revents)
		(void)!read(c->wake, &n, sizeof(n));
	atomic_store_explicit(&c->turns, c->turns + 1, memory_order_relaxed);
	return !c->stop;
}

static void *run(void *arg)
{
	struct control *c = arg;

	while (serve_once(c))
		;
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		control_client_drop(&c->clients[i]);
	return NULL;
}

int control_start(struct control *c, control_answer_fn *answer, void *arg)
{
	int r;

	c->answer = answer;
	c->arg = arg;
	r = new_thread(&c->thread, run, c);
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
	control_spare_free(&c->spare);
	if (!lstat(c->path, &st) && st.st_dev == c->dev && st.st_ino == c->ino)
		unlink(c->path);
	free(c);
}
