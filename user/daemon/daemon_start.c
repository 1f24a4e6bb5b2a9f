// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the table `steps` has all that needs root, in its order.  The steps run on the main thread before other threads exist, because
 * capabilities are each thread's own.
 */
#include "daemon/daemon_start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bundle.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/minmax.h"
#include "config/option.h"
#include "config/read.h"
#include "daemon/adopt.h"
#include "daemon/change_forwards.h"
#include "daemon/check.h"
#include "daemon/take_over.h"
#include "datapath/buffer_pool.h"
#include "datapath/icmp_send.h"
#include "datapath/policy.h"
#include "relay/health_check.h"
#include "relay/names.h"
#include "relay/session_life.h"
#include "relay/session_log.h"
#include "relay/session_syn.h"
#include "relay/udp/udp_upstream_socket.h"
#include "relay/upstream_socket.h"

static const int taken[] = { SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1 };

sigset_t daemon_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		sigaddset(&set, taken[i]);
	return set;
}

/* --- the steps of the start: each returns -errno or an exit code, after a complaint --- */

/* A look-up may take long, so until it is done signals end the process at once. */
static int start_find_listeners(struct daemon *d)
{
	int r = names_find_listeners(&d->config, false);
	sigset_t set = daemon_signals();

	if (r)
		return config_exit_code(r);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return 0;
}

static int start_find_account(struct daemon *d)
{
	int r = account_find(d->config.user, &d->account);

	if (!r && !d->account.uid)
		log_warning("user is root: culvert gives its capabilities up, and stays root");
	return r;
}

static int start_take_over(struct daemon *d)
{
	int store = -1, r = given_take(d->err, sizeof(d->err), &store);

	r = r ?: take_over_begin(d->config.take_over, store, &d->service.orders, &d->take_over);
	if (!r && orders_apply(&d->service.orders, &d->config)) {
		log_warning("take-over: orders are dropped: %s", d->err);
		d->err[0] = '\0';
	}
	return r;
}

/*
 * Start the privileged process if the configuration needs it, may need it after a reload, or if
 * packet programs need it.
 */
static int start_privileged(struct daemon *d)
{
	struct clsact *clsact = d->shared.grafts ? graft_table_clsact(d->shared.grafts) : NULL;
	const struct config *c = &d->config;
	struct service *l = &d->service;
	bool needed = c->file || clsact || d->shared.syn; /* it makes sockets for the latter */
	int r;

	for (size_t i = 0; i < c->n_forwards; i++)
		needed = needed || forward_needs_privileges(&c->forwards[i]);
	if (!needed || !c->privileged_process)
		return 0;
	r = privileged_start(c, l->argc, l->argv, clsact, &l->privileged);
	if (r)
		return r;
	log_info("the privileged process is %d", (int)l->privileged->pid);
	l->keeper = (struct socket_keeper){ .make = privileged_sockets,
					    .arg = l->privileged,
					    .loop = &d->loop,
					    .lock = PTHREAD_MUTEX_INITIALIZER };
	return 0;
}

/*
 * Raise RLIMIT_NOFILE as far as the configuration needs.  Sockets go first: without a pipe a
 * flow is copied, without a socket there is no session.  If the limit hardly suffices for all
 * sockets, pipes get a quarter of it.
 */
static int start_limit_descriptors(struct daemon *d)
{
	struct needs needs = check_needs(&d->config);
	unsigned long limit = sandbox_raise_nofile(needs.descriptors);
	unsigned long rest = limit > needs.sockets ? limit - needs.sockets : 0;

	pool_pipes_max = (unsigned int)larger(limit / 4, rest) / 2;
	return 0;
}

static int start_try_kernel(struct daemon *d)
{
	int r = adopt_open(&d->config, &d->account, take_over_of_grafts(d->take_over), &d->shared,
			   &d->probe);

	d->shared.syn = session_syn_open(&d->shared, session_begun);
	policy_allow_splice(!probe_hindrance(&d->probe, ENGINE_SPLICE));
	return r;
}

/* A reload may bring a name, and then it is too late to read resolv.conf. */
static int start_open_names(struct daemon *d)
{
	d->shared.checks = checks_open(&d->loop, &d->service.forwards, &d->shared);
	if (!names_needed(&d->config) && !(d->config.file && d->service.privileged))
		return 0;
	return names_open(&d->loop, &d->shared.names, d->err, sizeof(d->err));
}

/*
 * The default path may be out of reach, as without root, or on a file system that is read-only:
 * then culvert runs without a control socket.
 */
static int start_open_control(struct daemon *d)
{
	int r = control_open(d->config.control, d->account.uid, d->account.gid, &d->control);

	if (!r || r == -EADDRINUSE || strcmp(d->config.control, CONFIG_CONTROL_DEFAULT) != 0)
		return r;
	log_warning("no control socket, so no `culvert sessions` and `status`: %s", d->err);
	return 0;
}

/* The first change begins without forwards.  This process can still open all addresses itself. */
static int start_open_forwards(struct daemon *d)
{
	struct change first = { .service = &d->service, .config = &d->config };
	int r;

	policy_settle_ms = d->config.settle_ms;
	orders_copy(&first.orders, &d->service.orders);
	r = change_forwards(&first, 0);
	d->service.in_force = !r;
	if (r) /* another try may work: the directory of a unix socket may be late */
		return r == -EPERM ? r : EXIT_CODE_FAILURE;
	return given_check(d->err, sizeof(d->err));
}

static int start_open_session_log(struct daemon *d)
{
	const struct config *c = &d->config;
	char why[512] = "cannot be duplicated";

	if (!c->session_log || !session_log_open(c->session_log, &d->account, c->max_sessions,
						 &d->shared.session_log, why, sizeof(why)))
		return 0;
	return log_complain(EXIT_CODE_USAGE, "session log %s: %s", c->session_log, why);
}

static int start_open_metrics(struct daemon *d)
{
	const struct endpoint *at = &d->config.metrics;
	int r;

	if (!*at->text)
		return 0;
	/* of ":PORT" the last address, [::], serves both families */
	r = control_listen(&at->addrs[at->n_addrs - 1], at->n_addrs > 1, d->account.uid,
			   d->account.gid, &d->metrics);
	return r ? log_complain(EXIT_CODE_FAILURE, "metrics %s: %s", at->text, strerror(-r)) : 0;
}

/*
 * A file that is not a regular file of this account is left alone: it may be a device, or another
 * account's link.  The pid file stays when culvert ends, because only root could remove it.
 */
static int start_make_pid_file(struct daemon *d)
{
	const char *path = d->config.pid_file;
	struct stat st = { 0 };
	int fd, r;

	if (!path)
		return 0;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
	r = fd < 0 || fstat(fd, &st) ? -errno : 0;
	if (!r && (!S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_uid != geteuid()))
		r = -EEXIST;
	if (!r && (ftruncate(fd, 0) || dprintf(fd, "%ld\n", (long)getpid()) < 0))
		r = -errno;
	if (fd >= 0)
		close(fd);
	return r ? log_complain(r, "pid-file %s: %s", path, strerror(-r)) : 0;
}

/* Runs after the forwards are open, because revived sockets would block their ports. */
static int start_revive_grafts(struct daemon *d)
{
	struct graft_table *gs = d->shared.grafts;
	int r;

	if (!gs)
		return 0;
	r = standby_open(&d->standby, &d->service);
	if (!take_over_of_grafts(d->take_over))
		graft_table_revive(gs, d->account.uid);
	r = r ?: netlink_watch_open(&d->routes, &d->loop, &d->standby);
	return r ? log_complain(r, "changes of routes cannot be watched: %s", strerror(-r)) : 0;
}

static int start_prepare_sessions(struct daemon *d)
{
	int r = bundle_open();

	if (r) /* a take-over then fails, and says so */
		log_warning("take-over: no memfd: %s", strerror(-r));
	given_close_rest();
	clients_init(&d->shared.clients);
	upstream_learn_ports();
	udp_ports_open();
	icmp_open();
	return 0;
}

/* Programs are loaded before sockets are opened: loading takes long, and clients would wait. */
static const struct step {
	const char *name;
	const char *option; /* an error names the line of this option; or NULL */
	int (*run)(struct daemon *d);
} steps[] = {
	{ "find addresses to listen at", NULL, start_find_listeners },
	{ "find the account", "user", start_find_account },
	{ "raise the limit of descriptors", NULL, start_limit_descriptors },
	{ "take over", "take-over", start_take_over },
	{ "open the control socket", NULL, start_open_control },
	{ "try the kernel", NULL, start_try_kernel },
	{ "start the privileged process", NULL, start_privileged },
	{ "read resolv.conf", NULL, start_open_names },
	{ "open the forwards", NULL, start_open_forwards },
	{ "open the session log", "session-log", start_open_session_log },
	{ "open metrics", "metrics", start_open_metrics },
	{ "write the pid file", "pid-file", start_make_pid_file },
	{ "revive grafted sessions", NULL, start_revive_grafts },
	{ "prepare for sessions", NULL, start_prepare_sessions },
};

int daemon_start(struct daemon *d)
{
	const char *at = "";
	int r = 0;

	for (size_t i = 0; !r && i < sizeof(steps) / sizeof(steps[0]); i++) {
		log_debug("start: %s", steps[i].name);
		log_keep_complaint(d->err, sizeof(d->err));
		r = steps[i].run(d);
		log_keep_complaint(NULL, 0);
		if (r && steps[i].option)
			at = option_place(&d->config, &d->config.defaults, steps[i].option);
		if (r && d->err[0])
			log_error("%s%s", at, d->err);
	}
	/* a directory that is missing is missing at the next start, too */
	if (r == -EINVAL || r == -ENOENT || r == -ENOTDIR)
		return EXIT_CODE_USAGE;
	return r == -EPERM ? EXIT_CODE_UNSUPPORTED : r < 0 ? EXIT_CODE_FAILURE : r;
}
