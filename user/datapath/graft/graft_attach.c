// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  A link of TCX goes away with the last reference.  A process with a
 * program's descriptor may attach the program to TCX without a capability, so new interfaces need
 * no privilege.  Before Linux 6.6 there is a filter of clsact at each hook.
 */
#include "datapath/graft/graft_attach.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <ifaddrs.h>
#include <libmnl/libmnl.h>
#include <limits.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "graft_contract.h"

/* for interfaces that come later */
SYSCALLS_ALLOWED(
	BPF_IF(PART_GRAFT, BPF_LINK_CREATE), BPF_IF(PART_GRAFT, BPF_LINK_UPDATE),
	BPF_IF(PART_GRAFT, BPF_OBJ_GET_INFO_BY_FD),
	BPF_IF(PART_GRAFT, BPF_MAP_LOOKUP_ELEM), BPF_IF(PART_GRAFT, BPF_MAP_UPDATE_ELEM),
	BPF_IF(PART_GRAFT, BPF_MAP_DELETE_ELEM),
	SYSCALL_IF(PART_GRAFT, socket, SYSCALL_ARG(0, AF_NETLINK)), SYSCALL_IF(PART_GRAFT, bind),
	SETSOCKOPT_IF(PART_GRAFT, SOL_NETLINK, NETLINK_EXT_ACK),
	SYSCALL_IF(PART_GRAFT, getsockname), SYSCALL_IF(PART_GRAFT, sendto),
	SYSCALL_IF(PART_GRAFT, recvmsg), SYSCALL_IF(PART_GRAFT, recvfrom),
	SYSCALL_IF(PART_GRAFT, close));

/*
 * Ask for a dump of TYPE, with HEADER of SIZE bytes, and give CB each message.  -EIO: the dump has
 * no end; -EINTR: the dump is not consistent; -errno: the kernel's error.
 */
static int attach_dump(uint16_t type, const void *header, size_t size, mnl_cb_t cb, void *arg)
{
	char buf[1 << 15];
	struct mnl_socket *nl = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC);
	struct nlmsghdr *q = mnl_nlmsg_put_header(buf);
	int r = MNL_CB_OK, e = -EIO;
	ssize_t n;

	if (!nl)
		return e;
	q->nlmsg_type = type;
	q->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	memcpy(mnl_nlmsg_put_extra_header(q, size), header, size);
	n = mnl_socket_sendto(nl, q, q->nlmsg_len);
	while (n > 0 && r == MNL_CB_OK && (n = mnl_socket_recvfrom(nl, buf, sizeof(buf))) > 0) {
		r = mnl_cb_run(buf, (size_t)n, 0, 0, cb, arg);
		e = r == MNL_CB_OK ? -EIO : r == MNL_CB_STOP ? 0 : -errno;
	}
	mnl_socket_close(nl);
	return e;
}

/* --- filters of clsact --- */

/*
 * Filters outlive the process that attaches them.  Their handle tells those of one daemon from all
 * others.  So the next daemon puts its programs in place of the old ones, and `culvert graft
 * --remove` leaves none.  The qdisc stays: somebody else may be about to use it.
 *
 * The privileged process takes an ifindex and the kind of the frames from the daemon, and no more.
 * Any values can only attach our own programs to some interface, or remove our filters everywhere.
 */

/* Not what others pick by default. */
#define PRIORITY 7

static const enum bpf_tc_attach_point points[HOOKS] = { BPF_TC_INGRESS, BPF_TC_EGRESS };

static int clsact_note_other(const struct nlmsghdr *h, void *arg)
{
	const struct tcmsg *tc = mnl_nlmsg_get_payload(h);
	bool *found = arg;

	*found = *found ||
		 (h->nlmsg_type == RTM_NEWTFILTER && TC_H_MAJ(tc->tcm_info) >> 16 != PRIORITY);
	return MNL_CB_OK;
}

/*
 * Others have tc filters at the ingress of IFINDEX, and translated packets would miss these
 * filters.  Needs no privilege.
 */
static bool clsact_has_others(unsigned int ifindex)
{
	const struct tcmsg tc = { .tcm_ifindex = (int)ifindex,
				  .tcm_parent = TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS) };
	bool found = false;

	return attach_dump(RTM_GETTFILTER, &tc, sizeof(tc), clsact_note_other, &found) == -EIO ||
	       found;
}

/* Remove our filters from IFINDEX, if there are any. */
static int clsact_detach(const struct clsact *c, unsigned int ifindex)
{
	int r = 0;

	for (int hook = 0; hook < HOOKS; hook++) {
		LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = points[hook]);
		LIBBPF_OPTS(bpf_tc_opts, opts, .handle = c->handle, .priority = PRIORITY);

		if (bpf_tc_detach(&at, &opts) == -EPERM) /* else there is none */
			r = -EPERM;
	}
	return r;
}

/* The descriptor of a program, or -1: there is none. */
static int attach_program(const struct clsact *c, enum graft_link link, enum hook hook)
{
	if (link == GRAFT_LINK_PORT && hook == HOOK_OUT)
		return -1;
	return c->programs[link != GRAFT_LINK_BARE][hook];
}

static int clsact_attach(const struct clsact *c, unsigned int ifindex, enum graft_link link)
{
	LIBBPF_OPTS(bpf_tc_hook, both, .ifindex = (int)ifindex,
		    .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	int r = bpf_tc_hook_create(&both);

	r = r == -EEXIST ? 0 : r;
	for (int hook = 0; !r && hook < HOOKS; hook++) {
		int program = attach_program(c, link, hook);
		LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = points[hook]);
		LIBBPF_OPTS(bpf_tc_opts, opts, .prog_fd = program, .handle = c->handle,
			    .priority = PRIORITY, .flags = BPF_TC_F_REPLACE);

		r = program < 0 ? 0 : bpf_tc_attach(&at, &opts);
	}
	if (r)
		clsact_detach(c, ifindex);
	return r;
}

/* All interfaces: one without an address may have had one under an earlier daemon. */
static int clsact_remove_all(const struct clsact *c)
{
	struct if_nameindex *all = if_nameindex();
	int r = all ? 0 : -errno;

	for (const struct if_nameindex *i = all; i && i->if_index; i++)
		r = clsact_detach(c, i->if_index) ?: r;
	if (all)
		if_freenameindex(all);
	return r;
}

int clsact_do(const struct clsact *c, unsigned int ifindex, enum graft_link link)
{
	if (c->ask)
		return c->ask(c->arg, ifindex, link);
	return ifindex ? clsact_attach(c, ifindex, link) : clsact_remove_all(c);
}

/* Others have removed a filter of ours from IFINDEX, or the qdisc.  Needs no privilege. */
static bool clsact_is_lost(const struct clsact *c, unsigned int ifindex, enum graft_link link)
{
	bool lost = false;

	for (int hook = 0; hook < HOOKS && attach_program(c, link, hook) >= 0; hook++) {
		LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = points[hook]);
		LIBBPF_OPTS(bpf_tc_opts, opts, .handle = c->handle, .priority = PRIORITY);
		int r = bpf_tc_query(&at, &opts);

		lost = lost || r == -ENOENT || r == -EINVAL; /* no filter; no qdisc */
	}
	return lost;
}

/* --- links of TCX --- */

/* enum bpf_attach_type; older headers do not name them. */
#define TCX_INGRESS 46
#define TCX_EGRESS 47

struct graft_attachment {
	LIST_ENTRY(graft_attachment) in_all;
	unsigned int ifindex;
	enum graft_link link;
	uint32_t role;    /* as bridge_role_of() says */
	bool returned;    /* only for sessions that have returned */
	int links[HOOKS]; /* of TCX; -1: none */
};

#define LINK_NAME 32

static const char *tcx_link_name(unsigned int ifindex, enum hook hook, char name[LINK_NAME])
{
	snprintf(name, LINK_NAME, "link_%u_%s", ifindex, hook == HOOK_IN ? "in" : "out");
	return name;
}

/* Put PROGRAM into an earlier daemon's link NAME.  Returns a descriptor; below 0: no link. */
static int tcx_renew(const struct graft_attachments *as, const char *name, int program)
{
	int fd = graft_pins_get(as->pins, name);

	if (fd < 0 || !bpf_link_update(fd, program, NULL))
		return fd;
	close(fd); /* its interface is gone, and another one has the number now */
	return -1;
}

static int tcx_attach(const struct graft_attachments *as, struct graft_attachment *a)
{
	char name[LINK_NAME];
	int r = 0;

	for (int hook = 0; !r && hook < HOOKS; hook++) {
		int program = attach_program(&as->clsact, a->link, hook);
		int type = hook == HOOK_IN ? TCX_INGRESS : TCX_EGRESS;
		int fd;

		if (program < 0)
			continue;
		fd = tcx_renew(as, tcx_link_name(a->ifindex, hook, name), program);
		if (fd < 0) {
			fd = bpf_link_create(program, (int)a->ifindex, (enum bpf_attach_type)type,
					     NULL);
			r = fd < 0 ? fd : graft_pins_put(as->pins, name, fd);
		}
		a->links[hook] = fd;
	}
	return r;
}

/* Close A; with KEEP, its programs stay where they are pinned. */
static void attachment_close(const struct graft_attachments *as, struct graft_attachment *a,
			     bool keep)
{
	char name[LINK_NAME];

	for (int hook = 0; hook < HOOKS; hook++) {
		if (!keep)
			graft_pins_remove(as->pins, tcx_link_name(a->ifindex, hook, name));
		if (a->links[hook] >= 0)
			close(a->links[hook]);
	}
	free(a);
}

/* A link of A has lost its interface, or others have detached it.  Needs no privilege. */
static bool tcx_is_lost(const struct graft_attachment *a)
{
	bool lost = false;

	for (int hook = 0; hook < HOOKS; hook++) {
		struct bpf_link_info info = { 0 };
		uint32_t len = sizeof(info);

		/* older headers do not name `tcx`, whose ifindex is at the same place */
		lost = lost || (!bpf_obj_get_info_by_fd(a->links[hook], &info, &len) &&
				info.xdp.ifindex != a->ifindex);
	}
	return lost;
}

bool graft_attach_is_lost(const struct graft_attachments *as)
{
	const struct graft_attachment *a;

	LIST_FOREACH(a, &as->all, in_all)
		if (!as->is_clsact && tcx_is_lost(a))
			return true;
	return false;
}

/* --- interfaces --- */

/*
 * Note whether sessions may be grafted at A, NAME: not if others decide about packets there as
 * well.  True: the answer has changed.
 */
static bool attachment_set_use(struct graft_attachments *as, const struct graft_attachment *a,
			       const char *name)
{
	bool filtered = clsact_has_others(a->ifindex);
	uint32_t was = 0, is = a->role | (filtered || a->returned ? 0 : GRAFT_IF_USED);
	bool known = !bpf_map_lookup_elem(as->interfaces, &a->ifindex, &was);

	if (known && is == was)
		return false;
	bpf_map_update_elem(as->interfaces, &a->ifindex, &is, BPF_ANY);
	if (filtered)
		log_warning("graft: no session is grafted on %s: others have filters there (tc "
			    "filter show dev %s ingress)",
			    name, name);
	return true;
}

#define IP6GRE 823 /* ARPHRD_IP6GRE; the C library's header does not name it */

/* The kernel puts packets for such a device into IP packets. */
static bool link_is_tunnel(unsigned short type)
{
	return type == ARPHRD_TUNNEL || type == ARPHRD_TUNNEL6 || type == ARPHRD_SIT ||
	       type == ARPHRD_IPGRE || type == IP6GRE;
}

/* Frames of TYPE begin with IP. */
static bool link_is_bare(unsigned short type)
{
	return type == ARPHRD_NONE || type == ARPHRD_PPP || link_is_tunnel(type);
}

/*
 * A session may leave by USEFUL interfaces, or enter by one with a ROLE (bridge_role_of()).  Any
 * other interface gets the programs for returned sessions: if a route moves there, their packets
 * must be shifted.
 */
static int attachment_open(struct graft_attachments *as, unsigned int ifindex, const char *name,
			   unsigned short type, bool useful, uint32_t role)
{
	bool ethernet = type == ARPHRD_ETHER || type == ARPHRD_LOOPBACK;
	struct graft_attachment *a;
	int r;

	if (!ethernet && !link_is_bare(type))
		return -ENOTSUP;
	a = allocated(malloc(sizeof(*a)));
	*a = (struct graft_attachment){
		.ifindex = ifindex,
		.link = role & GRAFT_IF_PORT ? GRAFT_LINK_PORT :
			ethernet             ? GRAFT_LINK_ETHERNET :
					       GRAFT_LINK_BARE,
		.role = role,
		.returned = !(useful || role) || link_is_tunnel(type),
		.links = { -1, -1 },
	};
	r = as->is_clsact ? clsact_do(&as->clsact, ifindex, a->link) : tcx_attach(as, a);
	if (r) {
		attachment_close(as, a, false);
		return r;
	}
	attachment_set_use(as, a, name);
	LIST_INSERT_HEAD(&as->all, a, in_all);
	return 0;
}

/*
 * May a session have an address of NAME?  Link-local ones are not unique, so they do not count.
 * *RET_TYPE is ARPHRD_*; interfaces without a link address, such as tun, are listed without a type.
 */
static bool link_is_useful(const struct ifaddrs *list, const char *name, unsigned short *ret_type)
{
	bool useful = false;

	*ret_type = ARPHRD_NONE;
	for (; list; list = list->ifa_next) {
		const struct sockaddr *sa = list->ifa_addr;
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

		if (!sa || strcmp(list->ifa_name, name))
			continue;
		if (sa->sa_family == AF_PACKET)
			*ret_type = ((const struct sockaddr_ll *)sa)->sll_hatype;
		else if (list->ifa_flags & IFF_UP &&
			 (sa->sa_family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)))
			useful = true;
	}
	return useful;
}

struct port {
	uint32_t ifindex, bridge;
};

/* The ports of all bridges; none, unless programs are wanted there. */
struct ports {
	struct port *all; /* owned */
	size_t n;
};

static int bridge_note_port(const struct nlmsghdr *h, void *arg)
{
	const struct ifinfomsg *link = mnl_nlmsg_get_payload(h);
	struct port port = { .ifindex = (uint32_t)link->ifi_index };
	const struct nlattr *a, *info;
	struct ports *ports = arg;
	bool is_one = false;

	mnl_attr_for_each(a, h, sizeof(*link)) {
		if (mnl_attr_get_type(a) == IFLA_MASTER)
			port.bridge = mnl_attr_get_u32(a);
		if (mnl_attr_get_type(a) != IFLA_LINKINFO)
			continue;
		mnl_attr_for_each_nested(info, a)
			if (mnl_attr_get_type(info) == IFLA_INFO_SLAVE_KIND)
				is_one = !strcmp(mnl_attr_get_str(info), "bridge");
	}
	if (is_one) {
		ports->all = allocated(reallocarray(ports->all, ports->n + 1, sizeof(port)));
		ports->all[ports->n++] = port;
	}
	return MNL_CB_OK;
}

#define DUMPS 8 /* a dump is interrupted if interfaces come or go meanwhile */

static struct ports bridge_list_ports(const struct graft_attachments *as)
{
	const struct ifinfomsg any = { 0 };
	struct ports ports = { 0 };

	for (int i = 0, r = -EINTR; as->at_ports && i < DUMPS && r == -EINTR; i++) {
		ports.n = 0;
		r = attach_dump(RTM_GETLINK, &any, sizeof(any), bridge_note_port, &ports);
	}
	return ports;
}

/* GRAFT_IF_PORT, GRAFT_IF_BRIDGE, or 0. */
static uint32_t bridge_role_of(const struct ports *ports, uint32_t ifindex)
{
	uint32_t role = 0;

	for (size_t i = 0; i < ports->n; i++)
		role |= (ports->all[i].ifindex == ifindex ? GRAFT_IF_PORT : 0) |
			(ports->all[i].bridge == ifindex ? GRAFT_IF_BRIDGE : 0);
	return role;
}

/*
 * Forget interfaces that are not in LIST any more, those where others have removed filters, and
 * those that have become a port or are none any more.
 */
static void attach_forget_gone(struct graft_attachments *as, const struct if_nameindex *list,
			       const struct ports *ports)
{
	struct graft_attachment *a, *next;

	for (a = LIST_FIRST(&as->all); a; a = next) {
		const struct if_nameindex *i = list;

		next = LIST_NEXT(a, in_all);
		while (i->if_index && i->if_index != a->ifindex)
			i++;
		if (i->if_index &&
		    (a->link == GRAFT_LINK_PORT) ==
			    !!(bridge_role_of(ports, a->ifindex) & GRAFT_IF_PORT) &&
		    !(as->is_clsact ? clsact_is_lost(&as->clsact, a->ifindex, a->link) :
				      tcx_is_lost(a)))
			continue;
		bpf_map_delete_elem(as->interfaces, &a->ifindex);
		LIST_REMOVE(a, in_all);
		attachment_close(as, a, false);
	}
}

int graft_attach_follow(struct graft_attachments *as)
{
	struct if_nameindex *all = if_nameindex();
	struct ifaddrs *list = NULL;
	int changed = 0, r = !all || getifaddrs(&list) ? -errno : 0;
	struct ports ports = bridge_list_ports(as);

	if (all && !r)
		attach_forget_gone(as, all, &ports);
	for (const struct if_nameindex *i = all; i && list && i->if_index; i++) {
		struct graft_attachment *a;
		unsigned short type;
		bool useful = link_is_useful(list, i->if_name, &type);
		uint32_t role = bridge_role_of(&ports, i->if_index);
		int e;

		LIST_FOREACH(a, &as->all, in_all)
			if (a->ifindex == i->if_index)
				break;
		if (a) {
			a->role = role;
			a->returned = a->returned && (!(useful || role) || link_is_tunnel(type));
			changed += attachment_set_use(as, a, i->if_name);
			continue;
		}
		if ((!useful && !role && !link_is_bare(type) && i->if_index != as->stray) ||
		    (as->on_loopback && type != ARPHRD_LOOPBACK))
			continue;
		e = attachment_open(as, i->if_index, i->if_name, type, useful, role);
		if (e) {
			log_limited(LOG_INFO, "graft: not on %s: %s", i->if_name, strerror(-e));
			r = e;
		}
		changed += !e;
	}
	freeifaddrs(list);
	free(ports.all);
	if (all)
		if_freenameindex(all);
	return LIST_EMPTY(&as->all) ? r : changed;
}

void graft_attach_choose(struct graft_attachments *as)
{
	int program = as->clsact.programs[1][HOOK_IN];

	/* no interface has that number */
	as->is_clsact = bpf_link_create(program, INT_MAX, TCX_INGRESS, NULL) == -EINVAL;
}

void graft_attach_close(struct graft_attachments *as, bool keep)
{
	int r;

	while (!LIST_EMPTY(&as->all)) {
		struct graft_attachment *a = LIST_FIRST(&as->all);

		LIST_REMOVE(a, in_all);
		attachment_close(as, a, keep);
	}
	r = as->is_clsact && !keep ? clsact_do(&as->clsact, 0, GRAFT_LINK_BARE) : 0;
	if (r)
		log_warning("graft: the packet programs stay at the interfaces: %s", strerror(-r));
}
