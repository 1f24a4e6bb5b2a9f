// SPDX-License-Identifier: BSD-2-Clause
/* The daemon's own log on stderr, and complaints to whoever typed a command. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/syscalls_needed.h"

#define MESSAGE_MAX 1024
#define LINE_MAX_BYTES 2048 /* below PIPE_BUF: a pipe takes a line whole */

SYSCALLS_NEEDED(
	SYSCALL(write),
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	/* fstat(2), in either of its forms: is stderr the journal? */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)),
	SYSCALL(fstat));

static _Atomic int max_level = LOG_INFO;

/* --- levels --- */

static const char *const level_names[] = {
	[LOG_ERR] = "error", [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice",
	[LOG_INFO] = "info", [LOG_DEBUG] = "debug",
};

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
	for (int level = LOG_ERR; level <= LOG_DEBUG; level++)
		if (!strcmp(name, level_names[level]))
			return level;
	return -EINVAL;
}

const char *log_level_name(int level)
{
	return level_names[level < LOG_ERR ? LOG_ERR : level > LOG_DEBUG ? LOG_DEBUG : level];
}

/* --- text --- */

/* Write the byte C as a reader shall see it, terminated. */
static size_t escape_byte(unsigned char c, char ret[5])
{
	if (c >= 0x20 && c < 0x7f) {
		ret[0] = (char)c;
		ret[1] = '\0';
		return 1;
	}
	if (c == '\n' || c == '\t')
		return (size_t)snprintf(ret, 5, "\\%c", c == '\n' ? 'n' : 't');
	return (size_t)snprintf(ret, 5, "\\x%02x", c);
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

/* Like vsnprintf(), but end a text that does not fit in "...". */
__attribute__((format(printf, 3, 0)))
static void format(char *buf, size_t size, const char *fmt, va_list ap)
{
	int n = vsnprintf(buf, size, fmt, ap);

	if (n < 0)
		snprintf(buf, size, "%s", "(message could not be formatted)");
	else if ((size_t)n >= size)
		memcpy(buf + size - sizeof("..."), "...", sizeof("..."));
}

/* --- lines --- */

static bool in_journal;

/* systemd.exec(5): JOURNAL_STREAM is "device:inode" of the stream that leads to the journal. */
static void find_journal(void)
{
	const char *env = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;
	char end;

	in_journal = env && sscanf(env, "%llu:%llu%c", &dev, &ino, &end) == 2 &&
		     fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

static bool is_journal(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_journal);
	return in_journal;
}

const char *log_time(uint64_t real_ms, char buf[LOG_TIME_LEN])
{
	time_t s = (time_t)(real_ms / 1000);
	struct tm tm;

	gmtime_r(&s, &tm);
	/* not strftime(), which looks for /etc/localtime each time */
	snprintf(buf, LOG_TIME_LEN, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ",
		 tm.tm_year + 1900U, tm.tm_mon + 1U, (unsigned int)tm.tm_mday,
		 (unsigned int)tm.tm_hour, (unsigned int)tm.tm_min, (unsigned int)tm.tm_sec,
		 (unsigned int)(real_ms % 1000));
	return buf;
}

static size_t write_prefix(int level, char *buf, size_t size)
{
	char time[LOG_TIME_LEN];

	if (is_journal())
		return (size_t)snprintf(buf, size, "<%d>", level & LOG_PRIMASK);
	return (size_t)snprintf(buf, size, "%s %s: ", log_time(clock_real_ms(), time),
				log_level_name(level));
}

/* Write LINE, which has a prefix of LEN bytes, MESSAGE, and NOTE, which is never cut off. */
static bool write_line(char line[LINE_MAX_BYTES], size_t len, const char *message, const char *note)
{
	ssize_t n;

	log_escape(message, line + len, LINE_MAX_BYTES - len - strlen(note) - 1);
	len += strlen(line + len);
	len += (size_t)snprintf(line + len, LINE_MAX_BYTES - len, "%s\n", note);
	do
		n = write(STDERR_FILENO, line, len);
	while (n < 0 && errno == EINTR);
	return n >= 0;
}

/*
 * Write a line if stderr takes it at once, else count it as lost.  poll(2) calls a pipe ready while
 * it has room for PIPE_BUF bytes, and a socket while most of its buffer is free.  The lock keeps
 * other threads from that room; no thread that holds it waits.
 */
static void write_or_lose(int level, const char *message)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static unsigned long lost;
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
	char line[LINE_MAX_BYTES], note[64] = "";
	size_t len = write_prefix(level, line, sizeof(line));

	pthread_mutex_lock(&lock);
	if (lost)
		snprintf(note, sizeof(note), " (%lu line%s lost before)", lost,
			 lost == 1 ? "" : "s");
	if (poll(&p, 1, 0) && write_line(line, len, message, note))
		lost = 0;
	else
		lost++;
	pthread_mutex_unlock(&lock);
}

void log_write(int level, const char *fmt, ...)
{
	char message[MESSAGE_MAX];
	int err = errno;
	va_list ap;

	if (level > log_get_level())
		return;
	va_start(ap, fmt);
	format(message, sizeof(message), fmt, ap);
	va_end(ap);
	write_or_lose(level, message);
	errno = err;
}

/* --- limited in rate --- */

static pthread_mutex_t rates_lock = PTHREAD_MUTEX_INITIALIZER;
static struct log_rate *rates; /* those that ever suppressed a message */

/* The lock is held.  RET_SUPPRESSED: messages that were suppressed before this one passes. */
static bool passes(struct log_rate *rate, int level, unsigned int *ret_suppressed)
{
	uint64_t now = clock_ms();

	if (!rate->passed || now - rate->window_start_ms >= LOG_WINDOW_MS) {
		rate->passed = 0;
		rate->window_start_ms = now;
	}
	if (rate->passed < LOG_BURST) {
		rate->passed++;
		*ret_suppressed = rate->suppressed;
		rate->suppressed = 0;
		return true;
	}
	rate->suppressed++;
	if (!rate->listed) {
		rate->listed = true;
		rate->level = level;
		rate->next = rates;
		rates = rate;
	}
	return false;
}

void log_write_limited(struct log_rate *rate, int level, const char *fmt, ...)
{
	char message[MESSAGE_MAX], note[64] = "";
	unsigned int suppressed = 0;
	int err = errno;
	bool pass;
	va_list ap;

	if (level > log_get_level())
		return;
	pthread_mutex_lock(&rates_lock);
	pass = passes(rate, level, &suppressed);
	if (pass) {
		errno = err;
		va_start(ap, fmt);
		format(message, sizeof(message) - sizeof(note), fmt, ap);
		va_end(ap);
		log_escape(message, rate->last, sizeof(rate->last));
	}
	pthread_mutex_unlock(&rates_lock);
	if (pass) {
		if (suppressed)
			snprintf(note, sizeof(note), " (%u similar messages suppressed)",
				 suppressed);
		strcat(message, note);
		write_or_lose(level, message);
	}
	errno = err;
}

void log_tell_suppressed(bool all)
{
	uint64_t now = clock_ms();

	pthread_mutex_lock(&rates_lock);
	for (struct log_rate *r = rates; r; r = r->next) {
		if (!r->suppressed || (!all && now - r->window_start_ms < LOG_WINDOW_MS))
			continue;
		log_write(r->level, "%u more message%s suppressed, like \"%s\"", r->suppressed,
			  r->suppressed == 1 ? " was" : "s were", r->last);
		r->suppressed = 0;
	}
	pthread_mutex_unlock(&rates_lock);
}

/* --- complaints --- */

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
	char message[MESSAGE_MAX], line[LINE_MAX_BYTES];
	int err = errno;
	va_list ap;

	va_start(ap, fmt);
	format(message, sizeof(message), fmt, ap);
	va_end(ap);
	strcpy(line, is_journal() ? "<3>culvert: " : "culvert: "); /* 3: LOG_ERR */
	if (!complaint.buf)
		write_line(line, strlen(line), message, "");
	else if (!complaint.buf[0])
		log_escape(message, complaint.buf, complaint.size);
	errno = err;
	return code;
}
