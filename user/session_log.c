// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: workers append records to the queue `in`, under a lock that is held for as
 * long as it takes to copy 200 bytes.  The writer exchanges it for the empty queue `out`, makes
 * lines of what it has got, and writes them.  A queue is a piece of memory of fixed size, of which
 * only as much is ever touched as was once in use; what does not fit is lost.
 *
 * To wake a thread costs more than to end a session, so the writer is woken by the first record
 * after a rest, and then waits for more to come before it works: ten wake-ups a second, at most,
 * and none while no session ends.
 */
#include "session_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "json_add.h"
#include "log.h"
#include "log_file.h"
#include "session_line.h"
#include "session_record.h"

#define GATHER_MS 100
#define TEXT_SIZE (64 << 10)
#define RECORD_GUESS 256 /* most are smaller: see session_record.h */
#define QUEUE_LEAST (256 << 10)
#define QUEUE_MOST (32 << 20)
#define ERROR_LEN 256

struct queue {
	char *bytes;
	size_t used;
	unsigned int n; /* records */
};

/* What the writer waits for. */
enum wait {
	WAIT_NOT,
	WAIT_RECORD, /* the first one */
	WAIT_MORE,   /* a while, or until the queue is half full */
};

struct session_log {
	char *path;
	struct session_log_conf conf;
	pthread_t thread;
	bool started;

	pthread_mutex_t lock; /* of these */
	pthread_cond_t wake;
	struct queue in;
	size_t size; /* of either queue */
	enum wait wait;
	bool reopen, stop;
	int64_t stop_ms; /* by then the writer has to have ended */
	uint64_t missed; /* records that did not fit */
	uint64_t lines, lost, errors; /* of the writer */
	char last_error[ERROR_LEN];

	/* the writer's own */
	struct queue out;
	struct log_file file;
	struct session_clock clock;
	char text[TEXT_SIZE];
	size_t text_len;
	uint64_t missed_seen;
	bool failing; /* the last attempt has failed */
};

static int64_t clock_ms(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* --- on the workers' threads --- */

static void add(struct session_log *l, const struct session_record *r)
{
	bool wake = false;

	pthread_mutex_lock(&l->lock);
	if (l->in.used + r->size > l->size) {
		l->missed++;
	} else {
		memcpy(l->in.bytes + l->in.used, r, r->size);
		l->in.used += r->size;
		l->in.n++;
		wake = l->wait == WAIT_RECORD ||
		       (l->wait == WAIT_MORE && l->in.used >= l->size / 2);
		if (wake) /* once is enough */
			l->wait = WAIT_NOT;
	}
	pthread_mutex_unlock(&l->lock);
	if (wake)
		pthread_cond_signal(&l->wake);
}

void session_log_ended(struct session_log *l, const struct session *s, const uint64_t kernel[2],
		       unsigned int end)
{
	union session_record_room room;

	if (!l)
		return;
	session_record_ended(&room, s, kernel, end);
	add(l, &room.record);
}

void session_log_refused(struct session_log *l, const char *forward, const struct sockaddr *client,
			 uint64_t now_ms, enum cause why)
{
	union session_record_room room;

	if (!l)
		return;
	session_record_refused(&room, forward, client, now_ms, why);
	add(l, &room.record);
}

void session_log_reopen(struct session_log *l)
{
	pthread_mutex_lock(&l->lock);
	l->reopen = true;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
}

/* --- the writer: what goes wrong --- */

static void note_error(struct session_log *l, const char *what)
{
	pthread_mutex_lock(&l->lock);
	l->errors++;
	snprintf(l->last_error, sizeof(l->last_error), "%s", what);
	pthread_mutex_unlock(&l->lock);
}

static void note_lines(struct session_log *l, unsigned int written, unsigned int lost)
{
	pthread_mutex_lock(&l->lock);
	l->lines += written;
	l->lost += lost;
	pthread_mutex_unlock(&l->lock);
}

static const char *write_advice(int r)
{
	switch (r) {
	case -ENOSPC:
		return " (make room: remove or compress old logs)";
	case -EDQUOT:
		return " (the account's quota is used up)";
	case -EFBIG:
		return " (rotate it, or raise RLIMIT_FSIZE)";
	case -EPIPE:
		return " (start its reader again)";
	case -EAGAIN:
		return " (its reader does not read)";
	default:
		return "";
	}
}

static void say_failing(struct session_log *l, int r)
{
	char what[ERROR_LEN];

	snprintf(what, sizeof(what), "%s%s", strerror(-r), write_advice(r));
	note_error(l, what);
	log_limited(LOG_WARNING, "session log %s: lines are lost, %llu so far, until it can be "
		    "written again: %s", l->path, (unsigned long long)l->lost, what);
}

static void say_missed(struct session_log *l, uint64_t missed)
{
	if (missed == l->missed_seen)
		return;
	l->missed_seen = missed;
	log_limited(LOG_WARNING, "session log %s: lines are lost, %llu so far: it cannot be "
		    "written as fast as sessions end (is the disk, or the reader, slow?)", l->path,
		    (unsigned long long)(l->lost + missed));
}

/* --- the writer: the file --- */

/* The file that PATH is now takes the place of the one before, which stays if that fails. */
static int open_again(struct session_log *l)
{
	char err[ERROR_LEN];
	int fd = log_file_open(l->path, &l->conf.account, err, sizeof(err));

	if (fd == -EACCES && l->conf.opener) {
		fd = l->conf.opener(l->conf.opener_arg);
		if (fd < 0)
			fd = -EACCES; /* ERR is about the account, whom the log shall belong to */
	}
	if (fd >= 0) {
		log_file_close(&l->file);
		log_file_adopt(&l->file, fd);
		return 0;
	}
	note_error(l, err);
	if (l->file.fd < 0)
		log_limited(LOG_WARNING, "session log %s: lines are lost until it can be opened: "
			    "%s", l->path, err);
	return fd;
}

static void rotate(struct session_log *l)
{
	if (!session_log_is_file(l->path))
		return;
	if (!open_again(l))
		log_info("session log %s: opened anew", l->path);
	else if (l->file.fd >= 0)
		log_error("session log %s: cannot be opened anew, so the old file is written on: "
			  "%s (then send SIGUSR1 again)", l->path, l->last_error);
}

static bool has_patience(void *arg)
{
	struct session_log *l = arg;
	bool stop;

	pthread_mutex_lock(&l->lock);
	stop = l->stop;
	pthread_mutex_unlock(&l->lock);
	return !stop || clock_ms(CLOCK_MONOTONIC) < l->stop_ms;
}

static unsigned int count_lines(const char *text, size_t len)
{
	unsigned int n = 0;
	const char *end = text + len;

	for (; (text = memchr(text, '\n', (size_t)(end - text))); text++)
		n++;
	return n;
}

static void write_text(struct session_log *l)
{
	size_t done = 0;
	unsigned int written, all;
	bool is_open;
	int r;

	if (!l->text_len)
		return;
	r = l->file.fd < 0 ? open_again(l) : 0;
	is_open = l->file.fd >= 0;
	if (is_open && !has_patience(l)) /* the end must not wait for each portion of its own */
		r = -EAGAIN;
	else if (is_open)
		r = log_file_write(&l->file, l->text, l->text_len, has_patience, l, &done);
	all = count_lines(l->text, l->text_len);
	written = r ? count_lines(l->text, done) : all;
	note_lines(l, written, all - written);
	if (r && is_open)
		say_failing(l, r);
	if (!r && l->failing)
		log_info("session log %s: written again; %llu lines were lost so far",
			 l->path, (unsigned long long)l->lost);
	l->failing = r;
	l->text_len = 0;
}

/* --- the writer: records --- */

static void write_records(struct session_log *l)
{
	l->clock.offset_ms = clock_ms(CLOCK_REALTIME) - clock_ms(CLOCK_MONOTONIC);
	for (size_t at = 0; at < l->out.used;) {
		/* records lie one behind the other, each aligned as malloc() aligns */
		const struct session_record *r = (const void *)(l->out.bytes + at);

		if (sizeof(l->text) - l->text_len < SESSION_LINE_MAX)
			write_text(l);
		l->text_len += session_line(r, &l->clock, l->text + l->text_len);
		at += r->size;
	}
	write_text(l);
	l->out.used = l->out.n = 0;
}

/* The lock is held. */
static void wait_for_records(struct session_log *l)
{
	struct timespec until;
	int r = 0;

	while (!l->in.n && !l->reopen && !l->stop) {
		l->wait = WAIT_RECORD;
		pthread_cond_wait(&l->wake, &l->lock);
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += GATHER_MS * 1000000L;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	while (!r && l->in.used < l->size / 2 && !l->reopen && !l->stop) {
		l->wait = WAIT_MORE;
		r = pthread_cond_timedwait(&l->wake, &l->lock, &until);
	}
	l->wait = WAIT_NOT;
}

static void *writer(void *arg)
{
	struct session_log *l = arg;
	bool done = false;

	while (!done) {
		struct queue empty = l->out;
		uint64_t missed;
		bool reopen;

		pthread_mutex_lock(&l->lock);
		wait_for_records(l);
		l->out = l->in;
		l->in = empty;
		missed = l->missed;
		reopen = l->reopen;
		l->reopen = false;
		done = l->stop;
		pthread_mutex_unlock(&l->lock);
		write_records(l);
		say_missed(l, missed);
		if (reopen)
			rotate(l);
	}
	return NULL;
}

/* --- the beginning and the end --- */

/*
 * No reader, no room: no reason not to serve anybody.  It is tried again for each batch of lines.
 */
static bool may_pass(int r)
{
	return r == -ENXIO || r == -ENOSPC || r == -EDQUOT || r == -EIO;
}

static int open_file(struct session_log *l, char *err, size_t errlen)
{
	char why[ERROR_LEN] = "";
	bool by_root = false;
	int fd;

	if (session_log_is_file(l->path)) {
		fd = log_file_open_as(l->path, &l->conf.account, &by_root, why, sizeof(why));
	} else {
		fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
		if (fd < 0) {
			fd = -errno;
			snprintf(why, sizeof(why), "%s", strerror(-fd));
		}
	}
	if (fd < 0 && !may_pass(fd)) {
		snprintf(err, errlen, "session log %s: %s", l->path, why);
		return fd;
	}
	if (fd < 0)
		log_warning("session log %s: lines are lost until it can be opened: %s", l->path,
			    why);
	if (by_root && !l->conf.opener)
		log_warning("session log %s: the account %s cannot make files in that directory: "
			    "for SIGUSR1 to work, whoever rotates must make the new file and give "
			    "it to that account (`create` of logrotate does)", l->path,
			    l->conf.account.name);
	log_file_adopt(&l->file, fd < 0 ? -1 : fd);
	return 0;
}

/* Not malloc(): it may make the memory its own, and then all of it is touched when it is reused. */
static char *map_queue(size_t size)
{
	/* cppcheck-suppress invalidFunctionArg ; no file */
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* cppcheck-suppress memleak ; it is returned */
	return p == MAP_FAILED ? NULL : p;
}

static void forget(struct session_log *l)
{
	if (l->in.bytes)
		munmap(l->in.bytes, l->size);
	if (l->out.bytes)
		munmap(l->out.bytes, l->size);
	pthread_cond_destroy(&l->wake);
	pthread_mutex_destroy(&l->lock);
	free(l->path);
	free(l);
}

static size_t queue_size(unsigned int sessions)
{
	size_t size = (size_t)sessions * RECORD_GUESS;

	if (size < QUEUE_LEAST)
		return QUEUE_LEAST;
	return size < QUEUE_MOST ? size : QUEUE_MOST;
}

int session_log_open(const struct session_log_conf *conf, struct session_log **ret, char *err,
		     size_t errlen)
{
	struct session_log *l = calloc(1, sizeof(*l));
	pthread_condattr_t attr;
	int r;

	if (!l) {
		snprintf(err, errlen, "session log: out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&l->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&l->wake, &attr);
	pthread_condattr_destroy(&attr);
	l->conf = *conf;
	l->size = queue_size(conf->sessions);
	l->path = strdup(conf->path);
	l->in.bytes = map_queue(l->size);
	l->out.bytes = map_queue(l->size);
	if (l->path && l->in.bytes && l->out.bytes) {
		r = open_file(l, err, errlen);
	} else {
		snprintf(err, errlen, "session log: out of memory");
		r = -ENOMEM;
	}
	if (r) {
		forget(l);
		return r;
	}
	*ret = l;
	return 0;
}

int session_log_start(struct session_log *l)
{
	int r = -pthread_create(&l->thread, NULL, writer, l);

	l->started = !r;
	return r;
}

/* A disk that does not answer holds the writer, and the end of the process must not wait for it. */
static bool join_writer(struct session_log *l)
{
	int64_t until_ms = clock_ms(CLOCK_REALTIME) + SESSION_LOG_LAST_MS + 500;
	struct timespec until = { .tv_sec = until_ms / 1000,
				  .tv_nsec = until_ms % 1000 * 1000000 };

	pthread_mutex_lock(&l->lock);
	l->stop = true;
	l->stop_ms = clock_ms(CLOCK_MONOTONIC) + SESSION_LOG_LAST_MS;
	pthread_mutex_unlock(&l->lock);
	pthread_cond_signal(&l->wake);
	return !pthread_timedjoin_np(l->thread, NULL, &until);
}

void session_log_close(struct session_log *l)
{
	if (!l)
		return;
	if (l->started && !join_writer(l)) {
		log_warning("session log %s: the last lines are lost: it cannot be written (does "
			    "the disk answer?)", l->path);
		return; /* the thread still uses it */
	}
	if (l->lost + l->missed)
		log_warning("session log %s: %llu lines were lost in all", l->path,
			    (unsigned long long)(l->lost + l->missed));
	log_file_close(&l->file);
	forget(l);
}

struct json_object *session_log_json(struct session_log *l)
{
	uint64_t lines, lost, errors;
	char last_error[ERROR_LEN];
	struct json_object *o;

	if (!l)
		return NULL;
	pthread_mutex_lock(&l->lock);
	lines = l->lines;
	lost = l->lost + l->missed;
	errors = l->errors;
	memcpy(last_error, l->last_error, sizeof(last_error));
	pthread_mutex_unlock(&l->lock);
	o = json_object_new_object();
	json_add(o, "path", json_object_new_string(l->path));
	json_add(o, "lines", json_object_new_int64((int64_t)lines));
	json_add(o, "lost", json_object_new_int64((int64_t)lost));
	json_add(o, "errors", json_object_new_int64((int64_t)errors));
	json_add(o, "last_error", json_object_new_string(last_error));
	return o;
}
