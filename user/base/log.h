/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LOG_H
#define CULVERT_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <syslog.h>

/*
 * The daemon's log: one line a message on stderr, each written by a single write(2), so threads
 * never mix their lines.  Under systemd (JOURNAL_STREAM is set and is this stderr) lines carry the
 * "<N>" priority prefix and no time stamp; elsewhere they look like
 *
 *	2025-11-21T06:44:01.123Z warning: the message
 *
 * in UTC, because local time would read /etc/localtime after the sandbox is closed.  Nothing else
 * is added: a message that has to say "culvert: ready" says so itself.  Messages pass through
 * log_escape(), so a peer that chooses a name cannot forge lines or drive the reader's terminal.
 * Messages over about 1000 bytes end in "...".  errno is preserved, and %m works.
 *
 * Nobody waits for the reader of the log: a line that stderr does not take at once is lost, and the
 * next one that it takes ends in "(N lines lost before)".
 */

/* Messages less important than LEVEL (LOG_ERR .. LOG_DEBUG) are dropped.  Default LOG_INFO. */
void log_set_level(int level);
int log_get_level(void);

/* "error", "warning", "notice", "info", "debug" -> LOG_*; -EINVAL otherwise. */
int log_level_parse(const char *name);
/* The name of a level. */
const char *log_level_name(int level);

void log_write(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Rate limit per call site: at most LOG_BURST messages in a window of LOG_WINDOW_MS, which opens
 * with the first message after the last window ended; the first message of the next window says
 * how many were suppressed, or log_tell_suppressed() if there is none.  Thread-safe.
 */
#define LOG_BURST 5
#define LOG_WINDOW_MS 5000

#define log_limited(level, ...)                                                                    \
	do {                                                                                       \
		static struct log_rate log_rate_here_;                                             \
		log_write_limited(&log_rate_here_, level, __VA_ARGS__);                            \
	} while (0)

struct log_rate {
	_Atomic long long window_start_ms;
	_Atomic unsigned int count;
	_Atomic unsigned int suppressed;
	_Atomic bool listed;
	struct log_rate *next; /* of those listed */
	const char *fmt;
	int level;
};

/* RATE and FMT must live as long as the program. */
void log_write_limited(struct log_rate *rate, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Say of what kinds messages were suppressed, and how many, if their windows are over: a flood that
 * has ended is not passed over in silence.  To be called every LOG_WINDOW_MS or so; ALL: at the
 * end.
 */
void log_tell_suppressed(bool all);

#define log_error(...) log_write(LOG_ERR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
	do {                                                                                       \
		if (log_get_level() >= LOG_DEBUG)                                                  \
			log_write(LOG_DEBUG, __VA_ARGS__);                                         \
	} while (0)

/*
 * For whoever typed the command: print "culvert: " and the message as one line on stderr, whatever
 * the log level, without time stamp; under systemd with the priority of an error.  Returns CODE.
 * Escapes and cuts like log_write(), but waits until the line is written.
 */
int log_complain(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * From now on keep what this thread complains of in BUF (SIZE bytes), without "culvert: ", rather
 * than print it; of several, the first.  BUF NULL: print again.
 */
void log_keep_complaint(char *buf, size_t size);

/*
 * Copy TEXT into BUF (SIZE bytes, at least 4) as printable ASCII on one line: every other byte
 * becomes "\n", "\t" or "\xNN".  A text that does not fit ends in "...".  Escaping twice changes
 * nothing.  Returns BUF.
 */
const char *log_escape(const char *text, char *buf, size_t size);

#endif
