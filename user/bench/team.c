// SPDX-License-Identifier: BSD-2-Clause
#include "team.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "options.h"

void *team_memory(unsigned int n, size_t size)
{
	/* cppcheck-suppress invalidFunctionArg ; -1 is the descriptor of anonymous memory */
	void *p = mmap(NULL, n * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	/* cppcheck-suppress memleak ; it is returned */
	return p == MAP_FAILED ? NULL : p;
}

static int start_one(struct team *t, unsigned int index, team_work *work, void *arg)
{
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
		return -errno;
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		int r = -errno;

		close(fds[0]);
		close(fds[1]);
		return r;
	}
	if (pid == 0) {
		close(fds[0]);
		for (unsigned int i = 0; i < index; i++)
			close(t->members[i].fd);
		close(t->signals);
		free(t->members);
		exit(work(index, fds[1], arg));
	}
	close(fds[1]);
	t->members[index] = (struct member){ .pid = pid, .fd = fds[0] };
	t->running++;
	return 0;
}

int team_start(struct team *t, unsigned int n, team_work *work, void *arg)
{
	sigset_t set;
	int r = 0;

	*t = (struct team){ .n = n, .signals = -1 };
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	t->signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (t->signals < 0)
		return -errno;
	t->members = calloc(n, sizeof(*t->members));
	if (!t->members)
		r = -ENOMEM;
	for (unsigned int i = 0; !r && i < n; i++)
		t->members[i].fd = -1;
	for (unsigned int i = 0; !r && i < n; i++)
		r = start_one(t, i, work, arg);
	if (r)
		team_close(t);
	return r;
}

void order_send(int control, const struct order *o)
{
	/* a receiver that is gone is noticed where one waits for it */
	send(control, o, sizeof(*o), MSG_NOSIGNAL);
}

int order_receive(int control, struct order *ret)
{
	ssize_t n = recv(control, ret, sizeof(*ret), MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	return n == sizeof(*ret) ? 0 : -ECONNRESET;
}

void team_tell(struct team *t, const struct order *o)
{
	for (unsigned int i = 0; i < t->n; i++)
		if (t->members[i].fd >= 0)
			order_send(t->members[i].fd, o);
}

static void reap(struct team *t, struct member *m)
{
	int status = 0;

	close(m->fd);
	m->fd = -1;
	t->running--;
	while (waitpid(m->pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		t->died = true;
}

/* What member M has said, if it is to be told on. */
static bool hear(struct team *t, struct member *m, enum team_event *ret)
{
	struct order o;
	int r = order_receive(m->fd, &o);

	if (r == -EAGAIN || r == -EINTR)
		return false;
	*ret = r ? TEAM_GONE : TEAM_READY;
	if (r)
		reap(t, m);
	return true;
}

enum team_event team_next(struct team *t, int *ret_signal)
{
	struct pollfd *fds = calloc(t->n + 1, sizeof(*fds));
	enum team_event event;
	bool found = false;

	if (!fds)
		abort();
	while (!found) {
		struct signalfd_siginfo info;

		fds[t->n] = (struct pollfd){ .fd = t->signals, .events = POLLIN };
		for (unsigned int i = 0; i < t->n; i++)
			fds[i] = (struct pollfd){ .fd = t->members[i].fd, .events = POLLIN };
		if (poll(fds, t->n + 1, -1) < 0)
			continue;
		if (fds[t->n].revents && read(t->signals, &info, sizeof(info)) == sizeof(info)) {
			*ret_signal = (int)info.ssi_signo;
			event = TEAM_SIGNAL;
			found = true;
		}
		for (unsigned int i = 0; !found && i < t->n; i++)
			if (fds[i].revents)
				found = hear(t, &t->members[i], &event);
	}
	free(fds);
	return event;
}

void team_close(struct team *t)
{
	for (unsigned int i = 0; i < t->n && t->members; i++) {
		if (t->members[i].fd < 0)
			continue;
		kill(t->members[i].pid, SIGKILL);
		reap(t, &t->members[i]);
	}
	free(t->members);
	t->members = NULL;
	close(t->signals);
}

/* --- descriptors --- */

#define OTHER_DESCRIPTORS 32 /* of a process, beside its connections */

uint64_t raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 1024;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	return limit.rlim_max;
}

unsigned int processes_needed(uint32_t connections, uint64_t limit, unsigned int wanted)
{
	uint64_t each = limit > OTHER_DESCRIPTORS ? limit - OTHER_DESCRIPTORS : 0;
	uint64_t n;

	if (!each)
		return 0;
	n = (connections + each - 1) / each;
	if (n < wanted)
		n = wanted < connections ? wanted : connections;
	return n <= PROCESSES_MAX ? (unsigned int)n : 0;
}
