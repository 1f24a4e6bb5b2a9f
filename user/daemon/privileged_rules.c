/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/privileged_rules.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/un.h>

#define PORT_UNPRIVILEGED 1024

static const struct config *find(const struct privileged_known *k, uint32_t generation)
{
	for (int i = 0; i < 2; i++)
		if (k->configs[i].n_forwards && k->configs[i].generation == generation)
			return &k->configs[i];
	return NULL;
}

static bool is_sane(const struct addr *a)
{
	switch (a->ss.ss_family) {
	case AF_INET:
		return a->len == sizeof(struct sockaddr_in);
	case AF_INET6:
		return a->len == sizeof(struct sockaddr_in6);
	case AF_UNIX: /* the path has a byte at least */
		return a->len > offsetof(struct sockaddr_un, sun_path) &&
		       a->len <= sizeof(struct sockaddr_un);
	default:
		return false;
	}
}

/*
 * Is PORT what a configuration means that says WRITTEN?  Port 0 is one of the kernel's choice,
 * which the further sockets of a group then have: any that needs no privilege.
 */
static bool is_port(in_port_t written, in_port_t port)
{
	return written ? port == written : !port || ntohs(port) >= PORT_UNPRIVILEGED;
}

static bool may_listen(const struct endpoint *e, struct addr a)
{
	in_port_t port;

	for (size_t i = 0; i < e->n_addrs; i++)
		if (addr_equal(&e->addrs[i], &a))
			return true;
	if (!addr_is_inet(&a))
		return false;
	port = addr_port(&a);
	if (!e->n_addrs) /* a host name, whose addresses the daemon has looked up */
		return is_port(e->named_port, port);
	addr_set_port(&a, 0);
	for (size_t i = 0; i < e->n_addrs; i++)
		if (addr_equal(&e->addrs[i], &a) && is_port(0, port))
			return true;
	return false;
}

static int judge_listen(const struct privileged_request *q, const struct config *c,
			const char **ret_why)
{
	const struct addr *a = &q->addr;

	*ret_why = "a malformed address";
	if (!is_sane(a))
		return -EBADMSG;
	*ret_why = "a malformed number of sockets";
	if (!q->count || q->count > PRIVILEGED_FDS || q->joins > 1 ||
	    (!addr_is_inet(a) && (q->count > 1 || q->joins)))
		return -EBADMSG;
	*ret_why = "the forward does not listen on that address";
	return may_listen(&c->forwards[q->forward].listen, *a) ? 0 : -EPERM;
}

static int judge_transparent(const struct privileged_request *q, const struct forward_conf *fc,
			     const char **ret_why)
{
	*ret_why = "a malformed address";
	if (!is_sane(&q->addr) || !addr_is_inet(&q->addr) || q->count)
		return -EBADMSG;
	*ret_why = "the forward is not transparent, or does not listen on that address";
	return fc->transparent && may_listen(&fc->listen, q->addr) ? 0 : -EPERM;
}

static int judge_sockets(const struct privileged_request *q, const struct config *c,
			 const char **ret_why)
{
	*ret_why = "a malformed number of sockets, or family";
	if (!q->count || q->count > PRIVILEGED_FDS ||
	    (q->family != AF_INET && q->family != AF_INET6))
		return -EBADMSG;
	*ret_why = "the forward has no mark and is not transparent";
	return forward_needs_privileges(&c->forwards[q->forward]) ? 0 : -EPERM;
}

static int judge_open_log(const struct privileged_request *q, const struct privileged_known *k,
			  const char **ret_why)
{
	*ret_why = "a malformed number of files";
	if (q->count != 1)
		return -EBADMSG;
	*ret_why = "there is no session log";
	return k->log ? 0 : -EPERM;
}

int privileged_judge(const struct privileged_request *q, size_t len,
		     const struct privileged_known *k, const struct config **ret_c,
		     const char **ret_why)
{
	const struct config *c;

	*ret_why = "a request of the wrong size";
	if (len != sizeof(*q))
		return -EBADMSG;
	*ret_c = NULL;
	if (q->op == PRIVILEGED_OPEN_LOG)
		return judge_open_log(q, k, ret_why);
	*ret_why = "a configuration that is not kept";
	c = *ret_c = find(k, q->generation);
	if (!c)
		return -EPERM;
	*ret_why = "no such forward";
	if (q->op != PRIVILEGED_READ_CONFIG && q->forward >= c->n_forwards)
		return -EPERM;
	switch (q->op) {
	case PRIVILEGED_READ_CONFIG:
		*ret_why = "there is no configuration file";
		return c->file ? 0 : -EPERM;
	case PRIVILEGED_LISTEN:
		return judge_listen(q, c, ret_why);
	case PRIVILEGED_SOCKETS:
		return judge_sockets(q, c, ret_why);
	case PRIVILEGED_TRANSPARENT:
		return judge_transparent(q, &c->forwards[q->forward], ret_why);
	default:
		*ret_why = "an unknown request";
		return -EBADMSG;
	}
}
