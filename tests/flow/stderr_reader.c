// SPDX-License-Identifier: BSD-2-Clause
#include "stderr_reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KEEP (64 << 10)
#define JOIN_MS 2000

struct stderr_reader {
	int fd;
	pthread_t thread;
	bool joined;
	pthread_mutex_t lock; /* all below */
	pthread_cond_t changed;
	bool ready, eof;
	char text[KEEP];
	size_t len;
	char line[512]; /* the one being received */
	size_t line_len;
	char complaint[512]; /* the first of a sanitizer */
};

static struct timespec after(int ms)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += ms / 1000;
	return ts;
}

static void scan_line(struct stderr_reader *r)
{
	static const char *const bad[] = { "AddressSanitizer", "runtime error:", "LeakSanitizer",
					   "ThreadSanitizer" };

	r->line[r->line_len] = '\0';
	if (strstr(r->line, "culvert: ready"))
		r->ready = true;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (!r->complaint[0] && strstr(r->line, bad[i]))
			memcpy(r->complaint, r->line, sizeof(r->line));
	r->line_len = 0;
}

static void keep(struct stderr_reader *r, const char *buf, size_t n)
{
	if (r->len + n > KEEP) { /* n is small against KEEP */
		size_t drop = r->len + n - KEEP;

		memmove(r->text, r->text + drop, r->len - drop);
		r->len -= drop;
	}
	memcpy(r->text + r->len, buf, n);
	r->len += n;
	for (size_t i = 0; i < n; i++) {
		if (buf[i] == '\n' || r->line_len == sizeof(r->line) - 1)
			scan_line(r);
		if (buf[i] != '\n')
			r->line[r->line_len++] = buf[i];
	}
}

static void *read_all(void *arg)
{
	struct stderr_reader *r = arg;
	bool echo = getenv("FLOW_VERBOSE") != NULL;
	char buf[4096];
	ssize_t n;

	do {
		n = read(r->fd, buf, sizeof(buf));
		if (n > 0 && echo)
			fwrite(buf, 1, (size_t)n, stderr);
		pthread_mutex_lock(&r->lock);
		if (n > 0)
			keep(r, buf, (size_t)n);
		else
			r->eof = true;
		pthread_cond_broadcast(&r->changed);
		pthread_mutex_unlock(&r->lock);
	} while (n > 0);
	return NULL;
}

int stderr_reader_open(int fd, struct stderr_reader **ret)
{
	struct stderr_reader *r = calloc(1, sizeof(*r));
	int error;

	if (!r)
		return -ENOMEM;
	r->fd = fd;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->changed, NULL);
	error = pthread_create(&r->thread, NULL, read_all, r);
	if (error) {
		free(r);
		return -error;
	}
	*ret = r;
	return 0;
}

int stderr_reader_wait_ready(struct stderr_reader *r, int timeout_ms)
{
	struct timespec until = after(timeout_ms);
	bool ready, eof;
	int error = 0;

	pthread_mutex_lock(&r->lock);
	while (!r->ready && !r->eof && !error)
		error = pthread_cond_timedwait(&r->changed, &r->lock, &until);
	ready = r->ready;
	eof = r->eof;
	pthread_mutex_unlock(&r->lock);
	return ready ? 0 : eof ? -EPIPE : -ETIMEDOUT;
}

char *stderr_reader_text(struct stderr_reader *r)
{
	char *copy;

	pthread_mutex_lock(&r->lock);
	copy = strndup(r->text, r->len);
	pthread_mutex_unlock(&r->lock);
	return copy;
}

char *stderr_reader_complaint(struct stderr_reader *r)
{
	char *copy;

	pthread_mutex_lock(&r->lock);
	copy = r->complaint[0] ? strdup(r->complaint) : NULL;
	pthread_mutex_unlock(&r->lock);
	return copy;
}

/* Something that the program started could keep its stderr open. */
bool stderr_reader_join(struct stderr_reader *r)
{
	struct timespec until = after(JOIN_MS);

	if (!r->joined && !pthread_timedjoin_np(r->thread, NULL, &until))
		r->joined = true;
	return r->joined;
}

void stderr_reader_close(struct stderr_reader *r)
{
	if (!stderr_reader_join(r)) {
		fprintf(stderr, "note: somebody still holds the daemon's stderr\n");
		return;
	}
	close(r->fd);
	free(r);
}
