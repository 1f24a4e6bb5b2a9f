/* SPDX-License-Identifier: BSD-2-Clause */
/* Packets that get lost, come twice or out of order; a link that shrinks or goes away. */
#include <bpf/libbpf.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/pattern.h"
#include "cases.h"
#include "tests/faults/network.skel.h"

#define PERCENT(n) ((uint32_t)((n) * 65536 / 100))
#define BATCHES 3
#define LINK_MS 3000

/* --- packets --- */

static struct bpf_tc_hook hook_of_lo(void)
{
	struct bpf_tc_hook hook = { .sz = sizeof(hook), .attach_point = BPF_TC_INGRESS };

	hook.ifindex = (int)if_nametoindex("lo");
	return hook;
}

static int attach(struct network *net)
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

static int disturbed(struct net_case *c, uint32_t drop, uint32_t twice, uint32_t reorder)
{
	struct network *net = network__open_and_load();
	struct batch b;
	int r;

	if (!net) {
		net_fail(c, "the BPF program cannot be loaded: %s", strerror(errno));
		return -ENOTSUP;
	}
	r = attach(net);
	if (r) {
		network__destroy(net);
		net_fail(c, "no BPF program at lo: %s", strerror(-r));
		return -ENOTSUP;
	}
	net->bss->drop_share = drop;
	net->bss->double_share = twice;
	net->bss->reorder_share = reorder;
	for (int i = 0; !r && i < BATCHES; i++) {
		lanes_run(NULL, NULL, &b);
		r = net_add(c, &b, false);
	}
	c->times = net->bss->dropped + net->bss->doubled + net->bss->reordered;
	detach();
	network__destroy(net);
	if (!r && !c->times)
		return net_fail(c, "not one packet was touched");
	return r;
}

int case_loss(struct net_case *c)
{
	return disturbed(c, PERCENT(1), 0, 0);
}

int case_doubling(struct net_case *c)
{
	return disturbed(c, 0, PERCENT(10), 0);
}

int case_reordering(struct net_case *c)
{
	return disturbed(c, PERCENT(0.1), PERCENT(2), PERCENT(3));
}

/* --- the link --- */

static int set_mtu(int mtu)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_mtu = mtu };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r = fd < 0 || ioctl(fd, SIOCSIFMTU, &ifr) ? -errno : 0;

	if (fd >= 0)
		close(fd);
	return r;
}

static int set_up(bool up)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r = fd < 0 || ioctl(fd, SIOCGIFFLAGS, &ifr) ? -errno : 0;

	if (!r) {
		ifr.ifr_flags = (short)(up ? ifr.ifr_flags | IFF_UP : ifr.ifr_flags & ~IFF_UP);
		r = ioctl(fd, SIOCSIFFLAGS, &ifr) ? -errno : 0;
	}
	if (fd >= 0)
		close(fd);
	return r;
}

struct changes {
	struct net_case *c;
	int64_t due, until;
	uint64_t rng;
	bool down;
};

/* TCP's segments follow the MTU of the route, in mid-stream. */
static void change_mtu(void *arg)
{
	static const int mtus[] = { 65536, 9000, 1500, 1280, 576, 296 };
	struct changes *ch = arg;

	if (now_ms() < ch->due)
		return;
	ch->due = now_ms() + (int64_t)rng_range(&ch->rng, 3, 25);
	ch->c->times += !set_mtu(mtus[rng_range(&ch->rng, 0, 5)]);
}

int case_mtu(struct net_case *c)
{
	struct changes ch = { .c = c, .rng = 1 };
	struct batch b;
	int r = 0;

	for (int i = 0; !r && i < BATCHES; i++) {
		lanes_run(change_mtu, &ch, &b);
		r = net_add(c, &b, false);
	}
	set_mtu(65536);
	return r;
}

static void change_link(void *arg)
{
	struct changes *ch = arg;
	int64_t now = now_ms();

	if (now < ch->due || (now >= ch->until && !ch->down))
		return;
	ch->down = !ch->down;
	ch->due = now + (int64_t)rng_range(&ch->rng, 20, ch->down ? 150 : 400);
	if (!set_up(!ch->down))
		ch->c->times += ch->down;
}

/*
 * Who connects while the link is down is told that the network is unreachable, and so is the
 * daemon: such a session is reset.  One that is established must only wait.  For how long, TCP's
 * retransmissions say: each that meets a link that is down again doubles the time to the next, so
 * the link stays up in the end, long before a session is called stuck.
 */
int case_link(struct net_case *c)
{
	struct changes ch = { .c = c, .rng = 2 };
	struct batch b;
	int r = 0;

	for (int i = 0; !r && i < BATCHES; i++) {
		ch.due = now_ms() + 10;
		ch.until = now_ms() + LINK_MS;
		lanes_run(change_link, &ch, &b);
		set_up(true);
		ch.down = false;
		r = net_add(c, &b, true);
	}
	return r;
}
