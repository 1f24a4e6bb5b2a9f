// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the guardian starts a server and waits for it; the server takes requests
 * from the socket, and makes processes for each (resolver_server.h), one of which is given one end of a pipe and nothing else.
 * So whoever takes over a look-up, by an answer that a bug in a C library cannot stand, can give a
 * wrong address for the name that was asked, as the name server could anyway, and nothing more: not
 * see or answer what else is asked, not signal or trace another process, not start one.  The server
 * itself only copies packets.  It reads no answer of a name server, and does not trust what comes
 * from a pipe with more than that one answer.
 *
 * The number of processes is bounded, and whose turn it is then, resolver_queue.h says.  So is the
 * number of those who wait for it; who comes then waits in the socket, and when that is full the
 * daemon is told by EAGAIN.
 */
#include "relay/resolver_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/syscall_filter.h"
#include "relay/resolver_server.h"

#define RESTART_MS 200
#define PROCESS_NAME "culvert-resolve"

/* Service managers signal every process of a service; these end when the daemon does. */
static void ignore_signals(void)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM,
				       SIGPIPE };

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
}

static int become_nobody(const struct account *a, enum filter_mode filter, int sock, char *err,
			 size_t errlen)
{
	struct rlimit descriptors = { RESOLVER_DESCRIPTORS, RESOLVER_DESCRIPTORS };
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int r = null < 0 ? -errno : 0;

	for (int fd = 0; !r && fd < 3; fd++)
		r = dup2(null, fd) < 0 ? -errno : 0;
	r = r ?: resolver_keep_only(sock);
	(void)setrlimit(RLIMIT_NOFILE, &descriptors); /* a service manager may not let us */
	if (r) {
		snprintf(err, errlen, "descriptors: %s", strerror(-r));
		return r;
	}
	prctl(PR_SET_NAME, PROCESS_NAME);
	return sandbox_enter(a, err, errlen) ?:
	       syscall_filter_resolver(filter, false, err, errlen);
}

/* Tells the daemon, too: what was under way will not be answered. */
__attribute__((noreturn))
static void guard(enum filter_mode filter)
{
	for (;; resolver_answer_error(0, -ECHILD, "the resolver had to be started again")) {
		pid_t pid = fork();
		int status = 0;

		if (pid == 0 && resolver_end_with_parent())
			_exit(1);
		if (pid == 0)
			resolver_serve(filter);
		while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (pid > 0 && WIFEXITED(status) && !WEXITSTATUS(status))
			_exit(0);
		usleep(RESTART_MS * 1000);
	}
}

/* The first packet tells the daemon how it went. */
__attribute__((noreturn))
static void guardian(const struct account *a, enum filter_mode filter, int sock)
{
	struct resolver_reply hello = { 0 };

	ignore_signals();
	hello.error = become_nobody(a, filter, sock, hello.why, sizeof(hello.why)) ?:
		      resolver_end_with_parent();
	if (send(RESOLVER_SOCKET, &hello, offsetof(struct resolver_reply, addrs), MSG_NOSIGNAL) < 0 ||
	    hello.error)
		_exit(1);
	guard(filter);
}

pid_t resolver_fork(const struct account *a, enum filter_mode filter, int sock)
{
	pid_t pid = fork();

	if (pid == 0)
		guardian(a, filter, sock);
	return pid < 0 ? -errno : pid;
}
