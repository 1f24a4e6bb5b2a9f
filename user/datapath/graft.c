// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Slots.  A slot that was given back is used again only after all others: until then its tuples stay
 * in `flows`, and what comes late is translated (CLOSED), or shifted (RETURNED).  The offer program
 * removes them when the slot gets its next session.
 *
 * Pins.  Maps and links are pinned in a folder of a BPF file system, so the programs go on when the
 * daemon ends.  The next one loads its own programs, gives them the old maps, and puts them into the
 * links in place of the old ones.  A daemon locks its folder.  The folder's name has the number of the
 * layout: what another version has left is left alone, see docs/operations.md.
 *
 * Attachment.  A link of TCX (Linux 6.6) goes away with the last reference.  Who has a program may
 * attach it, without a capability: so interfaces that come later are no matter of privilege.  Before
 * there is a filter of clsact at each hook: graft_clsact.c.
 */
#include "datapath/graft.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/if_ether.h>
#include <linux/magic.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"
#include "bpf/graft.skel.h"
#include "config/option.h"
#include "datapath/graft_clsact.h"
#include "datapath/tcp.h"

SYSCALLS_NEEDED(
	BPF_IF(PART_GRAFT, BPF_PROG_TEST_RUN),
	SYSCALL_IF(PART_GRAFT, unlinkat),
	/* interfaces that come later */
	BPF_IF(PART_GRAFT, BPF_LINK_CREATE), BPF_IF(PART_GRAFT, BPF_LINK_UPDATE),
	BPF_IF(PART_GRAFT, BPF_OBJ_PIN), BPF_IF(PART_GRAFT, BPF_OBJ_GET),
	BPF_IF(PART_GRAFT, BPF_MAP_LOOKUP_ELEM), BPF_IF(PART_GRAFT, BPF_MAP_UPDATE_ELEM),
	BPF_IF(PART_GRAFT, BPF_MAP_DELETE_ELEM),
	SYSCALL_IF(PART_GRAFT, unlink),
	SYSCALL_IF(PART_GRAFT, socket, SYSCALL_ARG(0, AF_NETLINK)),
	SYSCALL_IF(PART_GRAFT, bind),
	SETSOCKOPT_IF(PART_GRAFT, SOL_NETLINK, NETLINK_EXT_ACK),
	SYSCALL_IF(PART_GRAFT, getsockname),
	SYSCALL_IF(PART_GRAFT, sendto),
	SYSCALL_IF(PART_GRAFT, recvmsg),
	SYSCALL_IF(PART_GRAFT, close));

/* enum bpf_attach_type; older headers do not name them. */
#define TCX_INGRESS 46
#define TCX_EGRESS 47

/* TIME_WAIT, and then some: so long are packets of a closed session that is back shifted. */
#define RETURNED_MS 70000

#define RING_SIZE (256U * 1024)
_Static_assert(WORKERS_MAX <= GRAFT_WORKERS, "each worker has a time in graft_woken_ns");

struct attachment {
	struct attachment *next;
	unsigned int ifindex;
	int links[HOOKS]; /* of TCX; -1: none */
};

struct slot {
	uint32_t next;     /* in the queue of free slots */
	uint32_t put_ms;   /* when it was given back (low half) */
	uint32_t asked;    /* graft_ways when its sockets were asked last */
	bool probing;      /* they were, and are to be as they were before */
	uint8_t judged;    /* so often since, without an answer */
};

struct grafts {
	struct graft *skel;
	struct graft_entry *all; /* by slot, mapped */
	size_t all_size;
	int offer;         /* the program */
	bool on_loopback;
	char *pins;        /* folder; NULL: nothing is pinned */
	uid_t uid;         /* to be the owner of what is pinned; -1: we are */
	int top;           /* the folder that it is in, for the time when there is no root any more */
	int locked;        /* the folder itself */
	struct attachment *attachments;
	int interfaces; /* descriptor of the map */
	struct clsact clsact;
	bool is_clsact;    /* else it is TCX */
	int (*revived)[2]; /* sockets, by slot; NULL: there were no sessions */
	uint32_t routes, policies; /* as seen last */
	_Atomic bool doubtful; /* a session was, since the main thread has looked */
	struct bpf_rings rings;

	pthread_mutex_t lock; /* of the queue; never taken on the payload path */
	struct slot *slots;
	uint32_t first, last; /* of free slots, oldest first */
	unsigned int n_slots, n_free;
};

/* --- names --- */

const char *graft_refusal_name(enum graft_refusal r)
{
	static const char *const names[GRAFT_REFUSALS] = {
		[GRAFT_OK] = "ok", [GRAFT_NO_SOCKET] = "socket not found",
		[GRAFT_CLOSING] = "closing", [GRAFT_TIMESTAMPS] = "timestamps differ",
		[GRAFT_MSS] = "mss", [GRAFT_ECN] = "ecn", [GRAFT_MPTCP] = "mptcp",
		[GRAFT_INTERFACE] = "interface not supported", [GRAFT_IN_HAND] = "never quiet",
		[GRAFT_BAD_REQUEST] = "slot in use", [GRAFT_NO_SLOT] = "no slot",
		[GRAFT_WINDOW] = "small window", [GRAFT_XFRM] = "ipsec",
		[GRAFT_ENCAP] = "route with encapsulation", [GRAFT_PROBING] = "tcp_mtu_probing",
		[GRAFT_FRAGMENTS] = "fragments", [GRAFT_HEADERS] = "ip options",
		[GRAFT_TOO_BIG] = "too big, without df",
	};

	return (unsigned int)r < GRAFT_REFUSALS && names[r] ? names[r] : "?";
}

const char *graft_look_name(enum graft_look l)
{
	static const char *const names[GRAFT_LOOKS] = {
		[GRAFT_LOOK_OK] = "no packet seen yet", [GRAFT_LOOK_KIND] = "closing",
		[GRAFT_LOOK_CLOSED] = "closing", [GRAFT_LOOK_ORDER] = "out of order",
		[GRAFT_LOOK_BUSY] = "never quiet", [GRAFT_LOOK_TIMESTAMP] = "no timestamp",
		[GRAFT_LOOK_WINDOW] = "slow receiver",
		[GRAFT_LOOK_UNSEEN] = "packets of an end not seen", [GRAFT_LOOK_WAY] = "route not seen yet",
	};

	return (unsigned int)l < GRAFT_LOOKS && names[l] ? names[l] :
	       graft_refusal_name((enum graft_refusal)(l - GRAFT_LOOKS));
}

uint32_t graft_tag(const char *name)
{
	uint32_t hash = 2166136261; /* FNV-1a */

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619;
	return hash;
}

/* A session that was left, and that needs its slot: its ends still talk, or have just ended. */
static bool is_left(const struct graft_entry *e)
{
	switch (__atomic_load_n(&e->state, __ATOMIC_ACQUIRE) & GRAFT_STATE_MASK) {
	case GRAFT_ACTIVE:
	case GRAFT_RETURNING:
	case GRAFT_LOCKED_2:
	case GRAFT_DONE:
		return true;
	default:
		return false;
	}
}

/* --- pins --- */

/* NAME in the folder GS->pins; "": the folder itself. */
static const char *pin_path(const struct grafts *gs, const char *name, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/%s", gs->pins, name);
	return path;
}

static const char *link_path(const struct grafts *gs, unsigned int ifindex, enum hook hook,
			     char path[PATH_MAX])
{
	char name[32];

	snprintf(name, sizeof(name), "link_%u_%s", ifindex, hook == HOOK_IN ? "in" : "out");
	return pin_path(gs, name, path);
}

/* The same, as gs->top sees it. */
static const char *from_top(const struct grafts *gs, const char *path)
{
	return path + (strrchr(gs->pins, '/') + 1 - gs->pins);
}

#define PINNED_MAPS 4

/* The maps that outlive the daemon, that of sessions first, until NULL. */
static struct bpf_map *pinned_map(const struct grafts *gs, int i)
{
	struct bpf_map *const maps[PINNED_MAPS] = { gs->skel->maps.grafts, gs->skel->maps.flows,
					 gs->skel->maps.interfaces, gs->skel->maps.graft_rings };

	return i < PINNED_MAPS ? maps[i] : NULL;
}

/* Pins belong to the account, which may be what starts the next daemon. */
static int give_away(const struct grafts *gs, const char *path)
{
	return gs->uid == (uid_t)-1 ? 0 : chown(path, gs->uid, (gid_t)-1);
}

/* Make the folder AT for UID, who alone may use what is in it. */
static int make_folder(const char *at, uid_t uid)
{
	struct stat st;

	if ((mkdir(at, 0700) && errno != EEXIST) || lstat(at, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode)) /* a link may lead anywhere */
		return -ENOTDIR;
	if ((st.st_uid != uid && chown(at, uid, (gid_t)-1)) || (st.st_mode & 077 && chmod(at, 0700)))
		return -errno;
	return 0;
}

/* Mount the BPF file system where bpftool and tc expect it, if it is missing there, as they do. */
static int mount_bpf(const char *top)
{
	static const char usual[] = "/sys/fs/bpf";
	struct statfs fs;

	if (!strncmp(top, usual, strlen(usual)) && !statfs(usual, &fs) && fs.f_type != BPF_FS_MAGIC &&
	    mount("bpf", usual, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700"))
		return -EMEDIUMTYPE;
	return 0;
}

/* Make the folder of pins, and the one that it is in; if that cannot be, there are no pins: -errno. */
static int open_pins(struct grafts *gs, const struct graft_limits *limits)
{
	char *top = strdup(limits->pins), *slash = top ? strrchr(top, '/') : NULL;
	struct statfs fs;
	int r = -EINVAL;

	if (slash && slash != top) {
		*slash = '\0';
		r = mount_bpf(top) ?: make_folder(top, limits->uid);
		if (!r && (statfs(top, &fs) || fs.f_type != BPF_FS_MAGIC))
			r = -EMEDIUMTYPE; /* not on a BPF file system */
	}
	if (!r && asprintf(&gs->pins, "%s_%d", limits->pins, GRAFT_LAYOUT) < 0)
		r = -ENOMEM;
	r = r ?: make_folder(gs->pins, limits->uid);
	if (!r && ((gs->top = open(top, O_DIRECTORY | O_PATH | O_CLOEXEC)) < 0 ||
		   (gs->locked = open(gs->pins, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
		   flock(gs->locked, LOCK_EX | LOCK_NB)))
		r = -errno;
	if (r) {
		free(gs->pins);
		gs->pins = NULL;
	}
	free(top);
	return r;
}

/* What another daemon has left of interfaces that are gone stays, and so does the folder. */
static void remove_folder(struct grafts *gs)
{
	const char *name = strrchr(gs->pins, '/') + 1;
	char path[PATH_MAX];
	struct bpf_map *map;

	for (int i = 0; (map = pinned_map(gs, i)); i++)
		unlinkat(gs->top, from_top(gs, pin_path(gs, bpf_map__name(map), path)), 0);
	for (const struct attachment *a = gs->attachments; a; a = a->next)
		for (int hook = 0; hook < HOOKS; hook++)
			unlinkat(gs->top, from_top(gs, link_path(gs, a->ifindex, hook, path)), 0);
	if (unlinkat(gs->top, name, AT_REMOVEDIR))
		log_warning("graft: %s is not removed: %s", gs->pins, strerror(errno));
}

/* A map that was left is FD: is it what MAP would be, if perhaps of another size? */
static bool is_like(const struct bpf_map *map, int fd)
{
	struct bpf_map_info info = { 0 };
	uint32_t len = sizeof(info);

	return !bpf_obj_get_info_by_fd(fd, &info, &len) && info.type == bpf_map__type(map) &&
	       info.key_size == bpf_map__key_size(map) && info.value_size == bpf_map__value_size(map);
}

/*
 * Use the maps that were left, if all are there; they keep their size.  Returns 1; 0: there are none to use;
 * -errno: they cannot be had, and are not ours to remove.
 */
static int reuse_maps(struct grafts *gs)
{
	int fds[PINNED_MAPS] = { -1, -1, -1, -1 }, r = 1;
	char path[PATH_MAX];
	struct bpf_map *map;

	for (int i = 0; r > 0 && (map = pinned_map(gs, i)); i++) {
		fds[i] = bpf_obj_get(pin_path(gs, bpf_map__name(map), path));
		if (fds[i] < 0)
			r = errno == ENOENT ? 0 : -errno;
		else if (!is_like(map, fds[i]))
			r = 0;
	}
	for (int i = 0; r > 0 && (map = pinned_map(gs, i)); i++)
		r = bpf_map__reuse_fd(map, fds[i]) ?: 1;
	for (int i = 0; i < PINNED_MAPS; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	return r;
}

static int pin_maps(struct grafts *gs)
{
	char path[PATH_MAX];
	struct bpf_map *map;
	int r = 0;

	for (int i = 0; !r && (map = pinned_map(gs, i)); i++) {
		unlink(pin_path(gs, bpf_map__name(map), path));
		r = bpf_obj_pin(bpf_map__fd(map), path);
		if (!r && give_away(gs, path))
			r = -errno;
	}
	return r;
}

/* --- interfaces --- */

/* Put PROG into the link at HOOK that was left, if there is one.  Returns its descriptor, or -1. */
static int renew_link(const struct grafts *gs, unsigned int ifindex, enum hook hook, int prog)
{
	char path[PATH_MAX];
	int fd = gs->pins ? bpf_obj_get(link_path(gs, ifindex, hook, path)) : -1;

	if (fd >= 0 && bpf_link_update(fd, prog, NULL)) {
		close(fd); /* its interface is gone, and another one has the number now */
		unlink(path);
		fd = -1;
	}
	return fd < 0 ? -1 : fd;
}

static int attach_tcx(const struct grafts *gs, struct attachment *a, const int progs[HOOKS])
{
	char path[PATH_MAX];

	for (int hook = 0; hook < HOOKS; hook++) {
		enum bpf_attach_type type = (enum bpf_attach_type)(TCX_INGRESS + hook);
		int fd = renew_link(gs, a->ifindex, hook, progs[hook]), r = 0;

		if (fd < 0) {
			fd = bpf_link_create(progs[hook], (int)a->ifindex, type, NULL);
			if (fd >= 0 && gs->pins)
				r = bpf_obj_pin(fd, link_path(gs, a->ifindex, hook, path)) ?:
				    (give_away(gs, path) ? -errno : 0);
		}
		if (fd < 0)
			return fd;
		a->links[hook] = fd;
		if (r)
			return r;
	}
	return 0;
}

/* Close A; programs stay where they are pinned, or filters. */
static void detach(struct attachment *a)
{
	for (int hook = 0; hook < HOOKS; hook++)
		if (a->links[hook] >= 0)
			close(a->links[hook]);
	free(a);
}

/*
 * Say whether sessions may be grafted at A, NAME: not where others decide about packets as well.  True: it is
 * different now.
 */
static bool set_use(struct grafts *gs, const struct attachment *a, const char *name)
{
	bool filtered = clsact_has_others(a->ifindex);
	uint32_t was = 0, is = filtered ? 0 : GRAFT_IF_USED;
	bool known = !bpf_map_lookup_elem(gs->interfaces, &a->ifindex, &was);

	if (known && is == was)
		return false;
	bpf_map_update_elem(gs->interfaces, &a->ifindex, &is, BPF_ANY);
	if (filtered)
		log_warning("graft: no session is grafted on %s: others have filters there (tc filter show "
			    "dev %s ingress)", name, name);
	return true;
}

static int attach(struct grafts *gs, unsigned int ifindex, const char *name, unsigned short type)
{
	bool ethernet = type == ARPHRD_ETHER || type == ARPHRD_LOOPBACK;
	struct attachment *a;
	int r;

	if (!ethernet && type != ARPHRD_NONE && type != ARPHRD_PPP) /* frames of these begin with IP */
		return -ENOTSUP;
	a = allocated(malloc(sizeof(*a)));
	*a = (struct attachment){ .ifindex = ifindex, .links = { -1, -1 } };
	r = gs->is_clsact ? clsact_attach(&gs->clsact, ifindex, ethernet) :
			    attach_tcx(gs, a, gs->clsact.programs[ethernet]);
	if (r) {
		detach(a);
		return r;
	}
	set_use(gs, a, name);
	a->next = gs->attachments;
	gs->attachments = a;
	return 0;
}

static const struct attachment *attachment_of(const struct grafts *gs, unsigned int ifindex)
{
	const struct attachment *a = gs->attachments;

	while (a && a->ifindex != ifindex)
		a = a->next;
	return a;
}

/* A session may have an address of I.  Link-local ones are not unique, so they do not count. */
static bool is_useful(const struct ifaddrs *i)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)i->ifa_addr;

	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
		return false;
	return i->ifa_addr->sa_family == AF_INET ||
	       (i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr));
}

static bool has_address(const struct ifaddrs *list, const char *name)
{
	while (list && (strcmp(list->ifa_name, name) || !is_useful(list)))
		list = list->ifa_next;
	return list;
}

/* ARPHRD_*.  Interfaces without an address of their own, such as tun, are listed without a type. */
static unsigned short type_of(const struct ifaddrs *list, const char *name)
{
	for (; list; list = list->ifa_next)
		if (list->ifa_addr && list->ifa_addr->sa_family == AF_PACKET &&
		    !strcmp(list->ifa_name, name))
			return ((const struct sockaddr_ll *)list->ifa_addr)->sll_hatype;
	return ARPHRD_NONE;
}

static bool is_listed(const struct if_nameindex *list, unsigned int ifindex)
{
	while (list->if_index && list->if_index != ifindex)
		list++;
	return list->if_index;
}

/* Forget interfaces that are not in LIST any more, and those where others have removed filters. */
static void forget_gone(struct grafts *gs, const struct if_nameindex *list)
{
	char path[PATH_MAX];
	struct attachment **at = &gs->attachments, *a;

	while ((a = *at)) {
		if (is_listed(list, a->ifindex) &&
		    !(gs->is_clsact && clsact_is_lost(&gs->clsact, a->ifindex))) {
			at = &a->next;
			continue;
		}
		bpf_map_delete_elem(gs->interfaces, &a->ifindex);
		for (int hook = 0; gs->pins && hook < HOOKS; hook++)
			unlinkat(gs->top, from_top(gs, link_path(gs, a->ifindex, hook, path)), 0);
		*at = a->next;
		detach(a);
	}
}

int grafts_follow_interfaces(struct grafts *gs)
{
	struct if_nameindex *all = if_nameindex();
	struct ifaddrs *list = NULL;
	int changed = 0, r = !all || getifaddrs(&list) ? -errno : 0;

	if (!r)
		forget_gone(gs, all);
	for (const struct if_nameindex *i = all; list && i->if_index; i++) {
		const struct attachment *a = attachment_of(gs, i->if_index);
		unsigned short type = type_of(list, i->if_name);
		int e;

		if (a) {
			changed += set_use(gs, a, i->if_name);
			continue;
		}
		if (!has_address(list, i->if_name) || (gs->on_loopback && type != ARPHRD_LOOPBACK))
			continue;
		e = attach(gs, i->if_index, i->if_name, type);
		if (e)
			log_limited(LOG_INFO, "graft: not on %s: %s", i->if_name, strerror(-e));
		changed += !e;
		r = e ?: r;
	}
	freeifaddrs(list);
	if (all)
		if_freenameindex(all);
	return gs->attachments ? changed : r;
}

/* --- all of it --- */

static uint32_t raw_state(const struct grafts *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].state, __ATOMIC_ACQUIRE);
}

/*
 * All slots but those of sessions that were left.  What a daemon had only offered has lost its
 * sockets; what was to go back to its sockets has none to go back to.
 */
static void fill_queue(struct grafts *gs)
{
	uint32_t *end = &gs->first;

	gs->slots = allocated(calloc(gs->n_slots, sizeof(*gs->slots)));
	for (uint32_t i = 0; i < gs->n_slots; i++) {
		uint32_t state = raw_state(gs, i) & GRAFT_STATE_MASK;

		if (state == GRAFT_OFFERED || state == GRAFT_LOCKED)
			graft_withdraw(gs, i);
		if (state == GRAFT_RETURNING)
			graft_return(gs, i, false);
		if (is_left(&gs->all[i]))
			continue;
		gs->slots[i].put_ms = (uint32_t)clock_ms();
		*end = gs->last = i;
		end = &gs->slots[i].next;
		gs->n_free++;
	}
}

static uint32_t ways_of(const struct grafts *gs, uint32_t slot, int side)
{
	return __atomic_load_n(&gs->all[slot].side[side].way.ways, __ATOMIC_ACQUIRE);
}

/* Another daemon has counted the ways of sessions that were left. */
static void begin_ways(struct grafts *gs)
{
	uint32_t ways = 1, none = 0;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++)
		for (int side = 0; side < 2; side++)
			if ((int32_t)(ways_of(gs, slot, side) - ways) > 0)
				ways = ways_of(gs, slot, side);
	gs->skel->bss->graft_ways = ways;
	gs->skel->bss->graft_ways_least = ways - INT_MAX / 2;
	if (bpf_map_lookup_elem(gs->interfaces, &none, &gs->policies))
		gs->policies = 0;
}

static int set_sizes(struct grafts *gs, const struct graft_limits *limits)
{
	return bpf_map__set_max_entries(gs->skel->maps.grafts, limits->slots) ?:
	       bpf_map__set_max_entries(gs->skel->maps.flows, limits->slots * 2) ?:
	       bpf_map__set_max_entries(gs->skel->maps.graft_rings, WORKERS_MAX);
}

static int map_grafts(struct grafts *gs)
{
	unsigned int n = bpf_map__max_entries(gs->skel->maps.grafts);
	size_t size = sizeof(struct graft_entry) * n;
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
		       bpf_map__fd(gs->skel->maps.grafts), 0);

	gs->n_slots = n;
	if (p == MAP_FAILED)
		return -errno;
	gs->all = p;
	gs->all_size = size;
	return 0;
}

#define NAMED (1U << 31) /* of a handle that is no pid */

/*
 * The handle of our filters of clsact.  It follows from the last part of the folder of pins: a service may
 * have its folder elsewhere than `graft --remove`.  Without pins nobody looks for the filters later.
 */
static uint32_t handle_of(const struct grafts *gs)
{
	return gs->pins ? graft_tag(strrchr(gs->pins, '/')) | NAMED : (uint32_t)getpid();
}

/* TCX or clsact: which of them does the kernel have?  No interface has that number. */
static void choose_attachment(struct grafts *gs)
{
	const struct graft *skel = gs->skel;
	const int in = bpf_program__fd(skel->progs.graft_in);

	gs->is_clsact = bpf_link_create(in, INT_MAX, TCX_INGRESS, NULL) == -EINVAL;
	gs->clsact.pinned = gs->pins;
	gs->clsact.handle = handle_of(gs);
	gs->interfaces = bpf_map__fd(skel->maps.interfaces);
	gs->clsact.programs[0][HOOK_IN] = bpf_program__fd(skel->progs.graft_in_l3);
	gs->clsact.programs[0][HOOK_OUT] = bpf_program__fd(skel->progs.graft_out_l3);
	gs->clsact.programs[1][HOOK_IN] = in;
	gs->clsact.programs[1][HOOK_OUT] = bpf_program__fd(skel->progs.graft_out);
}

/* The maps are those that were left, or new ones. */
static int load(struct grafts *gs, const struct graft_limits *limits)
{
	int left = gs->pins && !limits->anew ? reuse_maps(gs) : 0, r;

	if (left < 0)
		return left;
	r = (left ? 0 : set_sizes(gs, limits)) ?: graft__load(gs->skel);
	return r || left || !gs->pins ? r : pin_maps(gs);
}

/* 1: the table that was left is too small, and nothing is in it: open anew. */
static int open_once(const struct graft_limits *limits, struct grafts **ret, char *err, size_t errlen)
{
	struct grafts *gs = allocated(calloc(1, sizeof(*gs)));
	const char *what = "cannot load the packet programs";
	int pins, r;

	gs->on_loopback = limits->on_loopback;
	gs->uid = limits->uid == geteuid() ? (uid_t)-1 : limits->uid;
	gs->top = gs->locked = -1;
	gs->clsact.keeper = -1;
	pthread_mutex_init(&gs->lock, NULL);
	if (log_get_level() < LOG_DEBUG)
		libbpf_set_print(NULL); /* else it writes to stderr */
	gs->skel = graft__open();
	pins = limits->pins ? open_pins(gs, limits) : 0;
	r = gs->skel ? load(gs, limits) : -errno;
	if (!r) {
		gs->offer = bpf_program__fd(gs->skel->progs.graft_offer);
		what = "cannot map the sessions, or create the ring buffers";
		r = map_grafts(gs) ?:
		    bpf_rings_open(&gs->rings, limits->workers, RING_SIZE,
				   bpf_map__fd(gs->skel->maps.graft_rings));
	}
	if (!r && gs->n_slots < limits->slots && !limits->anew) {
		uint32_t none = 0;

		if (!graft_next(gs, &none)) { /* nothing is left that needs a table of that size */
			free(gs->pins);
			gs->pins = NULL; /* they stay */
			grafts_close(gs, true);
			return 1;
		}
		log_warning("graft: %u slots, as the daemon before had, until culvert starts without "
			    "sessions that are left; max-sessions wants %u", gs->n_slots, limits->slots);
	}
	if (!r) {
		fill_queue(gs);
		begin_ways(gs);
		choose_attachment(gs);
		what = "cannot attach the packet programs to any interface";
		r = grafts_follow_interfaces(gs);
		r = r > 0 ? 0 : r;
		gs->uid = (uid_t)-1; /* from now on we may be that account */
	}
	if (r) {
		snprintf(err, errlen, "%s: %s", what, strerror(-r));
		grafts_close(gs, true);
		return r;
	}
	if (pins) /* where nothing can be grafted that is no news */
		log_warning("graft: no session survives the daemon, and if it is killed their ends "
			    "are not told: %s: %s", limits->pins,
			    pins == -EMEDIUMTYPE ? "not on a BPF file system" :
			    pins == -EWOULDBLOCK ? "another daemon uses it" : strerror(-pins));
	*ret = gs;
	return 0;
}

int grafts_open(const struct graft_limits *limits, struct grafts **ret, char *err, size_t errlen)
{
	struct graft_limits anew = *limits;
	int r = open_once(limits, ret, err, errlen);

	anew.anew = true;
	return r > 0 ? open_once(&anew, ret, err, errlen) : r;
}

struct clsact *grafts_clsact(struct grafts *gs)
{
	return gs->is_clsact ? &gs->clsact : NULL;
}

bool grafts_survive(const struct grafts *gs)
{
	return gs->pins;
}

unsigned int grafts_live(const struct grafts *gs)
{
	unsigned int n = 0;

	for (uint32_t i = 0; gs->all && i < gs->n_slots; i++)
		n += is_left(&gs->all[i]) && graft_state(gs, i) != GRAFT_DONE;
	return n;
}

void grafts_close(struct grafts *gs, bool keep)
{
	int r;

	if (!gs)
		return;
	/* what could not be opened is not ours to remove */
	keep = !gs->all || (keep && gs->pins && grafts_live(gs));
	if (gs->pins && !keep)
		remove_folder(gs);
	if (gs->top >= 0)
		close(gs->top);
	if (gs->locked >= 0)
		close(gs->locked);
	while (gs->attachments) {
		struct attachment *a = gs->attachments;

		gs->attachments = a->next;
		detach(a);
	}
	r = gs->is_clsact && !keep ? clsact_remove_all(&gs->clsact) : 0;
	if (r)
		log_warning("graft: the packet programs stay at the interfaces: %s", strerror(-r));
	if (gs->clsact.keeper >= 0)
		close(gs->clsact.keeper);
	free(gs->pins);
	free(gs->revived);
	bpf_rings_close(&gs->rings);
	if (gs->all)
		munmap(gs->all, gs->all_size);
	graft__destroy(gs->skel);
	pthread_mutex_destroy(&gs->lock);
	free(gs->slots);
	free(gs);
}

void grafts_close_sockets(struct grafts *gs)
{
	const struct linger none = { .l_onoff = 1 };

	for (uint32_t slot = 0; gs->revived && slot < gs->n_slots; slot++) {
		int fds[2];

		graft_take_sockets(gs, slot, fds);
		for (int side = 0; side < 2; side++) {
			if (fds[side] < 0)
				continue;
			setsockopt(fds[side], SOL_SOCKET, SO_LINGER, &none, sizeof(none));
			close(fds[side]);
		}
		if (fds[0] >= 0 && graft_state(gs, slot) == GRAFT_RETURNED)
			graft_put(gs, slot);
	}
}

/* --- states --- */

enum graft_state graft_state(const struct grafts *gs, uint32_t slot)
{
	uint32_t state = raw_state(gs, slot) & GRAFT_STATE_MASK;

	if (state == GRAFT_LOCKED)
		return GRAFT_OFFERED;
	return state == GRAFT_LOCKED_2 ? GRAFT_RETURNING : (enum graft_state)state;
}

const volatile struct graft_entry *graft_of(const struct grafts *gs, uint32_t slot)
{
	return &gs->all[slot];
}

/* From FROM to TO, waiting for a packet that holds LOCK: it does so for less than a microsecond. */
static bool change(struct grafts *gs, uint32_t slot, enum graft_state from, enum graft_state lock,
		   enum graft_state to)
{
	for (;;) {
		uint32_t state = raw_state(gs, slot);

		if (state == (uint32_t)from &&
		    __atomic_compare_exchange_n(&gs->all[slot].state, &state, (uint32_t)to, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
		state &= GRAFT_STATE_MASK;
		if (state != (uint32_t)from && state != (uint32_t)lock)
			return false;
	}
}

bool graft_withdraw(struct grafts *gs, uint32_t slot)
{
	return change(gs, slot, GRAFT_OFFERED, GRAFT_LOCKED,
		      gs->all[slot].shifted ? GRAFT_RETURNED : GRAFT_FREE);
}

void graft_hold(struct grafts *gs, uint32_t slot)
{
	gs->all[slot].held_ms = (uint32_t)clock_ms();
	__atomic_store_n(&gs->all[slot].hold, 1, __ATOMIC_RELEASE);
}

bool graft_return(struct grafts *gs, uint32_t slot, bool back)
{
	return back ? change(gs, slot, GRAFT_ACTIVE, GRAFT_ACTIVE, GRAFT_RETURNING) :
		      change(gs, slot, GRAFT_RETURNING, GRAFT_LOCKED_2, GRAFT_ACTIVE);
}

/* --- requests --- */

/* What the offer program is run on: a frame, of which it reads the part behind the header. */
struct frame {
	struct ethhdr eth;
	struct graft_request q;
} __attribute__((packed));

static int run(struct grafts *gs, const struct graft_request *q)
{
	struct frame in = { .eth.h_proto = htons(ETH_P_IP), .q = *q };
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = &in, .data_size_in = sizeof(in),
		    .repeat = 1);

	return bpf_prog_test_run_opts(gs->offer, &opts) ? GRAFT_BAD_REQUEST : (int)opts.retval;
}

static void set_addr(struct graft_addr *a, uint16_t *port, const struct sockaddr *sa)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

	if (sa->sa_family == AF_INET) {
		*a = (struct graft_addr){ { 0, 0, htonl(0xffff), in->sin_addr.s_addr } };
		*port = in->sin_port;
	} else {
		memcpy(a, &in6->sin6_addr, sizeof(*a));
		*port = in6->sin6_port;
	}
}

/* The slot that was given back first, if it can be used again. */
static int take(struct grafts *gs, uint32_t *ret)
{
	int r = -ENOSPC;
	uint32_t slot;

	pthread_mutex_lock(&gs->lock);
	slot = gs->first;
	/* so that the queue never gets empty, its last slot stays */
	if (gs->n_free > 1 && (graft_state(gs, slot) != GRAFT_RETURNED ||
			       (uint32_t)clock_ms() - gs->slots[slot].put_ms >= RETURNED_MS)) {
		gs->first = gs->slots[slot].next;
		gs->n_free--;
		r = 0;
	}
	pthread_mutex_unlock(&gs->lock);
	if (!r)
		__atomic_store_n(&gs->all[slot].state, GRAFT_FREE, __ATOMIC_SEQ_CST);
	*ret = slot;
	return r;
}

static void put(struct grafts *gs, uint32_t slot)
{
	pthread_mutex_lock(&gs->lock);
	gs->slots[slot].put_ms = (uint32_t)clock_ms();
	gs->slots[gs->last].next = slot;
	gs->last = slot;
	gs->n_free++;
	pthread_mutex_unlock(&gs->lock);
}

enum graft_refusal graft_try_again(struct grafts *gs, uint32_t slot)
{
	struct graft_request q = { .op = GRAFT_OFFER_AGAIN, .slot = slot };

	return (enum graft_refusal)run(gs, &q);
}

enum graft_refusal graft_try(struct grafts *gs, const struct graft_offer *o, uint32_t *ret_slot)
{
	struct graft_request q = { .op = GRAFT_OFFER, .worker = o->worker, .id = o->id,
				   .forward = o->forward };
	int r;

	for (int side = 0; side < 2; side++) {
		struct graft_tuple *t = &q.tuples[side];

		set_addr(&t->remote, &t->remote_port, o->remote[side]);
		set_addr(&t->local, &t->local_port, o->local[side]);
	}
	if (take(gs, &q.slot))
		return GRAFT_NO_SLOT;
	r = run(gs, &q);
	if (r) {
		put(gs, q.slot);
		return (enum graft_refusal)r;
	}
	gs->all[q.slot].counted[0] = gs->all[q.slot].counted[1] = 0;
	*ret_slot = q.slot;
	return GRAFT_OK;
}

void graft_kill(struct grafts *gs, uint32_t slot)
{
	const struct graft_request q = { .op = GRAFT_KILL, .slot = slot };

	if (!change(gs, slot, GRAFT_ACTIVE, GRAFT_ACTIVE, GRAFT_DONE) &&
	    !change(gs, slot, GRAFT_RETURNING, GRAFT_LOCKED_2, GRAFT_DONE) &&
	    (graft_state(gs, slot) != GRAFT_DONE || gs->all[slot].side[0].reset ||
	     gs->all[slot].side[1].reset))
		return;
	run(gs, &q);
}

void graft_put(struct grafts *gs, uint32_t slot)
{
	change(gs, slot, GRAFT_DONE, GRAFT_DONE, GRAFT_CLOSED);
	gs->all[slot].over = 1;
	gs->slots[slot].probing = false;
	put(gs, slot);
}

bool graft_next(const struct grafts *gs, uint32_t *at)
{
	while (*at < gs->n_slots && !is_left(&gs->all[*at]))
		++*at;
	return *at < gs->n_slots;
}

void graft_set_worker(struct grafts *gs, uint32_t slot, unsigned int worker)
{
	__atomic_store_n(&gs->all[slot].worker, worker, __ATOMIC_RELEASE);
}

/* --- ways --- */

enum graft_change grafts_look(struct grafts *gs)
{
	const struct graft_request q = { .op = GRAFT_ROUTES };
	uint32_t routes = gs->routes, policies = gs->policies, none = 0;

	if (run(gs, &q))
		return GRAFT_CHANGE_NONE;
	gs->routes = *(volatile __u32 *)&gs->skel->bss->graft_routes;
	gs->policies = *(volatile __u32 *)&gs->skel->bss->graft_policies;
	if (policies == gs->policies)
		return routes == gs->routes ? GRAFT_CHANGE_NONE : GRAFT_CHANGE_ROUTES;
	bpf_map_update_elem(gs->interfaces, &none, &gs->policies, BPF_ANY);
	return GRAFT_CHANGE_POLICIES;
}

void grafts_doubt_ways(struct grafts *gs, enum graft_change change)
{
	uint32_t ways = __atomic_add_fetch(&gs->skel->bss->graft_ways, 1, __ATOMIC_SEQ_CST);

	if (change == GRAFT_CHANGE_POLICIES)
		__atomic_store_n(&gs->skel->bss->graft_ways_least, ways, __ATOMIC_SEQ_CST);
}

/* Nothing is to be grafted on an interface of SLOT any more. */
static bool must_leave(const struct grafts *gs, uint32_t slot)
{
	uint32_t used = GRAFT_IF_USED, found = used;

	for (int side = 0; side < 2 && found & used; side++)
		if (bpf_map_lookup_elem(gs->interfaces, (void *)&gs->all[slot].side[side].way.ifindex,
					&found))
			found = used; /* it is gone, and may come again */
	return !(found & used);
}

/* Policies have changed, and a socket of SLOT has not answered since. */
static bool is_halted(const struct grafts *gs, uint32_t slot)
{
	uint32_t least = gs->skel->bss->graft_ways_least;

	return (int32_t)(ways_of(gs, slot, 0) - least) < 0 || (int32_t)(ways_of(gs, slot, 1) - least) < 0;
}

#define JUDGED_MOST 16 /* then its way is taken for lost: that many calls */

static enum graft_doubt doubt_of(struct grafts *gs, uint32_t slot)
{
	const struct graft_request q = { .op = GRAFT_WAYS, .slot = slot };
	uint32_t ways = __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE);
	uint32_t asked = gs->slots[slot].asked;
	bool known = ways_of(gs, slot, 0) == ways && ways_of(gs, slot, 1) == ways;
	bool probing = gs->slots[slot].probing;

	if (known && !probing)
		return GRAFT_DOUBT_NONE;
	if (asked != ways) {
		gs->slots[slot].asked = ways;
		gs->slots[slot].probing = true;
		gs->slots[slot].judged = 0;
		if (must_leave(gs, slot))
			return GRAFT_DOUBT_LEAVE;
		return probing && run(gs, &q) ? GRAFT_DOUBT_LOST : GRAFT_DOUBT_ASK;
	}
	gs->slots[slot].probing = false;
	if (known || must_leave(gs, slot))
		return probing ? GRAFT_DOUBT_ASKED : GRAFT_DOUBT_NONE;
	if (run(gs, &q))
		return GRAFT_DOUBT_LOST;
	if (!is_halted(gs, slot))
		return probing ? GRAFT_DOUBT_ASKED : GRAFT_DOUBT_NONE;
	gs->slots[slot].probing = true;
	return ++gs->slots[slot].judged > JUDGED_MOST ? GRAFT_DOUBT_LOST : GRAFT_DOUBT_ASK;
}

enum graft_doubt graft_doubt(struct grafts *gs, uint32_t slot)
{
	enum graft_doubt d = doubt_of(gs, slot);

	if (d != GRAFT_DOUBT_NONE)
		atomic_store_explicit(&gs->doubtful, true, memory_order_relaxed);
	return d;
}

bool grafts_are_doubtful(struct grafts *gs)
{
	return atomic_exchange_explicit(&gs->doubtful, false, memory_order_relaxed);
}

bool graft_forget_doubt(struct grafts *gs, uint32_t slot)
{
	bool was = gs->slots[slot].probing;

	gs->slots[slot].probing = false;
	return was;
}

unsigned int graft_asked(const struct grafts *gs, uint32_t slot)
{
	uint32_t ways = gs->skel->bss->graft_ways, a = ways - ways_of(gs, slot, 0);
	uint32_t b = ways - ways_of(gs, slot, 1);

	return a > b ? a : b;
}

/* --- sockets of sessions that were left --- */

static int revive(const struct grafts *gs, uint32_t slot, unsigned int side, uid_t uid)
{
	const struct graft_side *s = &gs->all[slot].side[side];
	struct sockaddr_storage local, remote;
	struct tcp_numbers n = {
		.local = (struct sockaddr *)&local, .remote = (struct sockaddr *)&remote,
		.uid = uid, .mark = s->way.mark, .mss = s->mss,
		.write_seq = s->frozen_write, .read_seq = s->frozen_read,
		.peer_window = s->window, .send_shift = s->window_left, .read_shift = s->read_shift,
		.timestamps = s->timestamps, .sack = s->sack,
	};

	graft_address(gs, slot, side, true, &local, &n.len);
	graft_address(gs, slot, side, false, &remote, &n.len);
	return tcp_revive(&n);
}

void grafts_revive(struct grafts *gs, uid_t uid)
{
	unsigned int without = 0;
	int why = 0;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++) {
		int fds[2] = { -1, -1 };

		for (unsigned int side = 0; side < 2 && (!side || fds[0] >= 0); side++) {
			fds[side] = revive(gs, slot, side, uid);
			why = fds[side] < 0 ? fds[side] : why;
		}
		if (fds[0] < 0 || fds[1] < 0) {
			if (fds[0] >= 0)
				close(fds[0]);
			without++;
			continue;
		}
		if (!gs->revived)
			gs->revived = allocated(calloc(gs->n_slots, sizeof(*gs->revived)));
		for (int side = 0; side < 2; side++)
			gs->revived[slot][side] = fds[side];
	}
	if (without)
		log_warning("graft: %u sessions that were left have no sockets: nothing probes their "
			    "ends, or tells them of a reset: %s", without, strerror(-why));
}

void graft_take_sockets(struct grafts *gs, uint32_t slot, int ret[2])
{
	for (int side = 0; side < 2; side++) { /* 0 is none: it is stdin */
		ret[side] = gs->revived && gs->revived[slot][side] ? gs->revived[slot][side] : -1;
		if (gs->revived)
			gs->revived[slot][side] = 0;
	}
}

void graft_address(const struct grafts *gs, uint32_t slot, unsigned int side, bool local,
		   struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const struct graft_side *s = &gs->all[slot].side[side];
	const struct graft_addr *a = local ? &s->tuple.local : &s->tuple.remote;
	in_port_t port = local ? s->tuple.local_port : s->tuple.remote_port;

	if (s->ipv6) {
		struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = port };

		memcpy(&in6.sin6_addr, a, sizeof(in6.sin6_addr));
		memcpy(ret, &in6, *ret_len = sizeof(in6));
	} else {
		struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = port,
					  .sin_addr.s_addr = a->w[3] };

		memcpy(ret, &in, *ret_len = sizeof(in));
	}
}

uint64_t *graft_counted(struct grafts *gs, uint32_t slot, unsigned int dir)
{
	return (uint64_t *)&gs->all[slot].counted[dir];
}

uint64_t graft_bytes(const struct grafts *gs, uint32_t slot, unsigned int dir)
{
	const volatile struct graft_side *from = &gs->all[slot].side[dir];
	uint32_t state;
	uint64_t n;

	/* both numbers change when a graft begins */
	do {
		state = raw_state(gs, slot);
		n = from->end - from->begun - (from->fin != 0);
	} while ((state & GRAFT_STATE_MASK) == GRAFT_LOCKED || raw_state(gs, slot) != state);
	return n;
}

unsigned int grafts_total(const struct grafts *gs)
{
	return gs->n_slots;
}

/* --- events --- */

const struct bpf_rings *graft_rings(const struct grafts *gs)
{
	return &gs->rings;
}

uint64_t graft_events_lost(const struct grafts *gs)
{
	return *(volatile __u64 *)&gs->skel->bss->graft_events_lost;
}
