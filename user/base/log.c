// SPDX-License-Identifier: BSD-2-Clause
/* The daemon's own log on stderr, and complaints to the person who typed a command. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "base/syscalls_allowed.h"

#define MESSAGE_MAX 1024

SYSCALLS_ALLOWED(
	SYSCALL(write), SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	/* fstat(2), in either of its forms: is stderr the journal? */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)), SYSCALL(fstat));

static _Atomic int max_level = LOG_INFO;
static _Atomic uint64_t lost; /* lines, in all */

/* --- levels --- */

const char *const log_level_names[LOG_DEBUG + 2] = {
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

/* --- text --- */

/* Escape TEXT, and end it in "..." if LEN, the value of snprintf(3), says that it was cut. */
static const char *finish(char *text, size_t size, int len)
{
	if ((size_t)len >= size)
		strcpy(text + size - sizeof("..."), "...");
	for (char *c = text; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	return text;
}

const char *log_escape(const char *text, char *buf, size_t size)
{
	return finish(buf, size, snprintf(buf, size, "%s", text));
}

const char *log_time(uint64_t real_ms, char buf[LOG_TIME_LEN])
{
	time_t s = (time_t)(real_ms / 1000);
	struct tm tm;

	gmtime_r(&s, &tm);
	/* not strftime(), which looks for /etc/localtime each time */
	snprintf(buf, LOG_TIME_LEN, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", tm.tm_year + 1900U,
		 tm.tm_mon + 1U, (unsigned int)tm.tm_mday, (unsigned int)tm.tm_hour,
		 (unsigned int)tm.tm_min, (unsigned int)tm.tm_sec, (unsigned int)(real_ms % 1000));
	return buf;
}

/* --- lines --- */

/* systemd.exec(5): JOURNAL_STREAM is "device:inode" of the stream that leads to the journal. */
static bool is_journal(void)
{
	const char *env = getenv("JOURNAL_STREAM");
	char stream[64];
	struct stat st;

	if (!env || fstat(STDERR_FILENO, &st))
		return false;
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	return !strcmp(env, stream);
}

/* A line is shorter than PIPE_BUF, so a pipe takes it whole. */
static bool write_line(const char *prefix, const char *message, const char *note)
{
	char line[MESSAGE_MAX + 256];
	int len = snprintf(line, sizeof(line), "%s%s%s\n", prefix, message, note);

	return TEMP_FAILURE_RETRY(write(STDERR_FILENO, line, (size_t)len)) >= 0;
}

/*
 * Write a line if stderr takes it at once, else count it as lost.  poll(2) calls a pipe ready while
 * it has room for PIPE_BUF bytes, and a socket while most of its buffer is free.  The lock reserves
 * that room for one thread.  No thread waits while it holds the lock.
 */
__attribute__((format(printf, 3, 0))) static void write_or_lose(int level, unsigned int suppressed,
								const char *fmt, va_list ap)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t told; /* lost lines that a note has reported */
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
	char message[MESSAGE_MAX] = "", time[LOG_TIME_LEN], prefix[64], note[128] = "";
	int err = errno, n = 0;

	finish(message, sizeof(message), vsnprintf(message, sizeof(message), fmt, ap));
	if (is_journal())
		snprintf(prefix, sizeof(prefix), "<%d>", level & LOG_PRIMASK);
	else
		snprintf(prefix, sizeof(prefix), "%s %s: ", log_time(clock_real_ms(), time),
			 log_level_names[level]);
	if (suppressed)
		n = snprintf(note, sizeof(note), " (%u similar messages suppressed)", suppressed);
	pthread_mutex_lock(&lock);
	if (lost != told)
		snprintf(note + n, sizeof(note) - (size_t)n, " (%" PRIu64 " line%s lost before)",
			 lost - told, lost - told == 1 ? "" : "s");
	if (poll(&p, 1, 0) > 0 && write_line(prefix, message, note))
		told = lost;
	else
		lost++;
	pthread_mutex_unlock(&lock);
	errno = err;
}

uint64_t log_lines_lost(void)
{
	return lost;
}

/*
 * If this message begins a window, *RET_SUPPRESSED is the number suppressed in the window before.
 */
static bool passes(struct log_rate *rate, unsigned int *ret_suppressed)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t now = clock_ms();
	bool pass;

	pthread_mutex_lock(&lock);
	if (now - rate->window_start_ms >= LOG_WINDOW_MS) {
		*ret_suppressed = rate->seen > LOG_BURST ? rate->seen - LOG_BURST : 0;
		*rate = (struct log_rate){ .window_start_ms = now };
	}
	pass = ++rate->seen <= LOG_BURST;
	pthread_mutex_unlock(&lock);
	return pass;
}

void log_write_limited(struct log_rate *rate, int level, const char *fmt, ...)
{
	unsigned int suppressed = 0;
	va_list ap;

	if (level > log_get_level() || (rate && !passes(rate, &suppressed)))
		return;
	va_start(ap, fmt);
	write_or_lose(level, suppressed, fmt, ap);
	va_end(ap);
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
	size_t used = complaint.buf ? strlen(complaint.buf) : 0, room = complaint.size - used;
	char message[MESSAGE_MAX] = "";
	int err = errno;
	va_list ap;

	va_start(ap, fmt);
	finish(message, sizeof(message), vsnprintf(message, sizeof(message), fmt, ap));
	va_end(ap);
	if (!complaint.buf)
		write_line(is_journal() ? "<3>culvert: " : "culvert: ", message, ""); /* LOG_ERR */
	else if (room > sizeof("..."))
		finish(complaint.buf + used, room,
		       snprintf(complaint.buf + used, room, "%s%s", used ? "; " : "", message));
	errno = err;
	return code;
}

/* --- hints --- */

static const struct {
	unsigned int about;
	int error, other; /* 0: no other */
	const char *text;
} rows[] = {
	{ HINT_LISTEN, EADDRINUSE, 0, " (another program has it: `ss -lntup` says which)" },
	{ HINT_LISTEN, EACCES, EPERM,
	  " (a port below 1024 needs root or CAP_NET_BIND_SERVICE, a path the right to write its "
	  "directory)" },
	{ HINT_CONNECT, EADDRNOTAVAIL, 0,
	  " (the source is none of this machine's addresses, or all local ports are taken: widen "
	  "net.ipv4.ip_local_port_range)" },
	{ HINT_CONNECT, EACCES, EPERM,
	  " (a local firewall or the permissions of the socket forbid it)" },
	{ HINT_CONNECT, EAFNOSUPPORT, 0,
	  " (skipped: it is of another address family than the connection's source)" },
	{ HINT_CONNECT, ENODEV, 0,
	  " (`interface`, or `source` behind %, names no network interface: see `ip link`)" },
	{ HINT_CONNECT, EPIPE, 0,
	  " (the privileged process, which makes sockets with a mark or for transparent "
	  "forwarding, has ended: start culvert again)" },
	{ HINT_CONNECT, ENOSR, 0,
	  " (no socket with a mark or for transparent forwarding came within "
	  "connect-timeout: the privileged process, which makes them, is too slow, or hangs)" },
	{ HINT_RESOURCES, EAGAIN, 0,
	  " (raise RLIMIT_NPROC, TasksMax= of the unit or kernel.threads-max, or lower "
	  "--workers)" },
	{ HINT_RESOURCES | HINT_LISTEN, EMFILE, ENFILE,
	  " (raise RLIMIT_NOFILE, LimitNOFILE= of the unit, or lower --workers)" },
	{ HINT_LOG_FILE, EACCES, EPERM,
	  " (the account that culvert becomes must be able to write the file, or to make it)" },
	{ HINT_LOG_FILE, EROFS, 0,
	  " (the systemd unit can write in /var/log/culvert, elsewhere with ReadWritePaths=)" },
	{ HINT_LOG_FILE, ELOOP, 0, " (a symbolic link is not followed)" },
};

const char *error_hint(enum hint_about about, int error)
{
	for (size_t i = 0; error && i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].about & about && (rows[i].error == error || rows[i].other == error))
			return rows[i].text;
	return "";
}
