/* SPDX-License-Identifier: BSD-2-Clause */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"

#define READY_MS 60000
#define MAX_ARGS 128
#define MAX_GIVEN 8
#define LOG_KEPT (64 << 10)

struct daemon {
	pid_t pid;
	int pidfd;
	bool reaped;
	int status; /* of waitpid() */
	pid_t guardian;
	int guardian_fd; /* once it is closed, the guardian kills the daemon */
	int log;         /* its stderr, a file without a name */
	char control[108];
	int64_t fds; /* without those of pipes, after the start */
};

const char *daemon_control(const struct daemon *d)
{
	return d->control;
}

char *daemon_stderr(struct daemon *d)
{
	char *text = calloc(1, LOG_KEPT + 1);
	struct stat st = { 0 };
	off_t from;

	fstat(d->log, &st);
	from = st.st_size > LOG_KEPT ? st.st_size - LOG_KEPT : 0;
	if (text && pread(d->log, text, LOG_KEPT, from) < 0)
		text[0] = '\0';
	return text;
}

void daemon_show_stderr(struct daemon *d)
{
	char *log = daemon_stderr(d);
	char *from = log ? log + strlen(log) : NULL;

	for (int lines = 0; from > log && (from[-1] != '\n' || lines++ < 6);)
		from--;
	for (char *line = strtok(from, "\n"); line; line = strtok(NULL, "\n"))
		fprintf(stderr, "# culvert: %s\n", line);
	free(log);
}

bool daemon_log_has(struct daemon *d, const char *text, int timeout_ms)
{
	int64_t deadline = now_ms() + timeout_ms;

	for (;;) {
		char *log = daemon_stderr(d);
		bool there = log && strstr(log, text);

		free(log);
		if (there || now_ms() >= deadline)
			return there;
		poll(NULL, 0, 5);
	}
}

pid_t daemon_privileged(struct daemon *d)
{
	static const char said[] = "the privileged process is ";
	char *log = daemon_stderr(d), *at = log ? strstr(log, said) : NULL;
	pid_t pid = at ? (pid_t)strtol(at + strlen(said), NULL, 10) : -1;

	free(log);
	return pid;
}

/* PR_SET_PDEATHSIG does not survive the daemon's change of user; a pidfd hits nobody else. */
static void kill_orphan(void)
{
	syscall(SYS_pidfd_send_signal, 1, SIGKILL, NULL, 0);
}

static int start_guardian(struct daemon *d)
{
	d->pidfd = (int)syscall(SYS_pidfd_open, d->pid, 0);
	if (d->pidfd < 0)
		return -errno;
	d->guardian = env_at_end(d->pidfd, kill_orphan, &d->guardian_fd);
	return 0;
}

/* The folder of the test program. */
static char own_folder[PATH_MAX - 64];

/* In another mount namespace than that of the start the kernel may show a path of the machine. */
static __attribute__((constructor)) void find_own_folder(void)
{
	ssize_t n = readlink("/proc/self/exe", own_folder, sizeof(own_folder) - 1);
	char *slash;

	own_folder[n > 0 ? n : 0] = '\0';
	slash = strrchr(own_folder, '/');
	if (slash)
		*slash = '\0';
}

void beside_test(const char *name, char *buf, size_t len)
{
	snprintf(buf, len, "%s/%s", own_folder, name);
}

/* As sd_listen_fds(3) says: from number 3 on. */
static void give(const struct daemon_conf *conf)
{
	int copies[MAX_GIVEN];
	char text[24];

	for (size_t i = 0; i < conf->n_given && i < MAX_GIVEN; i++)
		copies[i] = fcntl(conf->given[i], F_DUPFD, 3 + MAX_GIVEN);
	for (size_t i = 0; i < conf->n_given && i < MAX_GIVEN; i++)
		dup2(copies[i], 3 + (int)i);
	if (!conf->n_given)
		return;
	snprintf(text, sizeof(text), "%zu", conf->n_given);
	setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	unsetenv("LISTEN_FDNAMES");
}

static void exec_daemon(const struct daemon_conf *conf, const char *control, int log)
{
	/*
	 * sessions are short here: --engine auto shall make up its mind at once, and among the
	 * carriers behind graft, which is an engine of its own here; and they end with the daemon
	 */
	const char *argv[MAX_ARGS] = { "culvert",      "run",  "--control", control,
				       "--settle",     "0",    "--seccomp", "kill",
				       "--graft-pins", "none", "--graft",   "no" };
	struct rlimit lim = { conf->nofile, conf->nofile };
	char path[PATH_MAX];
	int n = 12;

	if (conf->engine) {
		argv[n++] = "--engine";
		argv[n++] = conf->engine;
	}
	for (int i = 0; conf->args && conf->args[i] && n < MAX_ARGS - 1; i++)
		argv[n++] = conf->args[i];
	if (conf->culvert)
		snprintf(path, sizeof(path), "%s", conf->culvert);
	else
		beside_test(BUILT_CULVERT, path, sizeof(path));
	if (conf->log_to == DAEMON_NO_STDERR)
		close(STDERR_FILENO);
	else
		dup2(conf->log_to ? conf->log_to : log, STDERR_FILENO);
	signal(SIGPIPE, SIG_DFL);
	if (conf->nofile)
		setrlimit(RLIMIT_NOFILE, &lim);
	give(conf);
	syscall(SYS_close_range, 3 + conf->n_given, ~0U, 0);
	execv(path, (char *const *)argv);
	dprintf(STDERR_FILENO, "%s: %s\n", path, strerror(errno));
	_exit(127);
}

static bool reap(struct daemon *d, bool block)
{
	if (!d->reaped && waitpid(d->pid, &d->status, block ? 0 : WNOHANG) == d->pid)
		d->reaped = true;
	return d->reaped;
}

void daemon_kill(struct daemon *d)
{
	if (!d)
		return;
	if (d->pid > 0 && !d->reaped) {
		kill(d->pid, SIGKILL);
		reap(d, true);
	}
	if (d->pidfd >= 0)
		close(d->pidfd);
	if (d->guardian_fd >= 0)
		close(d->guardian_fd);
	if (d->guardian > 0)
		waitpid(d->guardian, NULL, 0);
	unlink(d->control);
	close(d->log);
	free(d);
}

/* The reason and the end of the daemon's stderr. */
static void explain(struct daemon *d, const char *reason, char *why, size_t len)
{
	char *log = daemon_stderr(d);
	size_t n = log ? strlen(log) : 0;

	snprintf(why, len, "%s; the daemon's last words: %s", reason,
		 n ? log + (n > 600 ? n - 600 : 0) : "none");
	free(log);
}

/* By its log; if that is not ours, by the control socket, which answers a little before. */
static bool is_ready(struct daemon *d, bool has_log)
{
	struct json_object *status = NULL;
	bool answers;

	if (has_log)
		return daemon_log_has(d, "culvert: ready", 0);
	answers = !daemon_query(d, "status", READY_MS, &status);
	json_object_put(status);
	return answers;
}

/* On a busy machine it is ready before it knows its carriers, which most tests want. */
static bool knows_kernel(struct daemon *d)
{
	struct json_object *status = NULL;
	bool knows;

	if (daemon_query(d, "status", READY_MS, &status))
		return true; /* which is found out next */
	knows = strncmp(json_text(status, "kernel.reason"), "whether it works here", 21) != 0;
	json_object_put(status);
	return knows;
}

static int wait_ready(struct daemon *d, bool has_log, char *why, size_t len)
{
	int64_t deadline = now_ms() + (int64_t)READY_MS * env_slow();

	while (!is_ready(d, has_log) || !knows_kernel(d)) {
		if (reap(d, false)) {
			bool cannot = WIFEXITED(d->status) && WEXITSTATUS(d->status) == 3;

			explain(d, "ended before it was ready", why, len);
			return cannot ? -ENOTSUP : -EIO;
		}
		if (now_ms() >= deadline) {
			explain(d, "not ready in time", why, len);
			return -ETIMEDOUT;
		}
		poll(NULL, 0, 2);
	}
	return 0;
}

static int64_t fds_without_pipes(struct json_object *status)
{
	return json_int(status, "resources.fds") - 2 * json_int(status, "resources.pipes");
}

/* The smallest of a few readings: one may count the connection of the query before. */
static int count_fds(struct daemon *d, char *why, size_t len)
{
	struct json_object *status;
	char text[96];

	d->fds = INT64_MAX;
	for (int i = 0; i < 5; i++) {
		int err = daemon_query(d, "status", 5000, &status);

		if (err) {
			snprintf(text, sizeof(text), "control socket: status: %s", strerror(-err));
			explain(d, text, why, len);
			return err;
		}
		if (fds_without_pipes(status) < d->fds)
			d->fds = fds_without_pipes(status);
		json_object_put(status);
	}
	return 0;
}

int daemon_start(const struct daemon_conf *conf, struct daemon **ret, char *why, size_t len)
{
	static int count;
	struct daemon *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	d->guardian_fd = d->pidfd = -1;
	snprintf(d->control, sizeof(d->control), "%s/control-%d.sock", env_dir(), ++count);
	d->log = memfd_create("stderr", MFD_CLOEXEC);
	d->pid = fork();
	if (d->pid == 0)
		exec_daemon(conf, d->control, d->log);
	if (d->pid < 0 || d->log < 0)
		err(1, "cannot start a process");
	r = start_guardian(d);
	if (!r)
		r = wait_ready(d, !conf->log_to, why, len);
	if (!r)
		r = count_fds(d, why, len);
	if (r) {
		daemon_kill(d);
		return r;
	}
	*ret = d;
	return 0;
}

static bool is_idle(const struct daemon *d, struct json_object *status)
{
	struct json_object *r = json_at(status, "resources");

	return r && !json_int(r, "sessions") && !json_int(r, "slots_used") &&
	       !json_int(r, "kernel_memory") && !json_int(r, "buffers") &&
	       json_int(r, "pipes") == json_int(r, "pipes_idle") &&
	       fds_without_pipes(status) <= d->fds;
}

int daemon_wait_idle(struct daemon *d, int timeout_ms, char *why, size_t len)
{
	int64_t deadline = now_ms() + timeout_ms;
	struct json_object *answer = NULL;
	bool has_sessions;
	int err, pause_ms = 2;

	for (;;) {
		err = daemon_query(d, "status", timeout_ms, &answer);
		if (!err && is_idle(d, answer)) {
			json_object_put(answer);
			return 0;
		}
		if (now_ms() >= deadline)
			break;
		json_object_put(answer);
		poll(NULL, 0, pause_ms); /* asking again, not waiting for a guess to come true */
		pause_ms = pause_ms < 50 ? pause_ms * 2 : pause_ms;
	}
	if (err)
		snprintf(why, len, "status: %s", strerror(-err));
	else
		snprintf(why, len, "leak: %s; fds without pipes after the start: %lld",
			 json_object_to_json_string(json_at(answer, "resources")),
			 (long long)d->fds);
	has_sessions = json_int(answer, "resources.sessions") != 0;
	json_object_put(answer);
	if (has_sessions && !daemon_query(d, "sessions", timeout_ms, &answer)) {
		fprintf(stderr, "# left over: %s\n", json_object_to_json_string(answer));
		json_object_put(answer);
	}
	return -ETIMEDOUT;
}

/* Has a sanitizer complained?  Then WHY says what. */
static bool explain_complaint(struct daemon *d, char *why, size_t len)
{
	static const char *const bad[] = { "AddressSanitizer", "runtime error:", "LeakSanitizer",
					   "ThreadSanitizer" };
	char path[32], line[512];
	bool has = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", d->log);
	f = fopen(path, "re");
	while (f && !has && fgets(line, sizeof(line), f))
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
			has |= strstr(line, bad[i]) != NULL;
	if (has)
		explain(d, line, why, len);
	if (f)
		fclose(f);
	return has;
}

int daemon_check(struct daemon *d, char *why, size_t len)
{
	if (explain_complaint(d, why, len))
		return -EIO;
	if (reap(d, false)) {
		char text[80];

		snprintf(text, sizeof(text), "the daemon ended by itself (wait status 0x%x)",
			 (unsigned int)d->status);
		explain(d, text, why, len);
		return -EIO;
	}
	return 0;
}

/* What a hanging exit hangs on. */
static void describe_threads(const struct daemon *d, char *buf, size_t len)
{
	char command[128];
	FILE *f;

	snprintf(command, sizeof(command),
		 "cd /proc/%d/task && grep -s . */comm */stack | tr '\\n' ' '", (int)d->pid);
	f = popen(command, "re");
	buf[f ? fread(buf, 1, len - 1, f) : 0] = '\0';
	if (f)
		pclose(f);
}

int daemon_join(struct daemon *d, int timeout_ms, char *why, size_t len)
{
	int64_t deadline = now_ms() + timeout_ms;
	char text[600], threads[500];
	int r = 0;

	while (!reap(d, false) && now_ms() < deadline)
		poll(NULL, 0, 5);
	if (!d->reaped) {
		describe_threads(d, threads, sizeof(threads));
		snprintf(text, sizeof(text), "did not exit in time; its threads:%s", threads);
		explain(d, text, why, len);
		r = -ETIMEDOUT;
	} else if (explain_complaint(d, why, len)) {
		r = -EIO;
	} else if (!WIFEXITED(d->status) || WEXITSTATUS(d->status) != 0) {
		snprintf(text, sizeof(text), "exit: wait status 0x%x", (unsigned int)d->status);
		explain(d, text, why, len);
		r = -EIO;
	}
	daemon_kill(d);
	return r;
}

int daemon_stop(struct daemon *d, int timeout_ms, char *why, size_t len)
{
	if (!d)
		return 0;
	daemon_signal(d, SIGCONT);
	daemon_signal(d, SIGTERM);
	return daemon_join(d, timeout_ms, why, len);
}

void daemon_signal(struct daemon *d, int sig)
{
	syscall(SYS_pidfd_send_signal, d->pidfd, sig, NULL, 0);
}

void daemon_halt(struct daemon *d)
{
	siginfo_t info;

	daemon_signal(d, SIGSTOP);
	waitid(P_PID, (id_t)d->pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

int64_t daemon_cpu_ms(struct daemon *d)
{
	struct timespec ts = { 0 };
	clockid_t clock;

	if (clock_getcpuclockid(d->pid, &clock) || clock_gettime(clock, &ts))
		return -1;
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}
