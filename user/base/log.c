/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/syscalls_needed.h"

#define MESSAGE_MAX 1024
#define LINE_MAX_BYTES 2048 /* below PIPE_BUF: a line is never torn, even in a pipe */

SYSCALLS_NEEDED(
	SYSCALL(write),
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	/* fstat(2), in either of its forms: is stderr the journal? */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)),
	SYSCALL(fstat));

enum journal_state {
	JOURNAL_UNKNOWN,
	JOURNAL_NO,
	JOURNAL_YES,
};

static const struct {
	const char *name;
	int level;
} levels[] = {
	{ "error", LOG_ERR }, { "warning", LOG_WARNING }, { "notice", LOG_NOTICE },
	{ "info", LOG_INFO }, { "debug", LOG_DEBUG },
};

static _Atomic int max_level = LOG_INFO;
static _Atomic int journal = JOURNAL_UNKNOWN;

void log_set_level(int level)
{
	atomic_store_explicit(&max_level, level, memory_order_relaxed);
}

int log_get_level(void)
{
	return atomic_load_explicit(&max_level, memory_order_relaxed);
}

int log_level_parse(const char *name)
{
	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		if (strcmp(name, levels[i].name) == 0)
			return levels[i].level;
	}
	return -EINVAL;
}

const char *log_level_name(int level)
{
	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		if (levels[i].level == level)
			return levels[i].name;
	}
	return level < LOG_ERR ? "error" : "debug";
}

/* One byte of a text as it shall be shown; RET is terminated. */
static size_t escape_byte(unsigned char c, char ret[5])
{
	static const char hex[] = "0123456789abcdef";

	if (c >= 0x20 && c < 0x7f) {
		ret[0] = (char)c;
		ret[1] = '\0';
		return 1;
	}
	ret[0] = '\\';
	if (c == '\n' || c == '\t') {
		ret[1] = c == '\n' ? 'n' : 't';
		ret[2] = '\0';
		return 2;
	}
	ret[1] = 'x';
	ret[2] = hex[c >> 4];
	ret[3] = hex[c & 15];
	ret[4] = '\0';
	return 4;
}

const char *log_escape(const char *text, char *buf, size_t size)
{
	size_t len = 0, fits = 0; /* fits: the longest prefix that leaves room for "..." */
	char piece[5];

	for (; *text; text++) {
		size_t n = escape_byte((unsigned char)*text, piece);

		if (len + n + 1 > size) {
			memcpy(buf + fits, "...", 4);
			return buf;
		}
		memcpy(buf + len, piece, n);
		len += n;
		if (len + sizeof("...") <= size)
			fits = len;
	}
	buf[len] = '\0';
	return buf;
}

/* systemd.exec(5): JOURNAL_STREAM is "device:inode" of the stream that leads to the journal. */
static bool stderr_is_journal(void)
{
	const char *env = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;
	char end;

	if (!env || sscanf(env, "%llu:%llu%c", &dev, &ino, &end) != 2)
		return false;
	return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

static bool in_journal(void)
{
	int state = atomic_load_explicit(&journal, memory_order_relaxed);

	if (state == JOURNAL_UNKNOWN) {
		/* Two threads may both find out; they find the same. */
		state = stderr_is_journal() ? JOURNAL_YES : JOURNAL_NO;
		atomic_store_explicit(&journal, state, memory_order_relaxed);
	}
	return state == JOURNAL_YES;
}

static size_t write_prefix(int level, char *buf, size_t size)
{
	struct timespec now;
	struct tm tm;
	int n;

	if (in_journal()) {
		n = snprintf(buf, size, "<%d>", level & LOG_PRIMASK);
		return (size_t)n;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	/* not strftime(), which looks for /etc/localtime each time */
	n = snprintf(buf, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s: ", tm.tm_year + 1900,
		     tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
		     now.tv_nsec / 1000000, log_level_name(level));
	return (size_t)n;
}

/* LINE holds a prefix of LEN bytes; NOTE ends the line, whatever is cut.  False: not written. */
static bool write_line(char line[LINE_MAX_BYTES], size_t len, const char *message, const char *note)
{
	ssize_t n;

	log_escape(message, line + len, LINE_MAX_BYTES - len - strlen(note) - 1);
	len += strlen(line + len);
	memcpy(line + len, note, strlen(note));
	len += strlen(note);
	line[len++] = '\n';
	do
		n = write(STDERR_FILENO, line, len);
	while (n < 0 && errno == EINTR);
	return n >= 0;
}

/*
 * Would a line be written at once?  A pipe is ready while it has room for PIPE_BUF bytes, a socket
 * while most of its buffer is free.  What poll(2) cannot tell, or an error, is for write(2) to say.
 */
static bool takes_line(void)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

	return poll(&p, 1, 0) != 0;
}

/*
 * A log that is not read or cannot be written is no reason to stop forwarding.  With the lock no
 * other thread takes the room that was found; it is never held by one that waits for the reader.
 */
static void write_or_lose(char line[LINE_MAX_BYTES], size_t len, const char *message)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static unsigned long lost;
	char note[64] = "";

	pthread_mutex_lock(&lock);
	if (lost)
		snprintf(note, sizeof(note), " (%lu line%s lost before)", lost,
			 lost == 1 ? "" : "s");
	if (takes_line() && write_line(line, len, message, note))
		lost = 0;
	else
		lost++;
	pthread_mutex_unlock(&lock);
}

/* Like vsnprintf(), but what does not fit ends in "...". */
__attribute__((format(printf, 3, 0)))
static void format(char *buf, size_t size, const char *fmt, va_list ap)
{
	int n = vsnprintf(buf, size, fmt, ap);

	if (n < 0)
		snprintf(buf, size, "%s", "(message could not be formatted)");
	else if ((size_t)n >= size)
		memcpy(buf + size - sizeof("..."), "...", sizeof("..."));
}

/* ERR is the caller's errno: for %m, and restored for the caller. */
__attribute__((format(printf, 4, 0)))
static void write_message(int err, int level, unsigned int suppressed, const char *fmt, va_list ap)
{
	char message[MESSAGE_MAX];
	char line[LINE_MAX_BYTES];
	size_t room = sizeof(message);
	char note[64] = "";

	if (suppressed)
		snprintf(note, sizeof(note), " (%u similar messages suppressed)", suppressed);
	room -= strlen(note);

	errno = err;
	format(message, room, fmt, ap);
	memcpy(message + strlen(message), note, strlen(note) + 1);

	write_or_lose(line, write_prefix(level, line, sizeof(line)), message);
	errno = err;
}

void log_write(int level, const char *fmt, ...)
{
	int err = errno;
	va_list ap;

	if (level > log_get_level())
		return;
	va_start(ap, fmt);
	write_message(err, level, 0, fmt, ap);
	va_end(ap);
}

/*
 * May this message pass?  RET_SUPPRESSED: how many before it could not.  A flood is turned away by
 * the first test, without the lock.  The lock covers the decisions that change the window, so that
 * exactly LOG_BURST messages pass however many threads ask.  COUNT is reset before the window
 * moves: who sees the new window sees the new count too.
 */
static bool rate_admits(struct log_rate *rate, unsigned int *ret_suppressed)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	long long now = (long long)clock_ms();
	bool admitted;

	*ret_suppressed = 0;
	if (now - rate->window_start_ms < LOG_WINDOW_MS && rate->count >= LOG_BURST) {
		rate->suppressed++;
		return false;
	}

	pthread_mutex_lock(&lock);
	if (rate->count == 0 || now - rate->window_start_ms >= LOG_WINDOW_MS) {
		rate->count = 0;
		rate->window_start_ms = now;
	}
	admitted = rate->count < LOG_BURST;
	if (admitted) {
		rate->count++;
		*ret_suppressed = atomic_exchange(&rate->suppressed, 0);
	} else {
		rate->suppressed++;
	}
	pthread_mutex_unlock(&lock);
	return admitted;
}

/* Rates that have suppressed anything, ever. */
static struct log_rate *_Atomic listed_rates;

static void list_rate(struct log_rate *rate, int level, const char *fmt)
{
	if (atomic_exchange(&rate->listed, true))
		return;
	rate->fmt = fmt;
	rate->level = level;
	rate->next = listed_rates;
	while (!atomic_compare_exchange_weak(&listed_rates, &rate->next, rate))
		;
}

/* FMT with "..." for what differs from one message to the next.  Returns BUF. */
static const char *kind_of(const char *fmt, char *buf, size_t size)
{
	size_t n = 0;
	bool gap = false; /* ends in one */

	while (*fmt && n + sizeof("...") < size) {
		if (*fmt != '%' || fmt[1] == '%') {
			fmt += *fmt == '%';
			buf[n++] = *fmt++;
			gap = false;
			continue;
		}
		fmt += 1 + strspn(fmt + 1, "-+ #0123456789.*hlzjtL");
		fmt += *fmt != '\0';
		if (!gap)
			n += (size_t)snprintf(buf + n, size - n, "...");
		gap = true;
	}
	buf[n] = '\0';
	return buf;
}

void log_tell_suppressed(bool all)
{
	char kind[MESSAGE_MAX / 2];
	long long now = (long long)clock_ms();

	for (struct log_rate *rate = listed_rates; rate; rate = rate->next) {
		unsigned int n;

		if (!rate->suppressed || (!all && now - rate->window_start_ms < LOG_WINDOW_MS))
			continue;
		n = atomic_exchange(&rate->suppressed, 0);
		if (n)
			log_write(rate->level, "%u more message%s suppressed of the kind \"%s\"", n,
				  n == 1 ? " was" : "s were", kind_of(rate->fmt, kind, sizeof(kind)));
	}
}

void log_write_limited(struct log_rate *rate, int level, const char *fmt, ...)
{
	unsigned int suppressed;
	int err = errno;
	va_list ap;

	if (level > log_get_level())
		return;
	if (!rate_admits(rate, &suppressed)) {
		list_rate(rate, level, fmt);
		errno = err;
		return;
	}
	va_start(ap, fmt);
	write_message(err, level, suppressed, fmt, ap);
	va_end(ap);
}

static _Thread_local struct {
	char *buf;
	size_t size;
} complaint;

void log_keep_complaint(char *buf, size_t size)
{
	if (buf)
		buf[0] = '\0';
	complaint.buf = buf;
	complaint.size = size;
}

int log_complain(int code, const char *fmt, ...)
{
	char message[MESSAGE_MAX];
	char line[LINE_MAX_BYTES];
	int err = errno;
	va_list ap;

	va_start(ap, fmt);
	format(message, sizeof(message), fmt, ap);
	va_end(ap);
	strcpy(line, in_journal() ? "<3>culvert: " : "culvert: "); /* 3: LOG_ERR */
	if (!complaint.buf)
		write_line(line, strlen(line), message, "");
	else if (!complaint.buf[0])
		log_escape(message, complaint.buf, complaint.size);
	errno = err;
	return code;
}
