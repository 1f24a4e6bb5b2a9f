/* SPDX-License-Identifier: BSD-2-Clause */
/* Too little of what the machine has: memory, slots, room in the ring, time. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/peer.h"
#include "cases.h"

#define BATCHES 3

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
	fd = open(path, O_WRONLY | O_CLOEXEC);
	ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* A cgroup with little memory, sockets included: version 2, or version 1's memory controller. */
static bool make_cgroup(char *dir, size_t len)
{
	static const struct {
		const char *root, *limit, *value;
	} limits[] = {
		{ "/sys/fs/cgroup", "memory.max", "8M" },
		{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "8M" },
	};

	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		snprintf(dir, len, "%s/culvert-faults-%d", limits[i].root, (int)getpid());
		if (mkdir(dir, 0755))
			continue;
		if (write_file(dir, limits[i].limit, limits[i].value)) {
			write_file(dir, "memory.kmem.tcp.limit_in_bytes", "512K");
			return true;
		}
		rmdir(dir);
	}
	return false;
}

static int64_t read_number(const char *dir, const char *name)
{
	char path[300];
	long long n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "re");
	if (f && fscanf(f, "%lld", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

/* "max N" of memory.events; version 1 only tells the most that was used. */
static int64_t times_limited(const char *dir)
{
	char path[300], key[32];
	long long n = 0, value;
	FILE *f;

	snprintf(path, sizeof(path), "%s/memory.events", dir);
	f = fopen(path, "re");
	while (f && fscanf(f, "%31s %lld", key, &value) == 2)
		n += !strcmp(key, "max") ? value : 0;
	if (f)
		fclose(f);
	n += read_number(dir, "memory.failcnt") + read_number(dir, "memory.kmem.tcp.failcnt");
	value = read_number(dir, "memory.kmem.tcp.limit_in_bytes");
	return n + (value && read_number(dir, "memory.kmem.tcp.max_usage_in_bytes") >= value);
}

int case_memory(struct net_case *c)
{
	char dir[200], pid[16];
	struct batch b;
	int r = 0;

	if (!make_cgroup(dir, sizeof(dir))) {
		net_fail(c, "no memory cgroup can be made");
		return -ENOTSUP;
	}
	/* sockets are charged where their process is when they are made */
	snprintf(pid, sizeof(pid), "%lld", (long long)c->rig.pid);
	if (!write_file(dir, "cgroup.procs", pid))
		r = net_fail(c, "%s: %s", dir, strerror(errno));
	for (int i = 0; !r && i < BATCHES; i++) {
		lanes_run(NULL, NULL, &b);
		r = net_add(c, &b, true);
	}
	c->times = (uint64_t)times_limited(dir);
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

int case_full_table(struct net_case *c)
{
	static const char *const options[] = { "--max-sessions", "4",
					       "--max-sessions-per-client", "4", NULL };
	struct batch b;
	int64_t errors;
	int r = restart(c, options);

	for (int i = 0; !r && i < BATCHES; i++) {
		lanes_run(NULL, NULL, &b);
		r = net_add(c, &b, false);
	}
	if (!r && !rig_errors(&c->rig, &errors))
		c->times = (uint64_t)errors; /* pauses, and the lane that is refused */
	return r;
}

/* --- the ring --- */

#define RING_CROWDS 5 /* one after the other, until an event is lost */
#define CROWD 800
#define CROWD_BYTES "300K"
#define FULL_BYTES (180 << 10)

static int64_t events_lost(struct net_case *c)
{
	struct json_object *o = NULL;
	int64_t n = daemon_query(c->rig.d, "status", 5000, &o) ?
			    -1 :
			    json_int(o, "kernel.events_lost");

	json_object_put(o);
	return n;
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

/* True once nearly all clients have sent more than the soft limit. */
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
	struct sockaddr_storage ss;
	char why[1000];
	socklen_t len;
	int r;

	net_addr("127.0.0.1:9000", &ss, &len);
	for (int i = 0; i < CROWD; i++) {
		struct peer *client = &ends[2 * i], *server = &ends[2 * i + 1];

		peer_init(client, "client", (struct sockaddr *)&ss, len);
		peer_init(server, "server", NULL, 0);
		server->listen_fd = lanes_listener(0);
		/* any server may meet any client: all have the same bytes */
		pattern_init(&client->tx, 3, 1, PATTERN_TO_SERVER);
		pattern_init(&client->rx, 3, 1, PATTERN_TO_CLIENT);
		server->rx = client->tx;
		server->tx = client->rx;
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
	c->sum.sessions += CROWD;
	return r ? net_fail(c, "%s", why) : 0;
}

/*
 * A ring so small that the events of a stopped daemon's sessions do not fit.  The program counts
 * those that it could not send, and the daemon looks at every flow.
 */
int case_ring(struct net_case *c)
{
	static const char *const options[] = { "--workers", "1", "--max-sessions", "2000", NULL };
	struct peer *ends = calloc(2 * CROWD, sizeof(*ends));
	struct peer **all = calloc(2 * CROWD, sizeof(struct peer *));
	int64_t lost = 0;
	int r;

	if (!ends || !all)
		exit(1);
	setenv("CULVERT_FAULTS_RING", "4096", 1);
	setenv("LD_PRELOAD", c->preload, 1);
	r = restart(c, options);
	unsetenv("LD_PRELOAD");
	unsetenv("CULVERT_FAULTS_RING");
	/* how many events a crowd makes depends on how the machine runs it */
	for (int i = 0; !r && i < RING_CROWDS && lost <= 0; i++) {
		memset(ends, 0, 2 * CROWD * sizeof(*ends));
		r = run_crowd(c, ends, all);
		if (!r)
			lost = events_lost(c);
	}
	if (!r) {
		c->times = lost > 0 ? (uint64_t)lost : 0;
		if (lost <= 0)
			r = net_fail(c, "no event was lost (%lld): the ring was not overrun",
				     (long long)lost);
	}
	free(ends);
	free(all);
	return r;
}

/* --- time --- */

struct stops {
	struct net_case *c;
	int64_t due;
	bool stopped;
};

static void stop_and_go(void *arg)
{
	struct stops *s = arg;

	if (now_ms() < s->due)
		return;
	s->stopped = !s->stopped;
	s->due = now_ms() + (s->stopped ? 40 : 15);
	s->c->times += s->stopped;
	daemon_signal(s->c->rig.d, s->stopped ? SIGSTOP : SIGCONT);
}

int case_stopped(struct net_case *c)
{
	struct stops s = { .c = c };
	struct batch b;
	int r = 0;

	for (int i = 0; !r && i < BATCHES; i++) {
		lanes_run(stop_and_go, &s, &b);
		daemon_signal(c->rig.d, SIGCONT);
		s.stopped = false;
		r = net_add(c, &b, false);
	}
	return r;
}
