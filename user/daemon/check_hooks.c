// SPDX-License-Identifier: BSD-2-Clause
/*
 * The packet programs take a packet at tc ingress, before prerouting and before nft's netdev ingress
 * (Linux: __netif_receive_skb_core() calls sch_handle_ingress() first), and send it on behind
 * postrouting.  The forward hook does not count: no packet of a socket passes it.
 */
#include "daemon/check_hooks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_hook.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

struct hooks {
	struct mnl_socket *nl;
	char names[1024]; /* of one place, each once */
};

static const char *hooks_family(uint8_t family)
{
	return family == NFPROTO_INET   ? "inet" :
	       family == NFPROTO_IPV4   ? "ip" :
	       family == NFPROTO_IPV6   ? "ip6" :
	       family == NFPROTO_NETDEV ? "netdev" :
					  "?";
}

static void hooks_add(struct hooks *h, const char *name)
{
	size_t used = strlen(h->names), len = strlen(name);

	for (const char *at = h->names; (at = strstr(at, name)); at += len)
		if ((at == h->names || at[-1] == ' ') && (!at[len] || at[len] == ','))
			return;
	if (used + len + 3 < sizeof(h->names))
		snprintf(h->names + used, sizeof(h->names) - used, "%s%s", used ? ", " : "", name);
}

/* Write the chain that INFO, an attribute of a hook, names to NAME.  False: it names none. */
static bool hooks_chain(const struct nlattr *info, char *name, size_t size)
{
	const struct nlattr *desc, *a;
	const char *table = NULL, *chain = NULL;
	uint8_t family = NFPROTO_UNSPEC;

	mnl_attr_for_each_nested(desc, info) {
		if (mnl_attr_get_type(desc) != NFNLA_HOOK_INFO_DESC)
			continue;
		mnl_attr_for_each_nested(a, desc) {
			if (mnl_attr_get_type(a) == NFNLA_CHAIN_TABLE)
				table = mnl_attr_get_str(a);
			else if (mnl_attr_get_type(a) == NFNLA_CHAIN_NAME)
				chain = mnl_attr_get_str(a);
			else if (mnl_attr_get_type(a) == NFNLA_CHAIN_FAMILY)
				family = mnl_attr_get_u8(a);
		}
	}
	if (!table || !chain)
		return false;
	snprintf(name, size, "chain %s %s %s", hooks_family(family), table, chain);
	return true;
}

/* ARG is a struct hooks. */
static int hooks_on_one(const struct nlmsghdr *m, void *arg)
{
	char name[256] = "";
	const struct nlattr *a;
	bool named = false;
	int priority = 0;

	mnl_attr_for_each(a, m, sizeof(struct nfgenmsg)) {
		if (mnl_attr_get_type(a) == NFNLA_HOOK_CHAIN_INFO)
			named = hooks_chain(a, name, sizeof(name));
		else if (mnl_attr_get_type(a) == NFNLA_HOOK_FUNCTION_NAME && !named)
			snprintf(name, sizeof(name), "%s", mnl_attr_get_str(a));
		else if (mnl_attr_get_type(a) == NFNLA_HOOK_PRIORITY)
			priority = (int)ntohl(mnl_attr_get_u32(a));
	}
	/* as has_rules() in bpf: security modules do not count */
	if (*name &&
	    (named || (priority != NF_IP_PRI_SELINUX_FIRST && priority != NF_IP_PRI_SELINUX_LAST)))
		hooks_add(arg, name);
	return MNL_CB_OK;
}

/* Note the hooks of FAMILY at PLACE, an NF_INET_* or NF_NETDEV_*, of the device DEV.  -errno. */
static int hooks_list(struct hooks *h, uint8_t family, uint32_t place, const char *dev)
{
	char buf[16384];
	struct nlmsghdr *q = mnl_nlmsg_put_header(buf);
	struct nfgenmsg *nfg = mnl_nlmsg_put_extra_header(q, sizeof(*nfg));
	int r = MNL_CB_OK;
	ssize_t n;

	q->nlmsg_type = NFNL_SUBSYS_HOOK << 8 | NFNL_MSG_HOOK_GET;
	q->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	*nfg = (struct nfgenmsg){ .nfgen_family = family };
	mnl_attr_put_u32(q, NFNLA_HOOK_HOOKNUM, htonl(place));
	if (dev)
		mnl_attr_put_strz(q, NFNLA_HOOK_DEV, dev);
	n = mnl_socket_sendto(h->nl, q, q->nlmsg_len);
	while (n > 0 && r == MNL_CB_OK && (n = mnl_socket_recvfrom(h->nl, buf, sizeof(buf))) > 0)
		r = mnl_cb_run(buf, (size_t)n, 0, 0, hooks_on_one, h);
	return n < 0 || r < 0 ? -errno : 0;
}

/* Returns whether there were any. */
static bool hooks_write(struct hooks *h, FILE *to, const char *place, const char *dev)
{
	bool some = *h->names;

	if (some)
		fprintf(to, "grafted sessions bypass netfilter at %s%s%s: %s\n", place,
			dev ? " of " : "", dev ?: "", h->names);
	*h->names = '\0';
	return some;
}

static void hooks_write_devices(struct hooks *h, FILE *to)
{
	struct if_nameindex *all = if_nameindex();

	for (const struct if_nameindex *i = all; i && i->if_index; i++) {
		/* a device may have gone meanwhile, and old kernels have no such hook */
		hooks_list(h, NFPROTO_NETDEV, NF_NETDEV_INGRESS, i->if_name);
		hooks_write(h, to, "ingress", i->if_name);
	}
	if_freenameindex(all);
}

int check_hooks_write(FILE *to)
{
	static const struct {
		uint32_t place;
		const char *name;
	} places[] = {
		{ NF_INET_PRE_ROUTING, "prerouting" },
		{ NF_INET_LOCAL_IN, "input" },
		{ NF_INET_LOCAL_OUT, "output" },
		{ NF_INET_POST_ROUTING, "postrouting" },
	};
	struct hooks h = { .nl = mnl_socket_open2(NETLINK_NETFILTER, SOCK_CLOEXEC) };
	int r = h.nl ? 0 : -errno;
	bool some = false;

	for (size_t i = 0; !r && i < sizeof(places) / sizeof(places[0]); i++) {
		r = hooks_list(&h, NFPROTO_IPV4, places[i].place, NULL) ?:
			    hooks_list(&h, NFPROTO_IPV6, places[i].place, NULL);
		some |= hooks_write(&h, to, places[i].name, NULL);
	}
	if (!r)
		hooks_write_devices(&h, to);
	else if (r == -EPERM)
		fprintf(to,
			"run as root to learn which hooks of netfilter grafted sessions bypass\n");
	else
		fprintf(to, "cannot list the hooks of netfilter that grafted sessions bypass: %s\n",
			r == -EINVAL ? "the kernel lacks CONFIG_NETFILTER_NETLINK_HOOK" :
				       strerror(-r));
	if (h.nl)
		mnl_socket_close(h.nl);
	return r ?: some;
}
