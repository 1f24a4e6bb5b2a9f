// SPDX-License-Identifier: BSD-2-Clause
/*
 * The main thread's event loop.  Signals come by a signalfd(2), and one timer looks after all that
 * may be due although no signal comes.  Names are looked up in the same loop (names.h).
 */
#include "daemon/main_loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(SYSCALL(read));

/*
 * At the end no thread could tell this one that it has ended but by a signal, and none may send
 * any.  So this one looks, soon and then less often.
 */
#define LOOK_FIRST_MS 1
#define LOOK_LAST_MS 50
/* What comes so soon after the first signal was meant as one: timeout(1) sends its own twice. */
#define ONE_SIGNAL_MS 100

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

static void on_look(struct timer *t)
{
	struct main_loop *m = (struct main_loop *)((char *)t - offsetof(struct main_loop, look));
	uint64_t now = m->loop.now_ms, due = now + LOG_WINDOW_MS;

	log_tell_suppressed(false);
	if (m->end) {
		m->loop.stop = m->end->is_over(m->end->arg);
		due = now + m->look_again_ms;
		m->look_again_ms *= 2;
		if (m->look_again_ms > LOOK_LAST_MS)
			m->look_again_ms = LOOK_LAST_MS;
	} else {
		watchdog_look(m->watchdog);
		if (watchdog_due(m->watchdog) < due)
			due = watchdog_due(m->watchdog);
	}
	timer_set(&m->loop, t, due);
}

static void take_end_signal(struct main_loop *m, int sig)
{
	if (!m->end) {
		m->sig = sig;
		m->loop.stop = true;
	} else if (m->loop.now_ms >= m->one_until_ms) {
		m->end->hurry(m->end->arg, sig);
	}
}

static void serve(struct main_loop *m, int sig)
{
	switch (sig) {
	case SIGUSR1:
		if (m->session_log)
			session_log_reopen(m->session_log);
		break;
	case SIGCHLD:
		privileged_reap(m->privileged);
		break;
	case SIGHUP:
		if (!m->end)
			reload_ask(m->reload);
		break;
	default:
		take_end_signal(m, sig);
	}
}

static void on_signals(struct source *s, uint32_t events)
{
	struct main_loop *m = (struct main_loop *)((char *)s - offsetof(struct main_loop, signals));
	struct signalfd_siginfo info;

	(void)events;
	while (read(s->fd, &info, sizeof(info)) == sizeof(info))
		serve(m, (int)info.ssi_signo);
}

static void after_batch(void *arg)
{
	struct main_loop *m = arg;

	if (m->names)
		names_after_batch(m->names);
	if (m->keeper)
		stock_keeper_after_batch(m->keeper);
}

int main_loop_open(struct main_loop *m)
{
	sigset_t set = taken_set();
	int r = loop_open(&m->loop, after_batch, m);

	m->look.fire = on_look;
	m->signals = (struct source){ .handle = on_signals, .fd = -1 };
	if (r)
		return r;
	m->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return m->signals.fd < 0 ? -errno : loop_watch(&m->loop, &m->signals, EPOLLIN, true);
}

void main_loop_close(struct main_loop *m)
{
	if (m->signals.fd >= 0)
		close(m->signals.fd);
	loop_close(&m->loop);
}

static void run(struct main_loop *m)
{
	int r;

	m->loop.stop = false;
	timer_set(&m->loop, &m->look, clock_ms());
	r = loop_run(&m->loop);
	if (r)
		log_error("the main thread cannot wait for signals any more: %s", strerror(-r));
}

int main_loop_run(struct main_loop *m)
{
	run(m);
	return m->sig ?: SIGTERM;
}

void main_loop_run_out(struct main_loop *m, const struct main_loop_end *e)
{
	if (e->is_over(e->arg))
		return;
	m->end = e;
	m->look_again_ms = LOOK_FIRST_MS;
	m->one_until_ms = clock_ms() + ONE_SIGNAL_MS;
	run(m);
}
