/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/*
 * The daemon under test, known by its command line, its stderr and its control socket only.  It is
 * killed when this process ends, however that happens.
 */

struct daemon;

#define DAEMON_NO_STDERR (-1)

struct daemon_conf {
	const char *culvert;     /* the program; NULL: the one built together with this test */
	const char *engine;      /* --engine; NULL: none given */
	const char *const *args; /* NULL-terminated: more options, then LISTEN UPSTREAM ... */
	rlim_t nofile;           /* RLIMIT_NOFILE, soft and hard; 0: ours */
	const int *given;        /* descriptors that it is started with, as systemd does it */
	size_t n_given;
	int log_to; /* its stderr, of which we then see nothing; 0: kept for daemon_stderr().
		     * DAEMON_NO_STDERR: closed */
};

/*
 * Start and wait for "culvert: ready", and for what the probe finds.  Returns 0, -ENOTSUP (exit code 3: the engine cannot work on
 * this kernel), or another -errno; what went wrong and the daemon's last words are in WHY.
 */
int daemon_start(const struct daemon_conf *conf, struct daemon **ret, char *why, size_t len);

/*
 * Ask for "status" or "sessions".  Returns 0 and the parsed answer, which the caller releases with
 * json_object_put(), or -errno (-ETIMEDOUT after TIMEOUT_MS, -EBADMSG for what is not JSON).
 */
int daemon_query(struct daemon *d, const char *command, int timeout_ms, struct json_object **ret);

/* The same for a request of one line, LINE.  The answer may be {"error":...}. */
int daemon_ask(struct daemon *d, const char *line, int timeout_ms, struct json_object **ret);

/*
 * Wait until nothing is held for a session any more and the number of fds is what it was after the
 * start.  Returns 0 or -ETIMEDOUT with the figures in WHY.
 */
int daemon_wait_idle(struct daemon *d, int timeout_ms, char *why, size_t len);

/* 0 while it runs and no sanitizer complained; else -EIO and the reason. */
int daemon_check(struct daemon *d, char *why, size_t len);

/*
 * SIGTERM; 0 if it exits with 0 within TIMEOUT_MS and no sanitizer complained.  D is freed in any
 * case, after killing it if need be.  NULL is fine.
 */
int daemon_stop(struct daemon *d, int timeout_ms, char *why, size_t len);

/* Wait for an exit that was caused otherwise; like daemon_stop() without the signal. */
int daemon_join(struct daemon *d, int timeout_ms, char *why, size_t len);

/* SIGKILL, free.  NULL is fine. */
void daemon_kill(struct daemon *d);

void daemon_signal(struct daemon *d, int sig);
/* SIGSTOP; returns when all threads have stopped, or the daemon has ended. */
void daemon_halt(struct daemon *d);

/* Path of the control socket. */
const char *daemon_control(const struct daemon *d);

/* CPU time used so far, milliseconds. */
int64_t daemon_cpu_ms(struct daemon *d);

/* Up to 64 KiB of stderr, the newest; the caller frees. */
char *daemon_stderr(struct daemon *d);

/* Prints the last lines of its stderr, each marked so that scripts/test shows it. */
void daemon_show_stderr(struct daemon *d);

/* Is TEXT on its stderr, or does it come there within TIMEOUT_MS? */
bool daemon_log_has(struct daemon *d, const char *text, int timeout_ms);

/* PID of its privileged process, by what it has logged at the start; -1: it has none. */
pid_t daemon_privileged(struct daemon *d);

/*
 * The path of NAME, relative to the folder of the test program that is running, where both were
 * built together.  PATH_MAX bytes are enough for a path that can be opened.
 */
void beside_test(const char *name, char *buf, size_t len);

#define BUILT_CULVERT "../../culvert"

/* Members by a dotted path, "resources.fds"; 0 and "" if missing. */
int64_t json_int(struct json_object *o, const char *path);
const char *json_text(struct json_object *o, const char *path);
struct json_object *json_at(struct json_object *o, const char *path);
