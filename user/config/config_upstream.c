// SPDX-License-Identifier: BSD-2-Clause
#include "config/config_upstream.h"

#include <errno.h>

#include "base/log.h"
#include "relay/proxy_use.h"

/* The first of what only a TCP socket to the upstream can have that T itself asks for, or NULL. */
static const char *asks_of_upstream(const struct forward_text *t)
{
	static const char *const names[] = { "source", "interface", "mark", "transparent" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (forward_says(t, names[i]))
			return names[i];
	return NULL;
}

static bool is_unix(const struct endpoint *e)
{
	return e->n_addrs && !addr_is_inet(&e->addrs[0]);
}

/* Of the N of A.  AF_UNSPEC: a host name, or addresses that stand for either. */
static sa_family_t family_of(const struct addr *a, size_t n)
{
	if (!n || !addr_is_inet(a))
		return AF_UNSPEC;
	for (size_t i = 1; i < n; i++)
		if (a[i].ss.ss_family != a->ss.ss_family)
			return AF_UNSPEC;
	return a->ss.ss_family;
}

/* All connections to the upstream of FC would come from an address of the other family. */
static int check_family(const struct forward_conf *fc, const struct forward_text *t)
{
	sa_family_t up = family_of(fc->upstream.addrs, fc->upstream.n_addrs), from;
	const char *what = fc->transparent ? "transparent" : "source";
	char at[CONFIG_PLACE_LEN];

	if (fc->transparent)
		/* a PROXY header may tell a client of either */
		from = fc->proxy_protocol & PROXY_RECEIVE ? AF_UNSPEC :
			family_of(fc->listen.addrs, fc->listen.n_addrs);
	else
		from = family_of(&fc->source, fc->source.len ? 1 : 0);
	if (up == AF_UNSPEC || from == AF_UNSPEC || up == from)
		return 0;
	return log_complain(-EINVAL, "%s%s: the upstream \"%.320s\" is IPv%c, and %s IPv%c: no "
			    "connection can be made",
			    config_place(t->file, forward_says(t, what) ?: t->upstream_line, at),
			    what, t->upstream, up == AF_INET ? '4' : '6',
			    fc->transparent ? "its clients are" : "this address is",
			    from == AF_INET ? '4' : '6');
}

int config_check_upstream(const struct config *c, struct forward_conf *fc,
			  const struct forward_text *t)
{
	const char *asks = asks_of_upstream(t), *wrong = NULL;
	char at[CONFIG_PLACE_LEN];

	if (is_unix(&fc->upstream)) {
		if (asks)
			return log_complain(-EINVAL, "%s%s: the upstream is a unix socket, which "
					    "has none",
					    config_place(t->file, forward_says(t, asks), at), asks);
		fc->source.len = 0;
		fc->interface = NULL;
		fc->mark = 0;
		fc->transparent = false;
		return 0;
	}
	if (fc->transparent && fc->source.len)
		wrong = "not together with source: it is the client's address that is used";
	else if (fc->transparent && is_unix(&fc->listen))
		wrong = "clients of a unix socket have no address";
	if (wrong)
		return log_complain(-EINVAL, "%stransparent: %s",
				    config_place(t->file, forward_says(t, "transparent"), at),
				    wrong);
	if (forward_needs_privileges(fc) && !c->privileged_process)
		return log_complain(-EINVAL, "%s%s: needs the privileged process, and "
				    "privileged-process says no",
				    config_place(t->file, forward_says(t, fc->mark ? "mark" :
								   "transparent"), at),
				    fc->mark ? "mark" : "transparent");
	return check_family(fc, t);
}
