/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <syslog.h>

/*
 * The daemon's own log: one line for each message on stderr, written by one write(2).  Under
 * systemd (JOURNAL_STREAM names this stderr) a line begins with its priority, "<N>", and has no
 * time stamp.  Elsewhere it looks like
 *
 *	2025-11-21T06:44:01.123Z warning: the message
 *
 * The time is UTC: local time would need /etc/localtime, which the sandbox closes off.
 * A byte that is not printable ASCII becomes "?": a peer that chooses a name forges no line and
 * drives no terminal.  A message of more than about 1000 bytes ends in "...".  errno is preserved,
 * and %m works.
 *
 * No thread waits for the reader of the log.  A line that stderr does not take at once is lost;
 * the next line that stderr takes ends in "(N lines lost before)".
 */

/* Drop messages that are less important than LEVEL (LOG_ERR .. LOG_DEBUG).  Default LOG_INFO. */
void log_set_level(int level);
int log_get_level(void);

/* "error", "warning", "notice", "info", "debug": from LOG_ERR on; the last one is NULL. */
extern const char *const log_level_names[LOG_DEBUG + 2];

#define log_write(level, ...) log_write_limited(NULL, level, __VA_ARGS__)

#define log_error(...) log_write(LOG_ERR, __VA_ARGS__)
/* The same as an expression, whose value is CODE. */
#define log_failure(code, ...) (log_error(__VA_ARGS__), (code))
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/*
 * Limit the rate of each call site: LOG_BURST messages pass in a window of LOG_WINDOW_MS.  The
 * first message of the next window says how many were suppressed.
 */
#define LOG_BURST 5
#define LOG_WINDOW_MS 5000

struct log_rate {
	uint64_t window_start_ms;
	unsigned int seen; /* in this window */
};

#define log_limited(level, ...)                                                                    \
	do {                                                                                       \
		static struct log_rate log_rate_here_;                                             \
		log_write_limited(&log_rate_here_, level, __VA_ARGS__);                            \
	} while (0)

/* RATE must live as long as the program, and begin with zeros.  NULL: without a limit. */
void log_write_limited(struct log_rate *rate, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Tell the person who typed the command: print "culvert: " and the message as one line on stderr,
 * at any log level, without a time stamp; under systemd with the priority of an error.  Wait until
 * the line is written.  Return CODE.
 */
int log_complain(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Keep the complaints of this thread in BUF (SIZE bytes), without "culvert: " and with "; " between
 * them, as far as there is room, and print none.  BUF NULL: print again.
 */
void log_keep_complaint(char *buf, size_t size);

/* Lines that stderr did not take, of all threads. */
uint64_t log_lines_lost(void);

/* REAL_MS since 1970 as "2025-11-21T06:44:01.123Z".  Return BUF. */
#define LOG_TIME_LEN 32
const char *log_time(uint64_t real_ms, char buf[LOG_TIME_LEN]);

/*
 * Copy TEXT into BUF (SIZE bytes, at least 4) as printable ASCII on one line: every other byte
 * becomes "?".  A text that does not fit ends in "...".  Return BUF.
 */
const char *log_escape(const char *text, char *buf, size_t size);

enum hint_about {
	HINT_LISTEN = 1,
	HINT_CONNECT = 2,
	HINT_RESOURCES = 4, /* a thread, a process, a worker's descriptors */
	HINT_LOG_FILE = 8,
};

/*
 * A hint for the operator: what to do about errno ERROR of an operation of kind ABOUT.  The text is
 * " (...)", for the end of a log line; "" if there is no hint.
 */
const char *error_hint(enum hint_about about, int error);
