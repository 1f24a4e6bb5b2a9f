// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the writer, a thread of its own, takes what workers have left in the queue
 * (session_queue.h), makes lines of it, and writes them.  It alone may be held up by a file.  If it
 * still is at the end of the daemon, it is left behind, with what it uses.
 */
#include "daemon/session_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/new_thread.h"
#include "daemon/session_line.h"
#include "relay/session_queue.h"
#include "relay/session_record.h"

#define TEXT_SIZE (64 << 10)
#define ERROR_LEN 256

struct session_log {
	char *path;
	struct session_log_conf conf;
	pthread_t thread;
	bool started;
	struct session_queue queue;

	pthread_mutex_t lock; /* of these, which only the writer changes */
	uint64_t lines, lost, errors;
	char last_error[ERROR_LEN];

	/* the writer's own */
	struct log_file file;
	struct session_clock clock;
	char text[TEXT_SIZE];
	size_t text_len;
	uint64_t missed_seen;
	bool failing; /* the last attempt has failed */
};

/* --- on the workers' threads --- */

void session_log_ended(struct session_log *l, const struct session *s, const uint64_t kernel[2],
		       unsigned int end)
{
	union session_record_room room;

	if (!l)
		return;
	session_record_ended(&room, s, kernel, end);
	session_queue_add(&l->queue, &room.record);
}

void session_log_refused(struct session_log *l, const char *forward, const struct sockaddr *client,
			 uint64_t now_ms, enum cause why)
{
	union session_record_room room;

	if (!l)
		return;
	session_record_refused(&room, forward, client, now_ms, why);
	session_queue_add(&l->queue, &room.record);
}

void session_log_reopen(struct session_log *l)
{
	session_queue_reopen(&l->queue);
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
	if (!log_file_is_path(l->path))
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

	return session_queue_has_time(&l->queue);
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
	if (!has_patience(l)) /* the end must not wait for each portion of its own */
		r = -EAGAIN;
	else
		r = l->file.fd < 0 ? open_again(l) : 0;
	is_open = l->file.fd >= 0;
	if (!r)
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

static void write_records(struct session_log *l, const struct session_batch *b)
{
	const struct session_record *r = NULL;

	l->clock.offset_ms = (int64_t)(clock_real_ms() - clock_ms());
	while ((r = session_batch_next(b, r))) {
		if (sizeof(l->text) - l->text_len < SESSION_LINE_MAX)
			write_text(l);
		l->text_len += session_line(r, &l->clock, l->text + l->text_len);
	}
	write_text(l);
}

static void *writer(void *arg)
{
	struct session_log *l = arg;
	bool last = false;

	while (!last) {
		const struct session_batch *b = session_queue_take(&l->queue);

		write_records(l, b);
		say_missed(l, b->missed);
		if (b->reopen)
			rotate(l);
		last = b->last;
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

	if (log_file_is_path(l->path)) {
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

static void forget(struct session_log *l)
{
	session_queue_close(&l->queue);
	pthread_mutex_destroy(&l->lock);
	free(l->path);
	free(l);
}

int session_log_open(const struct session_log_conf *conf, struct session_log **ret, char *err,
		     size_t errlen)
{
	struct session_log *l = calloc(1, sizeof(*l));
	int r;

	if (!l) {
		snprintf(err, errlen, "session log: out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&l->lock, NULL);
	l->conf = *conf;
	l->path = strdup(conf->path);
	r = session_queue_open(&l->queue, conf->sessions);
	if (!l->path)
		r = -ENOMEM;
	if (r)
		snprintf(err, errlen, "session log: out of memory");
	else
		r = open_file(l, err, errlen);
	if (r) {
		forget(l);
		return r;
	}
	*ret = l;
	return 0;
}

int session_log_start(struct session_log *l)
{
	int r = new_thread(&l->thread, writer, l);

	l->started = !r;
	return r;
}

/* A disk that does not answer holds the writer, and the end of the process must not wait for it. */
static bool join_writer(struct session_log *l)
{
	struct timespec until = clock_timespec(clock_real_ms() + SESSION_LOG_LAST_MS + 500);

	session_queue_end(&l->queue, SESSION_LOG_LAST_MS);
	return !pthread_timedjoin_np(l->thread, NULL, &until);
}

/* Nobody looks at it any more; but to a leak checker it is not lost. */
static struct session_log *volatile left_behind;

bool session_log_close(struct session_log *l)
{
	uint64_t lost;

	if (!l)
		return true;
	if (l->started && !join_writer(l)) {
		log_warning("session log %s: the last lines are lost: it cannot be written (does "
			    "the disk answer?)", l->path);
		left_behind = l;
		return false;
	}
	lost = l->lost + session_queue_missed(&l->queue);
	if (lost)
		log_warning("session log %s: %llu lines were lost in all", l->path,
			    (unsigned long long)lost);
	log_file_close(&l->file);
	forget(l);
	return true;
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
	lost = l->lost;
	errors = l->errors;
	memcpy(last_error, l->last_error, sizeof(last_error));
	pthread_mutex_unlock(&l->lock);
	lost += session_queue_missed(&l->queue);
	o = json_object_new_object();
	json_add(o, "path", json_object_new_string(l->path));
	json_add(o, "lines", json_object_new_int64((int64_t)lines));
	json_add(o, "lost", json_object_new_int64((int64_t)lost));
	json_add(o, "errors", json_object_new_int64((int64_t)errors));
	json_add(o, "last_error", json_object_new_string(last_error));
	return o;
}
