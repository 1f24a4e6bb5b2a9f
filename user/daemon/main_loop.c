// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/main_loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"

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

/* Signal SIG, or 0: none.  What is the same before and at the end. */
static void serve(struct main_loop *m, int sig)
{
	if (sig == SIGUSR1 && m->session_log)
		session_log_reopen(m->session_log);
	if (sig == SIGCHLD)
		privileged_reap(m->privileged);
	log_tell_suppressed(false);
}

static bool is_to_end(int sig)
{
	return sig == SIGTERM || sig == SIGINT || sig == SIGQUIT;
}

int main_loop_run(struct main_loop *m)
{
	sigset_t set = taken_set();

	for (;;) {
		struct timespec wait = next_look(m);
		int sig = sigtimedwait(&set, NULL, &wait);

		watchdog_look(m->watchdog);
		serve(m, sig);
		if (is_to_end(sig))
			return sig;
		if (sig == SIGHUP)
			reconfigure_ask(m->reconfigure);
	}
}

/*
 * No thread could tell this one that it ends but by a signal, and none may send any.  So this one
 * looks, soon and then less often.
 */
#define LOOK_FIRST_MS 1
#define LOOK_LAST_MS 50
/* What comes so soon after the first signal was meant as one: timeout(1) sends its own twice. */
#define ONE_SIGNAL_MS 100

void main_loop_run_out(struct main_loop *m, const struct main_loop_end *e)
{
	uint64_t wait_ms = 0, one_until = NEVER;
	sigset_t set = taken_set();

	while (!e->is_over(e->arg)) {
		struct timespec wait = clock_timespec(wait_ms);
		int sig = sigtimedwait(&set, NULL, &wait);

		serve(m, sig);
		if (is_to_end(sig) && clock_ms() >= one_until)
			e->hurry(e->arg, sig);
		if (sig > 0)
			continue;
		/* nothing is left that had come before this began */
		if (one_until == NEVER)
			one_until = clock_ms() + ONE_SIGNAL_MS;
		wait_ms = wait_ms ? wait_ms * 2 : LOOK_FIRST_MS;
		if (wait_ms > LOOK_LAST_MS)
			wait_ms = LOOK_LAST_MS;
	}
}
