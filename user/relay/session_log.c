// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the queue is one buffer of text.  A worker formats its line on its own
 * stack and copies it into the buffer under a lock.  The writer exchanges the buffer for an empty
 * one and writes it out without the lock, so nothing that the file does reaches a worker.  A line
 * that does not fit into the buffer is lost.
 *
 * To wake a thread costs more than to end a session.  So a worker signals the writer with the first
 * line of a buffer only, and the writer then waits GATHER_MS for more lines before it exchanges the
 * buffers.
 *
 * A line is in the file whole or not at all.  A regular file that takes a part of a line is cut to
 * the lines that are whole.  A pipe that is ready takes PIPE_BUF bytes at once, and no line is
 * longer.
 */
#include "relay/session_log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/syscalls_allowed.h"
#include "relay/session_view.h"

#define GATHER_MS 100
#define SLICE_MS 100 /* between two looks at whether the daemon ends */
#define LOOK_MS 5    /* ... at whether the writer has ended */
#define LINE_GUESS 640 /* most lines are shorter */
#define QUEUE_LEAST ((size_t)4 << 20)
#define ERROR_LEN 256

SYSCALLS_ALLOWED(
	SYSCALL(write),
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(close),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate64),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)), /* fstat(2) */
	SYSCALL(fstat));

struct session_log {
	char *path;             /* "-": stdout */
	struct account account; /* who writes it */
	size_t size; /* of each buffer */
	pthread_t thread;
	bool started;
	_Atomic uint64_t end_ms; /* the daemon ends: write no longer than this; 0: it runs on */

	/* the writer's own */
	int fd; /* -1: not open */
	char *out;

	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t wake;
	char *queue;
	size_t used;
	bool reopen;
	uint64_t lines, lost, errors;
	char last_error[ERROR_LEN];
};

/* --- a line --- */

#define QUOTED_LEN 600 /* more than the name of a forward can need */

struct line {
	size_t len;
	char text[PIPE_BUF];
};

__attribute__((format(printf, 2, 3)))
static void put(struct line *l, const char *fmt, ...)
{
	size_t room = sizeof(l->text) - l->len;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(l->text + l->len, room, fmt, ap);
	va_end(ap);
	assert(n >= 0 && (size_t)n < room);
	l->len += (size_t)n;
}

/* Write TEXT as a JSON string into BUF.  Control characters become "?".  Return BUF. */
static const char *quote(const char *text, char buf[QUOTED_LEN])
{
	char *to = buf;

	*to++ = '"';
	for (; *text && to < buf + QUOTED_LEN - 4; text++) {
		if (*text == '"' || *text == '\\')
			*to++ = '\\';
		*to++ = (char)((unsigned char)*text < 0x20 ? '?' : *text);
	}
	strcpy(to, "\"");
	return buf;
}

/* The members up to the client.  ID is "null" or a number. */
static void put_head(struct line *l, uint64_t duration_ms, const char *id, const char *forward,
		     const union client_addr *client)
{
	char time[LOG_TIME_LEN], start[LOG_TIME_LEN], name[QUOTED_LEN], text[ADDR_STRLEN];
	uint64_t now = clock_real_ms();

	put(l, "{\"time\":\"%s\",\"start\":\"%s\",\"id\":%s,\"forward\":%s,\"client\":\"%s\"",
	    log_time(now, time), log_time(now - duration_ms, start), id, quote(forward, name),
	    client_addr_text(client, text, sizeof(text)));
}

static void put_flow(struct line *l, const struct flow_view *f, const char *direction)
{
	put(l, "{\"direction\":\"%s\",\"carrier\":\"%s\",\"reason\":\"%s\",\"handovers\":%llu,"
	    "\"copy_bytes\":%llu,\"splice_bytes\":%llu,\"kernel_bytes\":%llu}", direction,
	    carrier_name(f->carrier), reason_name(f->reason), (unsigned long long)f->handovers,
	    (unsigned long long)f->copied, (unsigned long long)f->spliced,
	    (unsigned long long)f->kernel);
}

static uint64_t delivered(const struct flow_view *f)
{
	return f->copied + f->spliced + f->kernel;
}

static void put_ended(struct line *l, const struct session_view *v, unsigned int end)
{
	/* the address that it is connected to; before that, the one that was tried last */
	const struct addr *a = &v->upstream;
	char text[ADDR_STRLEN], quoted[QUOTED_LEN], id[24], connect[24] = "null";

	snprintf(id, sizeof(id), "%llu", (unsigned long long)v->id);
	put_head(l, v->age_ms, id, forward_name(v->forward->conf), &v->client);
	if (v->via.sa.sa_family != AF_UNSPEC)
		put(l, ",\"via\":\"%s\"", client_addr_text(&v->via, text, sizeof(text)));
	if (a->len)
		addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
	if (v->connect_ms)
		snprintf(connect, sizeof(connect), "%llu", (unsigned long long)v->connect_ms - 1);
	put(l, ",\"upstream\":%s,\"end\":\"%s\",\"duration_ms\":%llu,\"connect_ms\":%s,"
	    "\"bytes_to_upstream\":%llu,\"bytes_to_client\":%llu,\"flows\":[",
	    a->len ? quote(text, quoted) : "null",
	    end == SESSION_FINISHED ? "finished" : cause_name(end), (unsigned long long)v->age_ms,
	    connect, (unsigned long long)delivered(&v->flows[CLIENT]),
	    (unsigned long long)delivered(&v->flows[UPSTREAM]));
	if (v->connect_ms) {
		put_flow(l, &v->flows[CLIENT], "client-to-upstream");
		put(l, ",");
		put_flow(l, &v->flows[UPSTREAM], "upstream-to-client");
	}
	put(l, "]}\n");
}

/* --- the queue --- */

/* Queue LINE, or count it as lost. */
static void add(struct session_log *l, const struct line *line)
{
	bool wake = false;

	pthread_mutex_lock(&l->lock);
	if (l->used + line->len > l->size) {
		l->lost++;
	} else {
		wake = !l->used;
		memcpy(l->queue + l->used, line->text, line->len);
		l->used += line->len;
	}
	pthread_mutex_unlock(&l->lock);
	if (wake)
		pthread_cond_signal(&l->wake);
}

/* No byte came, and it was not for want of a server. */
static bool is_empty(const struct session_view *v, unsigned int end)
{
	return !delivered(&v->flows[CLIENT]) && !delivered(&v->flows[UPSTREAM]) &&
	       (v->connect_ms || end == CAUSE_CLIENT_RESET);
}

void session_log_ended(struct session_log *l, const struct session_view *v, bool empty,
		       unsigned int end)
{
	struct line line = { 0 };

	if (!empty && is_empty(v, end))
		return;
	put_ended(&line, v, end);
	add(l, &line);
}

void session_log_refused(struct session_log *l, const char *forward, const struct sockaddr *client,
			 enum cause why)
{
	union client_addr a;
	struct line line;

	if (!l)
		return;
	line.len = 0;
	client_addr_set(&a, client);
	put_head(&line, 0, "null", forward, &a);
	put(&line, ",\"upstream\":null,\"end\":\"%s\",\"duration_ms\":0,\"connect_ms\":null,"
	    "\"bytes_to_upstream\":0,\"bytes_to_client\":0,\"flows\":[]}\n", cause_name(why));
	add(l, &line);
}

void session_log_reopen(struct session_log *l)
{
	pthread_mutex_lock(&l->lock);
	l->reopen = true;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
}

/* The lock is held.  Wait for something to do; then exchange the buffers.  Return bytes in OUT. */
static size_t take(struct session_log *l)
{
	size_t len;
	char *empty = l->out;
	struct timespec until;

	while (!l->used && !l->reopen && !l->end_ms)
		pthread_cond_wait(&l->wake, &l->lock);
	until = clock_timespec(clock_ms() + GATHER_MS);
	while (!l->reopen && !l->end_ms)
		if (pthread_cond_timedwait(&l->wake, &l->lock, &until))
			break;
	len = l->used;
	l->out = l->queue;
	l->queue = empty;
	l->used = 0;
	return len;
}

/* --- the writer --- */

static void note_error(struct session_log *l, const char *what)
{
	pthread_mutex_lock(&l->lock);
	l->errors++;
	snprintf(l->last_error, sizeof(l->last_error), "%s", what);
	pthread_mutex_unlock(&l->lock);
}

/* Open the path; if that fails, the file that is open stays in use. */
static int open_again(struct session_log *l)
{
	char err[ERROR_LEN];
	int fd = log_file_open(l->path, &l->account, err, sizeof(err));

	if (fd < 0) {
		note_error(l, err);
		return fd;
	}
	if (l->fd >= 0)
		close(l->fd);
	l->fd = fd;
	return 0;
}

static void rotate(struct session_log *l)
{
	if (!log_file_is_path(l->path))
		return;
	if (!open_again(l))
		log_info("session log %s: opened anew", l->path);
	else if (l->fd >= 0)
		log_error("session log %s: cannot be opened anew, so the old file is written on: "
			  "%s (then reload, or send SIGUSR1, again)", l->path, l->last_error);
}

/* Write TEXT, which is whole lines of at most PIPE_BUF bytes, or nothing.  Wait for the reader. */
static int write_whole(struct session_log *l, const char *text, size_t len)
{
	struct pollfd p = { .fd = l->fd, .events = POLLOUT };
	struct stat st;
	ssize_t n;

	while (poll(&p, 1, SLICE_MS) <= 0)
		if (l->end_ms && clock_ms() >= l->end_ms)
			return -ETIMEDOUT;
	do
		n = write(l->fd, text, len);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if ((size_t)n == len)
		return 0;
	/* only a regular file on a full disk takes a part; somebody may truncate it meanwhile */
	if (!fstat(l->fd, &st) && st.st_size >= n && ftruncate(l->fd, st.st_size - n))
		log_limited(LOG_WARNING, "session log %s: has a line in part: %m", l->path);
	return -ENOSPC;
}

static uint64_t count_lines(const char *text, const char *end)
{
	uint64_t n = 0;

	for (; (text = memchr(text, '\n', (size_t)(end - text))); text++)
		n++;
	return n;
}

/* Write the LEN bytes in l->out, or count their lines as lost.  After an error the rest is lost. */
static void write_batch(struct session_log *l, size_t len)
{
	const char *at = l->out, *end = l->out + len, *next;
	int r = l->fd < 0 ? open_again(l) : 0;

	for (; !r && at < end; at = r ? at : next) {
		next = end - at <= PIPE_BUF ? end : (char *)memrchr(at, '\n', PIPE_BUF) + 1;
		r = write_whole(l, at, (size_t)(next - at));
		if (r)
			note_error(l, strerror(-r));
	}
	pthread_mutex_lock(&l->lock);
	l->lines += count_lines(l->out, at);
	l->lost += count_lines(at, end);
	pthread_mutex_unlock(&l->lock);
	if (r)
		log_limited(LOG_WARNING, "session log %s: lines are lost: %s", l->path,
			    l->last_error);
}

static void *writer(void *arg)
{
	struct session_log *l = arg;
	bool reopen, last;

	do {
		size_t len;

		pthread_mutex_lock(&l->lock);
		len = take(l);
		reopen = l->reopen;
		last = l->end_ms;
		l->reopen = false;
		pthread_mutex_unlock(&l->lock);
		if (len)
			write_batch(l, len);
		if (reopen)
			rotate(l);
	} while (!last);
	return NULL;
}

/* --- the beginning and the end --- */

/*
 * Open the file for the first time.  A missing reader or a full disk is no reason to serve nobody:
 * the writer tries again with each batch.
 */
static int open_file(struct session_log *l, char *err, size_t errlen)
{
	if (log_file_is_path(l->path))
		l->fd = log_file_open_as(l->path, &l->account, err, errlen);
	else
		l->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
	if (l->fd == -ENXIO || l->fd == -ENOSPC || l->fd == -EDQUOT || l->fd == -EIO) {
		log_warning("session log %s: lines are lost until it can be opened: %s",
			    l->path, err);
		l->fd = -1;
		return 0;
	}
	return l->fd < 0 ? l->fd : 0;
}

static void forget(struct session_log *l)
{
	free(l->queue);
	free(l->out);
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

	l->account = *account;
	l->path = allocated(strdup(path));
	l->size = QUEUE_LEAST + (size_t)sessions * LINE_GUESS;
	pthread_mutex_init(&l->lock, NULL);
	clock_cond_init(&l->wake);
	/* of so much memory only what is ever in use is touched */
	l->queue = allocated(malloc(l->size));
	l->out = allocated(malloc(l->size));
	r = open_file(l, err, errlen);
	if (r)
		forget(l);
	else
		*ret = l;
	return r;
}

int session_log_start(struct session_log *l)
{
	int r = -pthread_create(&l->thread, NULL, writer, l);

	l->started = !r;
	return r;
}

void session_log_close(struct session_log *l)
{
	uint64_t until_ms = clock_ms() + SESSION_LOG_LAST_MS + 500;

	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->end_ms = clock_ms() + SESSION_LOG_LAST_MS;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
	while (l->started && pthread_tryjoin_np(l->thread, NULL)) {
		if (clock_ms() >= until_ms) {
			log_warning("session log %s: the last lines are lost: it cannot be written "
				    "(does the disk answer?)", l->path);
			return;
		}
		poll(NULL, 0, LOOK_MS);
	}
	if (l->lost)
		log_warning("session log %s: %llu lines were lost in all", l->path,
			    (unsigned long long)l->lost);
	forget(l);
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
