// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a worker makes its line and appends it to a queue, under a lock.  The writer
 * takes all of the queue and writes it out without the lock, so nothing that the file does reaches
 * a worker.  A line for which the queue has no room, or that is not written, is lost.
 *
 * To wake a thread costs more than to end a session.  So a worker signals the writer with the first
 * line of a queue only, and the writer then waits GATHER_MS for more lines before it takes them.
 *
 * A line is in the file whole or not at all.  A regular file that takes a part of a line is cut to
 * the lines that are whole.  A pipe that is ready takes PIPE_BUF bytes at once, and a line is
 * shorter.
 */
#include "relay/session_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "relay/session_json.h"

#define GATHER_MS 100
#define SLICE_MS 100     /* after which the writer looks again whether the daemon ends */
#define LOOK_MS 5        /* after which the daemon looks again whether the writer has ended */
#define QUEUE_LEAST 8192 /* lines */
#define ERROR_LEN 256

SYSCALLS_ALLOWED(
	SYSCALL(write), SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(close), SYSCALL_IF(PART_SESSION_LOG, ftruncate),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate64),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)), /* fstat(2) */
	SYSCALL(fstat),
	/* O_PATH for the directory, O_APPEND for the file */
	SYSCALL_IF(PART_SESSION_LOG, openat, SYSCALL_ARG_BITS(2, O_PATH, O_PATH)),
	SYSCALL_IF(PART_SESSION_LOG, openat,
		   SYSCALL_ARG_BITS(2, O_PATH | O_ACCMODE | O_APPEND | O_NOFOLLOW | O_TRUNC |
				    O_DIRECTORY, O_WRONLY | O_APPEND | O_NOFOLLOW)));

struct line {
	STAILQ_ENTRY(line) in_queue;
	size_t len;
	char text[];
};

struct session_log {
	char *path;             /* "-": stdout */
	struct account account; /* who writes it */
	pthread_t thread;
	bool started;
	_Atomic uint64_t end_ms; /* the daemon ends: when to stop writing; 0: it runs on */
	int fd;                  /* the writer's own; negative: not open */

	pthread_mutex_t lock; /* of the fields below */
	pthread_cond_t wake;
	STAILQ_HEAD(line_queue, line) queue;
	unsigned int queued, room; /* lines */
	bool reopen;
	/* why the last reopening failed; the next lines try it again.  "": it did not fail */
	char not_reopened[ERROR_LEN];
	uint64_t lines, lost, errors;
	char last_error[ERROR_LEN];
};

/* --- the queue --- */

/* Queue TEXT, or count it as lost; NULL: there was no memory for it. */
static void session_log_queue(struct session_log *l, const char *text, size_t len)
{
	struct line *line = text ? malloc(sizeof(*line) + len + 1) : NULL;
	bool wake, room;

	if (line) {
		*line = (struct line){ .len = len + 1 };
		memcpy(line->text, text, len);
		line->text[len] = '\n';
	}
	pthread_mutex_lock(&l->lock);
	room = line && l->queued < l->room;
	wake = room && STAILQ_EMPTY(&l->queue);
	if (room) {
		STAILQ_INSERT_TAIL(&l->queue, line, in_queue);
		l->queued++;
	} else {
		l->lost++;
	}
	pthread_mutex_unlock(&l->lock);
	if (!room)
		free(line);
	if (wake)
		pthread_cond_signal(&l->wake);
}

void session_log_ended(struct session_log *l, const struct session_view *v, unsigned int end)
{
	struct json_object *o = session_ended_json(v, end);
	size_t len;
	const char *text = json_line(o, JSON_C_TO_STRING_NOSLASHESCAPE, &len);

	session_log_queue(l, text, len);
	json_object_put(o);
}

void session_ended(struct worker *w, const struct session_view *v, unsigned int end)
{
	const struct shared *shared = w->shared;
	struct forward_stats *fs = forward_stats(v->forward, w->index);
	bool moved = end >= SESSION_MOVED;
	/*
	 * A session without a byte is empty if it was connected, has finished, or was reset by its
	 * client.  A session that has found no server is not empty.
	 */
	bool empty = !moved && !flow_view_bytes(&v->flows[CLIENT]) &&
		     !flow_view_bytes(&v->flows[UPSTREAM]) &&
		     (v->connect_ms || end == CAUSE_CLIENT_RESET || end == SESSION_FINISHED);

	log_debug("session %llu: %s%s", (unsigned long long)v->id, end < CAUSES ? "reset: " : "",
		  session_end_name(end));
	if (shared->session_log && end != SESSION_LEFT &&
	    (!empty || shared->config->session_log_empty))
		session_log_ended(shared->session_log, v, end);
	if (end < CAUSES)
		count_add(&w->stats.errors[end], 1);
	count_add(moved ? &fs->moved : &fs->finished, 1);
	if (!moved)
		histogram_add(&fs->durations, v->age_ms * 1000);
}

void session_log_refused(struct session_log *l, const struct forward *f,
			 const union client_addr *client, enum cause why)
{
	struct session_view v = { .forward = f, .client = *client };

	if (l)
		session_log_ended(l, &v, why);
}

void session_log_reopen(struct session_log *l)
{
	pthread_mutex_lock(&l->lock);
	l->reopen = true;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
}

void session_log_not_reopened(struct session_log *l, char *err, size_t errlen)
{
	pthread_mutex_lock(&l->lock);
	snprintf(err, errlen, "%s", l->not_reopened);
	pthread_mutex_unlock(&l->lock);
}

/* --- the writer --- */

static void session_log_note_error(struct session_log *l, const char *what)
{
	pthread_mutex_lock(&l->lock);
	l->errors++;
	snprintf(l->last_error, sizeof(l->last_error), "%s", what);
	pthread_mutex_unlock(&l->lock);
}

/* Open the file anew.  AGAIN: after a failure, which was logged. */
static void session_log_rotate(struct session_log *l, bool again)
{
	char err[ERROR_LEN] = "";
	int fd;

	if (!log_file_is_path(l->path))
		return;
	fd = log_file_open(l->path, &l->account, err, sizeof(err));
	pthread_mutex_lock(&l->lock);
	snprintf(l->not_reopened, sizeof(l->not_reopened), "%s", fd < 0 ? err : "");
	pthread_mutex_unlock(&l->lock);
	if (fd < 0 && again)
		return;
	if (fd < 0) {
		session_log_note_error(l, err);
		log_error("session log %s: cannot be opened anew: %s (lines go to the old "
			  "file until it can)",
			  l->path, err);
		return;
	}
	if (l->fd >= 0)
		close(l->fd);
	l->fd = fd;
	log_info("session log %s: opened anew", l->path);
}

/* Write LINE, or nothing of it.  Wait for the reader.  -errno. */
static int session_log_write_whole(struct session_log *l, const struct line *line)
{
	struct pollfd p = { .fd = l->fd, .events = POLLOUT };
	struct stat st;
	ssize_t n;

	do {
		if (l->end_ms && clock_ms() >= l->end_ms)
			return -ETIMEDOUT;
	} while (poll(&p, 1, SLICE_MS) <= 0);
	n = TEMP_FAILURE_RETRY(write(l->fd, line->text, line->len));
	if (n < 0)
		return -errno;
	if ((size_t)n == line->len)
		return 0;
	/* only a regular file on a full disk takes a part; somebody may truncate it meanwhile */
	if (!fstat(l->fd, &st) && st.st_size >= n && ftruncate(l->fd, st.st_size - n))
		log_limited(LOG_WARNING,
			    "session log %s: a part of a line could not be cut off: %m", l->path);
	return -ENOSPC;
}

/* Write LINE, or count it as lost. */
static void session_log_write_line(struct session_log *l, const struct line *line)
{
	char err[ERROR_LEN];
	int r;

	if (l->fd < 0)
		l->fd = log_file_open(l->path, &l->account, err, sizeof(err));
	r = l->fd < 0 ? l->fd : session_log_write_whole(l, line);
	if (r) {
		if (l->fd >= 0)
			snprintf(err, sizeof(err), "%s", strerror(-r));
		session_log_note_error(l, err);
		log_limited(LOG_WARNING, "session log %s: lines are lost: %s", l->path, err);
	}
	pthread_mutex_lock(&l->lock);
	l->lines += !r;
	l->lost += !!r;
	pthread_mutex_unlock(&l->lock);
}

static void *session_log_writer(void *arg)
{
	struct session_log *l = arg;
	struct timespec until;
	struct line_queue lines;
	bool reopen, again, last;

	do {
		pthread_mutex_lock(&l->lock);
		while (STAILQ_EMPTY(&l->queue) && !l->reopen && !l->end_ms)
			pthread_cond_wait(&l->wake, &l->lock);
		until = clock_timespec(clock_ms() + GATHER_MS);
		if (!l->reopen && !l->end_ms)
			pthread_cond_clockwait(&l->wake, &l->lock, CLOCK_MONOTONIC, &until);
		STAILQ_INIT(&lines);
		STAILQ_CONCAT(&lines, &l->queue);
		l->queued = 0;
		reopen = l->reopen;
		l->reopen = false;
		again = !STAILQ_EMPTY(&lines) && l->not_reopened[0];
		last = l->end_ms;
		pthread_mutex_unlock(&l->lock);
		if (again)
			session_log_rotate(l, true);
		while (!STAILQ_EMPTY(&lines)) {
			struct line *line = STAILQ_FIRST(&lines);

			STAILQ_REMOVE_HEAD(&lines, in_queue);
			session_log_write_line(l, line);
			free(line);
		}
		if (reopen)
			session_log_rotate(l, false);
	} while (!last);
	return NULL;
}

/* --- the beginning and the end --- */

static void session_log_free(struct session_log *l)
{
	if (l->fd >= 0)
		close(l->fd);
	free(l->path);
	free(l);
}

int session_log_open(const char *path, const struct account *account, unsigned int sessions,
		     struct session_log **ret, char *err, size_t errlen)
{
	struct session_log *l = allocated(calloc(1, sizeof(*l)));
	int r;

	*l = (struct session_log){
		.path = allocated(strdup(path)),
		.account = *account,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.room = QUEUE_LEAST + sessions,
	};
	STAILQ_INIT(&l->queue);
	pthread_cond_init(&l->wake, NULL);
	r = l->fd = log_file_is_path(path) ? log_file_open(path, account, err, errlen) :
					     fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
	/*
	 * A missing reader or a full disk is no reason to serve nobody: the writer opens the file
	 * with the next line.
	 */
	if (r < 0 && r != -ENXIO && r != -ENOSPC && r != -EDQUOT && r != -EIO) {
		session_log_free(l);
		return r;
	}
	if (r < 0)
		log_warning("session log %s: lines are lost until it can be opened: %s", path, err);
	*ret = l;
	return 0;
}

int session_log_start(struct session_log *l)
{
	int r = -pthread_create(&l->thread, NULL, session_log_writer, l);

	l->started = !r;
	return r;
}

void session_log_close(struct session_log *l)
{
	uint64_t end_ms = clock_ms() + SESSION_LOG_LAST_MS;

	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->end_ms = end_ms;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
	while (l->started && pthread_tryjoin_np(l->thread, NULL)) {
		if (clock_ms() >= end_ms + 500) {
			log_warning("session log %s: the last lines are lost: it cannot be written "
				    "(does the disk answer?)",
				    l->path);
			return;
		}
		poll(NULL, 0, LOOK_MS);
	}
	if (l->lost)
		log_warning("session log %s: %llu lines were lost in all", l->path,
			    (unsigned long long)l->lost);
	session_log_free(l);
}

struct json_object *session_log_json(struct session_log *l)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "path", l->path);
	pthread_mutex_lock(&l->lock);
	json_add_int(o, "lines", l->lines);
	json_add_int(o, "lost", l->lost);
	json_add_int(o, "errors", l->errors);
	json_add_text(o, "last_error", l->last_error);
	pthread_mutex_unlock(&l->lock);
	return o;
}

/* --- the file --- */

#define FILE_MODE 0640
#define DIRECTORY_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define FILE_FLAGS (O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* Explain -ERROR in ERR.  Return it. */
static int log_file_fail(int error, char *err, size_t errlen)
{
	snprintf(err, errlen, "%s%s", strerror(error), error_hint(HINT_LOG_FILE, error));
	return -error;
}

/*
 * Refuse FD, called WHAT, if it is not open, or is no directory, file, FIFO or character device.
 * Refuse FD, too, if its owner is neither root nor A, or if everybody can write to it, unless it is
 * a sticky directory.
 */
static int log_file_check(int fd, const char *what, const struct account *a, char *err,
			  size_t errlen)
{
	struct stat st;
	bool others;

	if (fd < 0 || fstat(fd, &st))
		return log_file_fail(errno, err, errlen);
	if (S_ISCHR(st.st_mode))
		return 0;
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return log_file_fail(EINVAL, err, errlen);
	others = st.st_mode & S_IWOTH && !(S_ISDIR(st.st_mode) && st.st_mode & S_ISVTX);
	if ((st.st_uid == 0 || st.st_uid == a->uid) && !others)
		return 0;
	snprintf(err, errlen,
		 "%s has uid %u and mode %04o: its owner must be root or %s, and others must "
		 "not be able to write to it",
		 what, (unsigned int)st.st_uid, (unsigned int)st.st_mode & 07777, a->name);
	return -EPERM;
}

int log_file_open(const char *path, const struct account *a, char *err, size_t errlen)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char directory[PATH_MAX] = ".";
	int dir, fd = -1, r;
	bool made = false;
	struct stat st;

	if (name - path >= PATH_MAX)
		return log_file_fail(ENAMETOOLONG, err, errlen);
	if (slash)
		snprintf(directory, sizeof(directory), "%.*s", (int)(name - path), path);
	dir = open(directory, DIRECTORY_FLAGS);
	r = log_file_check(dir, directory, a, err, errlen);
	if (!r) {
		fd = openat(dir, name, FILE_FLAGS | O_EXCL, FILE_MODE);
		made = fd >= 0;
		/* not with O_CREAT: fs.protected_regular forbids that in sticky directories */
		if (fd < 0 && errno == EEXIST)
			fd = openat(dir, name, FILE_FLAGS & ~O_CREAT);
		r = log_file_check(fd, "it", a, err, errlen);
	}
	if (!r && made && !fstat(fd, &st) && st.st_uid != a->uid && fchown(fd, a->uid, a->gid))
		r = log_file_fail(errno, err, errlen);
	if (dir >= 0)
		close(dir);
	if (r && fd >= 0)
		close(fd);
	return r ?: fd;
}
