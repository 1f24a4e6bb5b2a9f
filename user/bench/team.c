// SPDX-License-Identifier: BSD-2-Clause
#include "team.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define ORDER SIGUSR1 /* with the time to start as its value */

void *team_memory(unsigned int n, size_t size)
{
	/* cppcheck-suppress invalidFunctionArg ; -1 is the descriptor of anonymous memory */
	void *p = mmap(NULL, n * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	/* cppcheck-suppress memleak ; it is returned */
	return p == MAP_FAILED ? NULL : p;
}

static sigset_t signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, TEAM_READY);
	return set;
}

int team_start(struct team *t, unsigned int n, team_work *work, void *arg)
{
	sigset_t set = signals();

	*t = (struct team){ 0 };
	sigaddset(&set, ORDER);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGCHLD, SIG_DFL); /* our parent may have ignored it */
	for (; t->n < n; t->n++) {
		pid_t pid = fork();

		if (pid < 0) {
			int r = -errno;

			team_close(t);
			return r;
		}
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(work(t->n, arg)); /* the kernel closes all that is still open */
		}
		t->children[t->n] = pid;
		t->running++;
	}
	return 0;
}

void team_tell(struct team *t, uint64_t start_ns)
{
	union sigval value;

	memcpy(&value, &start_ns, sizeof(value));
	for (unsigned int i = 0; i < t->n; i++)
		if (t->children[i])
			sigqueue(t->children[i], ORDER, value);
}

int team_next(struct team *t)
{
	const sigset_t set = signals();
	int number, status;
	pid_t pid;

	do
		number = sigwaitinfo(&set, NULL);
	while (number < 0);
	while (number == SIGCHLD && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (unsigned int i = 0; i < t->n; i++) {
			if (t->children[i] != pid)
				continue;
			t->children[i] = 0;
			t->running--;
			t->died |= status != 0;
		}
	}
	return number;
}

void team_close(struct team *t)
{
	for (unsigned int i = 0; i < t->n; i++) {
		if (!t->children[i])
			continue;
		kill(t->children[i], SIGKILL);
		waitpid(t->children[i], NULL, 0);
	}
}

/* --- children --- */

int team_listen(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, ORDER);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

bool team_hear(int fd, uint64_t *ret_start_ns)
{
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof(info)) != sizeof(info))
		return false;
	*ret_start_ns = info.ssi_ptr;
	return true;
}

void team_ready(void)
{
	kill(getppid(), TEAM_READY);
}

/* --- descriptors --- */

void raise_descriptor_limit(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}
