// SPDX-License-Identifier: BSD-2-Clause
#include "main_loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "clock.h"
#include "log.h"
#include "syscall_filter.h"

SYSCALLS_NEEDED(SYSCALL(rt_sigtimedwait));

static const int taken[] = { SIGTERM, SIGINT, SIGQUIT, SIGCHLD, SIGHUP, SIGUSR1 };
/* SIGXFSZ: a log at its RLIMIT_FSIZE; write(2) says so, too */
static const int ignored[] = { SIGPIPE, SIGUSR2, SIGALRM, SIGXFSZ };

static sigset_t taken_set(void)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaddset(&set, taken[i]);
	return set;
}

void main_loop_take_signals(void)
{
	sigset_t set = taken_set();

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* How long this thread may sleep: something may be due although no signal comes. */
static struct timespec next_look(struct main_loop *m)
{
	uint64_t now = clock_ms(), due = now + LOG_WINDOW_MS;
	uint64_t watchdog = watchdog_due(m->watchdog);

	if (watchdog < due)
		due = watchdog;
	return clock_timespec(due > now ? due - now : 0);
}

int main_loop_run(struct main_loop *m)
{
	sigset_t set = taken_set();

	for (;;) {
		struct timespec wait = next_look(m);
		int sig = sigtimedwait(&set, NULL, &wait);

		watchdog_look(m->watchdog);
		log_tell_suppressed(false);
		switch (sig) {
		case SIGTERM:
		case SIGINT:
		case SIGQUIT:
			return sig;
		case SIGHUP:
			reconfigure_ask(m->reconfigure);
			break;
		case SIGUSR1:
			if (m->session_log)
				session_log_reopen(m->session_log);
			break;
		case SIGCHLD:
			privileged_reap(m->privileged);
			break;
		default: /* nothing but time has passed */
			break;
		}
	}
}
