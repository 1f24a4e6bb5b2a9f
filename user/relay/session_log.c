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
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/syscalls_needed.h"
#include "base/utf8.h"
#include "relay/session.h"

#define GATHER_MS 100
#define SLICE_MS 100 /* between two looks at whether the daemon ends */
#define LINE_GUESS 640 /* most lines are shorter */
#define QUEUE_LEAST (512 << 10)
#define QUEUE_MOST (64 << 20)
#define NAME_BYTES 288 /* of a forward, at most */
#define ERROR_LEN 256

SYSCALLS_NEEDED(
	SYSCALL(write),
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(close),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate64),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)), /* fstat(2) */
	SYSCALL(fstat));

struct session_log {
	struct session_log_conf conf;
	char *path;
	size_t size; /* of each buffer */
	pthread_t thread;
	bool started;

	/* the writer's own */
	int fd; /* -1: not open */
	char *out;
	uint64_t lost_said; /* of `lost`, what the daemon's log has said */

	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t wake;
	char *queue;
	size_t used;
	bool reopen;
	bool last;       /* the daemon ends; */
	uint64_t end_ms; /* ... write no longer than this */
	uint64_t lines, lost, errors;
	char last_error[ERROR_LEN];
};

/* --- a line --- */

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

/* Put TEXT as a JSON string.  A byte that is not UTF-8 becomes "?". */
static void put_string(struct line *l, const char *text)
{
	const char *end = text + strnlen(text, NAME_BYTES);

	put(l, "\"");
	while (text < end) {
		size_t n = utf8_length(text);
		unsigned char c = (unsigned char)*text;

		if (!n)
			put(l, "?");
		else if (c < 0x20 || c == 0x7f)
			put(l, "\\u%04x", c);
		else
			put(l, "%s%.*s", c == '"' || c == '\\' ? "\\" : "", (int)n, text);
		text += n ?: 1;
	}
	put(l, "\"");
}

/* RFC 3339, in UTC. */
static void put_time(struct line *l, const char *key, uint64_t real_ms)
{
	time_t t = (time_t)(real_ms / 1000);
	struct tm tm;

	gmtime_r(&t, &tm);
	put(l, "\"%s\":\"%04d-%02d-%02dT%02d:%02d:%02d.%03uZ\",", key, tm.tm_year + 1900,
	    tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
	    (unsigned int)(real_ms % 1000));
}

/* The members up to the client.  ID is "null" or a number. */
static void put_head(struct line *l, uint64_t duration_ms, const char *id, const char *forward,
		     const union client_addr *client)
{
	uint64_t now = clock_real_ms();
	char text[ADDR_STRLEN];

	put(l, "{");
	put_time(l, "time", now);
	put_time(l, "start", now - duration_ms);
	put(l, "\"id\":%s,\"forward\":", id);
	put_string(l, forward);
	put(l, ",\"client\":\"%s\"", client_addr_text(client, text, sizeof(text)));
}

/*
 * Bytes that wait in the pipe of splice are lost with it.  All other bytes that user space has
 * written were copied, be it after the program had passed them on.
 */
static uint64_t spliced_bytes(const struct flow *f)
{
	return f->spliced - (f->pipe ? f->pending : 0);
}

static void put_flow(struct line *l, const struct flow *f, const char *direction, uint64_t kernel)
{
	put(l, "{\"direction\":\"%s\",\"carrier\":\"%s\",\"reason\":\"%s\",\"handovers\":%llu,"
	    "\"copy_bytes\":%llu,\"splice_bytes\":%llu,\"kernel_bytes\":%llu}", direction,
	    carrier_name(flow_carrier(f)), reason_name(f->reason), (unsigned long long)f->handovers,
	    (unsigned long long)(f->user_out - spliced_bytes(f)),
	    (unsigned long long)spliced_bytes(f), (unsigned long long)kernel);
}

static void put_ended(struct line *l, const struct session *s, const uint64_t kernel[2],
		      unsigned int end)
{
	uint64_t now = s->worker->loop.now_ms, duration = now - s->born_ms;
	/* the address that it is connected to; before that, the one that was tried last */
	const struct addr *a = s->addrs ? &s->addrs->addrs[s->upstream] : NULL;
	char id[24], text[ADDR_STRLEN];

	snprintf(id, sizeof(id), "%llu", (unsigned long long)s->id);
	put_head(l, duration, id, forward_name(forward_of(s)), &s->client);
	if (session_via(s))
		put(l, ",\"via\":\"%s\"", client_addr_text(session_via(s), text, sizeof(text)));
	put(l, ",\"upstream\":");
	if (a)
		put_string(l, addr_format((const struct sockaddr *)&a->ss, a->len, text,
					  sizeof(text)));
	else
		put(l, "null");
	put(l, ",\"end\":\"%s\",\"duration_ms\":%llu,\"connect_ms\":",
	    end == SESSION_FINISHED ? "finished" : cause_name(end), (unsigned long long)duration);
	if (s->connected_ms)
		put(l, "%llu", (unsigned long long)(s->connected_ms - s->born_ms));
	else
		put(l, "null");
	put(l, ",\"bytes_to_upstream\":%llu,\"bytes_to_client\":%llu,\"flows\":[",
	    (unsigned long long)(s->flows[CLIENT].user_out + kernel[CLIENT]),
	    (unsigned long long)(s->flows[UPSTREAM].user_out + kernel[UPSTREAM]));
	if (s->connected_ms) {
		put_flow(l, &s->flows[CLIENT], "client-to-upstream", kernel[CLIENT]);
		put(l, ",");
		put_flow(l, &s->flows[UPSTREAM], "upstream-to-client", kernel[UPSTREAM]);
	}
	put(l, "]}\n");
}

static void put_refused(struct line *l, const char *forward, const struct sockaddr *client,
			enum cause why)
{
	union client_addr a;

	client_addr_set(&a, client);
	put_head(l, 0, "null", forward, &a);
	put(l, ",\"upstream\":null,\"end\":\"%s\",\"duration_ms\":0,\"connect_ms\":null,"
	    "\"bytes_to_upstream\":0,\"bytes_to_client\":0,\"flows\":[]}\n", cause_name(why));
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
		wake = !l->used || (l->used < l->size / 2 && l->used + line->len >= l->size / 2);
		memcpy(l->queue + l->used, line->text, line->len);
		l->used += line->len;
	}
	pthread_mutex_unlock(&l->lock);
	if (wake)
		pthread_cond_signal(&l->wake);
}

void session_log_ended(struct session_log *l, const struct session *s, const uint64_t kernel[2],
		       unsigned int end)
{
	struct line line;

	if (!l)
		return;
	line.len = 0;
	put_ended(&line, s, kernel, end);
	add(l, &line);
}

void session_log_refused(struct session_log *l, const char *forward, const struct sockaddr *client,
			 enum cause why)
{
	struct line line;

	if (!l)
		return;
	line.len = 0;
	put_refused(&line, forward, client, why);
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
	char *empty = l->out;
	struct timespec until;
	size_t len;

	while (!l->used && !l->reopen && !l->last)
		pthread_cond_wait(&l->wake, &l->lock);
	until = clock_timespec(clock_ms() + GATHER_MS);
	while (l->used < l->size / 2 && !l->reopen && !l->last)
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
	int fd = log_file_open(l->path, &l->conf.account, err, sizeof(err));

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
			  "%s (then send SIGUSR1 again)", l->path, l->last_error);
}

/* Wait until the file takes PIPE_BUF bytes.  -EAGAIN: the daemon ends meanwhile. */
static int wait_ready(struct session_log *l)
{
	struct pollfd p = { .fd = l->fd, .events = POLLOUT };

	for (;;) {
		bool over;
		int n;

		pthread_mutex_lock(&l->lock);
		over = l->last && clock_ms() >= l->end_ms;
		pthread_mutex_unlock(&l->lock);
		if (over)
			return -EAGAIN;
		n = poll(&p, 1, SLICE_MS);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

/* The bytes of whole lines among the first LEN of TEXT. */
static size_t whole_lines(const char *text, size_t len)
{
	const char *end = len ? memrchr(text, '\n', len) : NULL;

	return end ? (size_t)(end - text) + 1 : 0;
}

/*
 * Write the LEN bytes of lines in l->out, and wait for the disk or the reader.  *RET_DONE: bytes of
 * whole lines that were written.  -errno if those are not all.
 */
static int write_lines(struct session_log *l, size_t len, size_t *ret_done)
{
	size_t done = 0;
	struct stat st;
	int r = 0;

	while (!r && done < len) {
		size_t rest = len - done;
		ssize_t n;

		r = wait_ready(l);
		if (r)
			break;
		n = write(l->fd, l->out + done,
			  rest <= PIPE_BUF ? rest : whole_lines(l->out + done, PIPE_BUF));
		if (n > 0)
			done += (size_t)n;
		else if (!n)
			r = -EIO;
		else if (errno == EAGAIN) /* although poll(2) has called it ready */
			poll(NULL, 0, SLICE_MS);
		else if (errno != EINTR)
			r = -errno;
	}
	*ret_done = whole_lines(l->out, done);
	done -= *ret_done;
	/* st_size is 0 of what is no regular file, or if somebody truncates it meanwhile */
	if (done && !fstat(l->fd, &st) && st.st_size >= (off_t)done &&
	    ftruncate(l->fd, st.st_size - (off_t)done))
		log_limited(LOG_WARNING, "session log %s: has a line in part: %m", l->path);
	return r;
}

static unsigned int count_lines(const char *text, size_t len)
{
	const char *end = text + len;
	unsigned int n = 0;

	for (; (text = memchr(text, '\n', (size_t)(end - text))); text++)
		n++;
	return n;
}

static void write_batch(struct session_log *l, size_t len)
{
	uint64_t all = count_lines(l->out, len), written, lost;
	size_t done = 0;
	int r = l->fd < 0 ? open_again(l) : 0;

	if (!r) {
		r = write_lines(l, len, &done);
		if (r)
			note_error(l, r == -EAGAIN ? "its reader does not read" : strerror(-r));
	}
	written = count_lines(l->out, done);
	pthread_mutex_lock(&l->lock);
	l->lines += written;
	l->lost += all - written;
	lost = l->lost;
	pthread_mutex_unlock(&l->lock);
	if (lost > l->lost_said)
		log_limited(LOG_WARNING, "session log %s: lines are lost, %llu so far: %s", l->path,
			    (unsigned long long)lost,
			    r ? l->last_error : "is the disk, or the reader, slow?");
	l->lost_said = lost;
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
		last = l->last;
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
	char why[ERROR_LEN] = "cannot be duplicated";
	int r = 0;

	if (log_file_is_path(l->path))
		l->fd = log_file_open_as(l->path, &l->conf.account, why, sizeof(why));
	else
		l->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
	if (l->fd >= 0)
		return 0;
	if (l->fd == -ENXIO || l->fd == -ENOSPC || l->fd == -EDQUOT || l->fd == -EIO) {
		log_warning("session log %s: lines are lost until it can be opened: %s", l->path,
			    why);
	} else {
		snprintf(err, errlen, "session log %s: %s", l->path, why);
		r = l->fd;
	}
	l->fd = -1;
	return r;
}

/* Map a buffer.  Unlike with malloc(), only as much of it is touched as is ever in use. */
static char *map_buffer(size_t size)
{
	/* cppcheck-suppress invalidFunctionArg ; no file */
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* cppcheck-suppress memleak ; it is returned */
	return p == MAP_FAILED ? NULL : p;
}

static void forget(struct session_log *l)
{
	if (l->queue)
		munmap(l->queue, l->size);
	if (l->out)
		munmap(l->out, l->size);
	pthread_cond_destroy(&l->wake);
	pthread_mutex_destroy(&l->lock);
	if (l->fd >= 0)
		close(l->fd);
	free(l->path);
	free(l);
}

int session_log_open(const struct session_log_conf *conf, struct session_log **ret, char *err,
		     size_t errlen)
{
	struct session_log *l = calloc(1, sizeof(*l));
	int r = -ENOMEM;

	snprintf(err, errlen, "session log: out of memory");
	if (!l)
		return r;
	l->fd = -1;
	l->conf = *conf;
	l->size = (size_t)conf->sessions * LINE_GUESS;
	if (l->size < QUEUE_LEAST)
		l->size = QUEUE_LEAST;
	if (l->size > QUEUE_MOST)
		l->size = QUEUE_MOST;
	pthread_mutex_init(&l->lock, NULL);
	clock_cond_init(&l->wake);
	l->queue = map_buffer(l->size);
	l->out = map_buffer(l->size);
	l->path = strdup(conf->path);
	if (l->queue && l->out && l->path)
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

/* End the writer.  False: a disk that does not answer holds it. */
static bool join_writer(struct session_log *l)
{
	struct timespec until = clock_timespec(clock_real_ms() + SESSION_LOG_LAST_MS + 500);

	pthread_mutex_lock(&l->lock);
	l->last = true;
	l->end_ms = clock_ms() + SESSION_LOG_LAST_MS;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
	return !pthread_timedjoin_np(l->thread, NULL, &until);
}

/* A log that was left behind is no leak: a leak checker finds it here. */
static struct session_log *volatile left_behind;

void session_log_close(struct session_log *l)
{
	if (!l)
		return;
	if (l->started && !join_writer(l)) {
		log_warning("session log %s: the last lines are lost: it cannot be written (does "
			    "the disk answer?)", l->path);
		left_behind = l;
		return;
	}
	if (l->lost)
		log_warning("session log %s: %llu lines were lost in all", l->path,
			    (unsigned long long)l->lost);
	forget(l);
}

struct json_object *session_log_json(struct session_log *l)
{
	struct json_object *o;

	if (!l)
		return NULL;
	o = json_object_new_object();
	json_add(o, "path", json_object_new_string(l->path));
	pthread_mutex_lock(&l->lock);
	json_add(o, "lines", json_object_new_int64((int64_t)l->lines));
	json_add(o, "lost", json_object_new_int64((int64_t)l->lost));
	json_add(o, "errors", json_object_new_int64((int64_t)l->errors));
	json_add(o, "last_error", json_object_new_string(l->last_error));
	pthread_mutex_unlock(&l->lock);
	return o;
}
