/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults of the network, and too little of what the machine has, each on every engine but graft:
 * sessions of all lanes run meanwhile, and once more when it is over.
 */
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/options.h"
#include "../flow/peer.h"
#include "lanes.h"
#include "page.h"
#include "rig.h"
#include "tests/faults/network.skel.h"

#define BATCHES 3

/* One fault, on one engine. */
struct net_case {
	const char *culvert, *preload, *engine;
	struct rig rig;
	uint64_t times; /* how often the fault has happened */
	unsigned int sessions, resets;
	char why[1200];
};

/* Returns 0; -1 and what broke in why; or -ENOTSUP and why the fault cannot be made here. */
typedef int net_case_fn(struct net_case *c);

__attribute__((format(printf, 2, 3))) static int net_fail(struct net_case *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->why, sizeof(c->why), fmt, ap);
	va_end(ap);
	return -1;
}

/* Run a batch; -1 if a session had worse than a reset, or a reset and RESETS is false. */
static int run_batch(struct net_case *c, bool resets)
{
	struct batch b;
	bool right = lanes_run(NULL, NULL, &b);

	c->sessions += b.sessions;
	c->resets += b.results[PEER_RESET];
	return right && (resets || !b.results[PEER_RESET]) ? 0 : net_fail(c, "%s", b.why);
}

static int run_batches(struct net_case *c, bool resets)
{
	int r = 0;

	for (int i = 0; !r && i < BATCHES; i++)
		r = run_batch(c, resets);
	return r;
}

/* --- packets --- */

#define SHARE(percent) ((uint32_t)((percent)*65536 / 100))

static struct bpf_tc_hook hook_of_lo(void)
{
	struct bpf_tc_hook hook = { .sz = sizeof(hook), .attach_point = BPF_TC_INGRESS };

	hook.ifindex = (int)if_nametoindex("lo");
	return hook;
}

static int attach(struct network_bpf *net)
{
	struct bpf_tc_hook hook = hook_of_lo();
	struct bpf_tc_opts opts = { .sz = sizeof(opts) };
	int r = bpf_tc_hook_create(&hook);

	opts.prog_fd = bpf_program__fd(net->progs.disturb);
	return r && r != -EEXIST ? r : bpf_tc_attach(&hook, &opts);
}

static void detach(void)
{
	struct bpf_tc_hook hook = hook_of_lo();

	hook.attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS; /* clsact as a whole */
	bpf_tc_hook_destroy(&hook);
}

/* With PERCENT of all packets. */
struct disturbance {
	double drop, twice, reorder;
};

static int disturbed(struct net_case *c, const struct disturbance *percent)
{
	struct network_bpf *net = network_bpf__open_and_load();
	int r;

	if (!net) {
		net_fail(c, "the BPF program cannot be loaded: %s", strerror(errno));
		return -ENOTSUP;
	}
	r = attach(net);
	if (r) {
		network_bpf__destroy(net);
		net_fail(c, "no BPF program at lo: %s", strerror(-r));
		return -ENOTSUP;
	}
	net->bss->drop_share = SHARE(percent->drop);
	net->bss->double_share = SHARE(percent->twice);
	net->bss->reorder_share = SHARE(percent->reorder);
	r = run_batches(c, false);
	c->times = net->bss->dropped + net->bss->doubled + net->bss->reordered;
	detach();
	network_bpf__destroy(net);
	if (!r && !c->times)
		return net_fail(c, "not one packet was touched");
	return r;
}

/* Another daemon for this case. */
static int restart(struct net_case *c, const char *const *options)
{
	rig_kill(&c->rig);
	return rig_start(&c->rig, c->culvert, c->engine, options) ? net_fail(c, "no daemon") : 0;
}

/* --- memory --- */

static bool write_file(const char *dir, const char *name, const char *text)
{
	char path[300];
	bool ok;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CLOEXEC); /* it is there, or is none of this cgroup */
	ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return ok;
}

#define TCP_LIMIT (512 << 10) /* of version 1 */

/* A memory cgroup with a limit, sockets included: version 2, or version 1's controller. */
static bool make_cgroup(char *dir, size_t len)
{
	static const struct {
		const char *root, *limit;
	} cgroups[] = {
		{ "/sys/fs/cgroup", "memory.max" },
		{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
	};

	for (size_t i = 0; i < sizeof(cgroups) / sizeof(cgroups[0]); i++) {
		snprintf(dir, len, "%s/culvert-faults-%d", cgroups[i].root, (int)getpid());
		if (mkdir(dir, 0755))
			continue;
		if (write_file(dir, cgroups[i].limit, "8M")) {
			write_file(dir, "memory.kmem.tcp.limit_in_bytes", "512K");
			return true;
		}
		rmdir(dir);
	}
	return false;
}

/* The number behind KEY in a file; KEY "": the file is a number. */
static uint64_t read_number(const char *dir, const char *name, const char *key)
{
	char path[300], word[32] = "";
	unsigned long long n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "re");
	while (f && (!*key || fscanf(f, "%31s", word) == 1) && fscanf(f, "%llu", &n) == 1 &&
	       strcmp(word, key) != 0)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

static int case_memory(struct net_case *c)
{
	char dir[200], pid[16];
	int r = 0;

	if (!make_cgroup(dir, sizeof(dir))) {
		net_fail(c, "no memory cgroup can be made");
		return -ENOTSUP;
	}
	/* sockets are charged where their process is when they are made */
	snprintf(pid, sizeof(pid), "%lld", (long long)c->rig.pid);
	if (!write_file(dir, "cgroup.procs", pid))
		r = net_fail(c, "%s: %s", dir, strerror(errno));
	r = r ?: run_batches(c, true);
	c->times = read_number(dir, "memory.events", "max") + /* version 1 only tells the most */
		   (read_number(dir, "memory.kmem.tcp.max_usage_in_bytes", "") >= TCP_LIMIT);
	if (!r && !c->times)
		r = net_fail(c, "%s: the limit was never reached", dir);
	if (!r && !rig_clean(&c->rig, c->why, sizeof(c->why)))
		r = -1;
	rig_kill(&c->rig);
	for (int i = 0; rmdir(dir) && i < 100; i++)
		poll(NULL, 0, 10); /* busy until the last of the process is gone */
	return r;
}

/* --- slots --- */

static int case_full_table(struct net_case *c)
{
	static const char *const options[] = { "--max-sessions", "4", "--max-sessions-per-client",
					       "4", NULL };
	int64_t errors;
	int r = restart(c, options) ?: run_batches(c, false);

	if (!r && !rig_errors(&c->rig, &errors))
		c->times = (uint64_t)errors; /* pauses, and the lane that is refused */
	return r;
}

/* --- the ring --- */

#define CROWD 400
#define CROWD_BYTES "300K"
#define FULL_BYTES (300 << 10)

/*
 * Few bytes fit into the buffers of a socket: else those of the daemon and of the client, which on
 * lo begin with megabytes, take all, and how much waits before them depends on who runs when.
 */
#define TCP_WMEM_SMALL "4096 16384 16384"
#define TCP_WMEM "4096 16384 4194304" /* as Linux begins */

static uint64_t events_lost(struct net_case *c)
{
	struct json_object *o = NULL;
	int64_t n = daemon_query(c->rig.d, "status", 5000, &o) ? 0 :
								 json_int(o, "kernel.events_lost");

	json_object_put(o);
	return (uint64_t)n;
}

struct crowd {
	struct net_case *c;
	const struct peer *ends; /* client, server, client, ... */
	int64_t stopped_at;
	int waiting; /* sessions at their hook */
	bool over;
};

/* Hook of the clients: all have talked, and are in the kernel; go on once the daemon is stopped. */
static int wait_for_stop(struct peer *p, void *arg)
{
	struct crowd *crowd = arg;

	if (!p->rounds_left) {
		p->rounds_left = 1; /* counted */
		crowd->waiting++;
	}
	return crowd->stopped_at != 0;
}

/* The servers take nothing before the daemon goes on. */
static int wait_for_end(struct peer *p, void *arg)
{
	const struct crowd *crowd = arg;

	(void)p;
	return crowd->over;
}

/*
 * True once nearly all clients have sent all: even with full buffers at both ends, and 64 KiB since
 * the program has looked, several times the soft limit has waited in each backlog.
 */
static bool is_full(const struct crowd *crowd)
{
	int full = 0;

	for (int i = 0; i < CROWD; i++)
		full += crowd->ends[2 * i].tx_off > FULL_BYTES;
	return full > CROWD * 9 / 10;
}

/* Stopped for as long as it takes to fill the backlogs. */
static int crowd_tick(void *arg)
{
	struct crowd *crowd = arg;

	if (!crowd->stopped_at && crowd->waiting == CROWD) {
		daemon_signal(crowd->c->rig.d, SIGSTOP);
		crowd->stopped_at = now_ms();
	}
	if (crowd->stopped_at && !crowd->over &&
	    (is_full(crowd) || now_ms() - crowd->stopped_at > 15000)) {
		daemon_signal(crowd->c->rig.d, SIGCONT);
		crowd->over = true;
	}
	return 0;
}

static int run_crowd(struct net_case *c, struct peer *ends, struct peer **all)
{
	struct crowd crowd = { .c = c, .ends = ends };
	char why[1000];
	int r;

	for (int i = 0; i < CROWD; i++) {
		struct peer *client = &ends[2 * i], *server = &ends[2 * i + 1];

		/* any server may meet any client: all have the same bytes */
		peer_pair(client, server, "127.0.0.1:9000", lanes_listener(0), 3, 1);
		peer_script(client, "nd rb8K G40:64:64 T B" CROWD_BYTES ":" CROWD_BYTES " F E");
		peer_script(server, "A nd rb8K H40:64:64 T B" CROWD_BYTES ":" CROWD_BYTES " E F");
		client->hook = wait_for_stop;
		server->hook = wait_for_end;
		client->hook_arg = server->hook_arg = &crowd;
		all[2 * i] = client;
		all[2 * i + 1] = server;
	}
	r = peers_run(all, 2 * CROWD, 60000, crowd_tick, &crowd, why, sizeof(why));
	daemon_signal(c->rig.d, SIGCONT);
	c->sessions += CROWD;
	return r ? net_fail(c, "%s", why) : 0;
}

/*
 * A ring so small that the events of a stopped daemon's sessions do not fit.  The program counts
 * those that it could not send, and the daemon looks at every flow.  Each backlog is good for one
 * event, at the soft limit, so that the crowd must be larger than the ring's 256 records.
 */
static int case_ring(struct net_case *c)
{
	static const char *const options[] = {
		"--workers", "1", "--max-sessions", "2000", "--soft-limit", "16K", NULL
	};
	static struct peer ends[2 * CROWD], *all[2 * CROWD];
	int r;

	setenv(FAULTS_RING_ENV, "4096", 1);
	setenv("LD_PRELOAD", c->preload, 1);
	r = restart(c, options);
	unsetenv("LD_PRELOAD");
	unsetenv(FAULTS_RING_ENV);
	if (!r && !write_file("/proc/sys/net/ipv4", "tcp_wmem", TCP_WMEM_SMALL))
		r = net_fail(c, "tcp_wmem: %s", strerror(errno));
	r = r ?: run_crowd(c, ends, all);
	write_file("/proc/sys/net/ipv4", "tcp_wmem", TCP_WMEM);
	c->times = r ? 0 : events_lost(c);
	return r || c->times ? r : net_fail(c, "no event was lost: the ring was not overrun");
}

/* --- all of them --- */

static const struct {
	const char *name;
	net_case_fn *run; /* NULL: packets are disturbed */
	bool kernel;      /* only where the kernel must carry */
	struct disturbance percent;
} cases[] = {
	{ "loss", .percent = { .drop = 1 } },
	{ "doubling", .percent = { .twice = 10 } },
	{ "reordering", .percent = { .drop = 0.1, .twice = 2, .reorder = 3 } },
	/* four slots for all sessions */
	{ "full-table", .run = case_full_table },
	/* a memory cgroup of 8 MiB; 512 KiB for TCP where that has a limit of its own */
	{ "memory", .run = case_memory },
	/* more events than the ring buffer holds */
	{ "ring", .run = case_ring, .kernel = true },
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

static const char *const engines[] = { "copy", "splice", "sockmap", "auto" };
static int failed, passed, skipped;

/* After the fault nothing is left, and a batch runs as if there had been none. */
static int check_after(struct net_case *c)
{
	if (!c->rig.d)
		return 0;
	if (!rig_clean(&c->rig, c->why, sizeof(c->why)) || run_batch(c, false))
		return -1;
	return rig_clean(&c->rig, c->why, sizeof(c->why)) ? 0 : -1;
}

static int run_case(struct net_case *c, size_t i)
{
	/* a reset that nobody hears is the end of a session, too: see keep_alive() of the lanes */
	static const char *const options[] = { "--keepalive", "4", NULL };
	char why[1000];
	int r = rig_start(&c->rig, c->culvert, c->engine, options);

	if (r)
		return r == -ENOTSUP ? net_fail(c, "the engine cannot work here"), r : -1;
	r = cases[i].run ? cases[i].run(c) : disturbed(c, &cases[i].percent);
	r = r ?: check_after(c);
	if (r && r != -ENOTSUP)
		rig_show_warnings(&c->rig);
	if (!r && c->rig.d) {
		if (daemon_stop(c->rig.d, 10000, why, sizeof(why)))
			r = net_fail(c, "SIGTERM: %.900s", why);
		c->rig.d = NULL;
	}
	rig_kill(&c->rig);
	return r;
}

static struct net_case proto;
static const char *only_engine, *only_case;

static const struct test_option options[] = {
	{ "engine", "E", "copy, splice, sockmap or auto (default: each)", TEXT, &only_engine },
	{ "only", "CASE", "loss, doubling, reordering, full-table, memory or ring", TEXT,
	  &only_case },
	{ "culvert", "PATH", "the daemon (default: the one built together)", TEXT, &proto.culvert },
};

static void run_engine(void)
{
	for (size_t i = 0; i < N_CASES; i++) {
		struct net_case c = proto;
		int64_t start = now_ms();
		int r;

		if ((only_case && strcmp(only_case, cases[i].name) != 0) ||
		    (cases[i].kernel && strcmp(c.engine, "sockmap") != 0))
			continue;
		r = run_case(&c, i);
		printf("%s %-8s %-14s %6lld ms  %llu times, %u sessions, %u reset%s%s\n",
		       r == -ENOTSUP ? "skip" :
		       r             ? "FAIL" :
				       "ok  ",
		       c.engine, cases[i].name, (long long)(now_ms() - start),
		       (unsigned long long)c.times, c.sessions, c.resets, r ? ": " : "",
		       r ? c.why : "");
		skipped += r == -ENOTSUP;
		failed += r && r != -ENOTSUP;
		passed += !r;
	}
}

int main(int argc, char **argv)
{
	char path[PATH_MAX];

	beside_test("libculvert_faults.so", path, sizeof(path));
	proto.preload = realpath(path, NULL);
	options_parse(argc, argv, options, sizeof(options) / sizeof(options[0]));
	env_enter("test_network", 900);
	lanes_open();
	for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++) {
		proto.engine = engines[i];
		if (!only_engine || !strcmp(only_engine, engines[i]))
			run_engine();
	}
	printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
	return failed || !(passed + skipped) ? 1 : 0;
}
