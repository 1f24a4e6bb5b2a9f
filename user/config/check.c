// SPDX-License-Identifier: BSD-2-Clause
#include "config/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/size.h"
#include "config/file.h"

int forward_say_wrong(int error, const struct forward_text *t, bool listen, const char *why)
{
	char at[CONFIG_PLACE_LEN];

	return log_complain(error, "%s%s \"%.320s\": %s",
			    config_place(t->file, listen ? t->listen_line : t->upstream_line, at),
			    t->file ? listen ? "listen" : "upstream" :
			    listen  ? "LISTEN" :
				      "UPSTREAM",
			    listen ? t->listen : t->upstream, why);
}

/* --- addresses --- */

/* True whatever the addresses of the name are.  Port 0 is another port each time. */
static bool same_name(const struct endpoint *a, const struct endpoint *b)
{
	return a->named && b->named && a->named_port && !strcasecmp(a->text, b->text);
}

bool check_feeds_itself(const struct forward_conf *fc)
{
	if (same_name(&fc->listen, &fc->upstream))
		return true;
	for (size_t i = 0; i < fc->listen.n_addrs; i++)
		for (size_t j = 0; j < fc->upstream.n_addrs; j++)
			if (addr_leads_to(&fc->upstream.addrs[j], &fc->listen.addrs[i]))
				return true;
	return false;
}

/* True if both listeners take the same connections. */
static bool overlap(const struct addr *a, const struct addr *b)
{
	if (a->ss.ss_family != b->ss.ss_family || addr_port(a) != addr_port(b))
		return false;
	if (addr_takes_any_port(a))
		return false; /* the kernel picks two different ports */
	return addr_equal(a, b) || addr_is_any(a) || addr_is_any(b);
}

/* The first listener before number N that takes connections of number N, or NULL. */
static const struct endpoint *find_overlap(const struct config *c, size_t n)
{
	const struct endpoint *b = &c->forwards[n].listen;

	for (size_t i = 0; i < n; i++) {
		const struct endpoint *a = &c->forwards[i].listen;

		if (same_name(a, b))
			return a;
		for (size_t k = 0; k < a->n_addrs * b->n_addrs; k++)
			if (overlap(&a->addrs[k / b->n_addrs], &b->addrs[k % b->n_addrs]))
				return a;
	}
	return NULL;
}

const char *check_addresses(const struct config *c, size_t n, bool *ret_listen, char *buf)
{
	const struct endpoint *e = find_overlap(c, n);

	*ret_listen = e;
	if (e)
		snprintf(buf, CHECK_WHY_LEN, "takes the same connections as the earlier \"%s\"",
			 e->text);
	else if (check_feeds_itself(&c->forwards[n]))
		snprintf(buf, CHECK_WHY_LEN, "the upstream is the listener itself");
	else
		return NULL;
	return buf;
}

int check_all_addresses(const struct config *c, char *err, size_t errlen)
{
	char why[CHECK_WHY_LEN];
	bool listen;

	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct forward_conf *fc = &c->forwards[i];

		if (!check_addresses(c, i, &listen, why))
			continue;
		snprintf(err, errlen, "forward %s: %s \"%s\": %s", forward_name(fc),
			 listen ? "listen" : "upstream",
			 listen ? fc->listen.text : fc->upstream.text, why);
		return -EINVAL;
	}
	return 0;
}

/* --- limits --- */

/* A limit above that of all forwards together would limit nothing.  0, of either: there is none. */
static int check_most(const struct forward_text *t, const char *name, unsigned int own,
		      unsigned int all)
{
	if (own && all && own > all)
		return config_complain(t->file, forward_says(t, name), "%s: %u is above that of "
				       "all forwards together (%u)", name, own, all);
	return 0;
}

static int check_limits(const struct config *c, const struct forward_conf *fc,
			const struct forward_text *t)
{
	unsigned int line = forward_says(t, "soft-limit") ?: forward_says(t, "hard-limit") ?:
		config_option_line(c, "soft-limit") ?: config_option_line(c, "hard-limit");
	char soft[SIZE_STRLEN], hard[SIZE_STRLEN];

	if (fc->soft_limit > fc->hard_limit)
		return config_complain(c->file, line, "soft-limit: %s is above hard-limit (%s)",
				       size_format(fc->soft_limit, soft, sizeof(soft)),
				       size_format(fc->hard_limit, hard, sizeof(hard)));
	return check_most(t, "max-sessions", fc->max_sessions, c->max_sessions) ?:
	       check_most(t, "max-sessions-per-client", fc->max_sessions_per_client,
			  c->max_sessions_per_client);
}

/* --- what connections to the upstream shall have --- */

/* The first setting that T itself makes and that only TCP to the upstream can have, or NULL. */
static const char *asks_of_upstream(const struct forward_text *t)
{
	static const char *const names[] = { "source", "interface", "mark", "transparent" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (forward_says(t, names[i]))
			return names[i];
	return NULL;
}

/* The family of the N addresses A; AF_UNSPEC: a host name, or addresses of both. */
static sa_family_t family_of(const struct addr *a, size_t n)
{
	if (!n || !addr_is_inet(a))
		return AF_UNSPEC;
	for (size_t i = 1; i < n; i++)
		if (a[i].ss.ss_family != a->ss.ss_family)
			return AF_UNSPEC;
	return a->ss.ss_family;
}

/* Refuse a source, or clients of a transparent forward, of another family than the upstream. */
static int check_family(const struct forward_conf *fc, const struct forward_text *t)
{
	sa_family_t up = family_of(fc->upstream.addrs, fc->upstream.n_addrs), from;
	const char *what = fc->transparent ? "transparent" : "source";

	if (fc->transparent) /* a PROXY header may name a client of either family */
		from = fc->proxy_protocol & PROXY_RECEIVE ? AF_UNSPEC :
			family_of(fc->listen.addrs, fc->listen.n_addrs);
	else
		from = family_of(&fc->source, fc->source.len ? 1 : 0);
	if (up == AF_UNSPEC || from == AF_UNSPEC || up == from)
		return 0;
	return config_complain(t->file, forward_says(t, what) ?: t->upstream_line,
			       "%s: the upstream \"%.320s\" is IPv%c, and %s IPv%c: no connection "
			       "can be made", what, t->upstream, up == AF_INET ? '4' : '6',
			       fc->transparent ? "its clients are" : "this address is",
			       from == AF_INET ? '4' : '6');
}

/* Say that T cannot have the setting WHAT. */
static int say_not_had(const struct forward_text *t, const char *what, const char *why)
{
	return config_complain(t->file, forward_says(t, what), "%s: %s", what, why);
}

/* A unix socket as upstream loses what it inherits of source, interface, mark, transparent. */
static int check_upstream(const struct config *c, struct forward_conf *fc,
			  const struct forward_text *t)
{
	const char *asks = asks_of_upstream(t);

	if (endpoint_is_unix(&fc->upstream)) {
		if (asks)
			return say_not_had(t, asks, "the upstream is a unix socket, which has none");
		fc->source.len = 0;
		fc->interface = NULL;
		fc->mark = 0;
		fc->transparent = false;
		return 0;
	}
	if (fc->transparent && fc->source.len)
		return say_not_had(t, "transparent", "not together with source: it is the "
				   "client's address that is used");
	if (fc->transparent && endpoint_is_unix(&fc->listen))
		return say_not_had(t, "transparent", "clients of a unix socket have no address");
	if (forward_needs_privileges(fc) && !c->privileged_process)
		return say_not_had(t, fc->mark ? "mark" : "transparent", "needs the privileged "
				   "process, and privileged-process says no");
	return check_family(fc, t);
}

int check_forward(struct config *c, size_t n, const struct forward_text *t)
{
	struct forward_conf *fc = &c->forwards[n];
	char why[CHECK_WHY_LEN];
	bool listen;

	if (check_addresses(c, n, &listen, why))
		return forward_say_wrong(-EINVAL, t, listen, why);
	return check_limits(c, fc, t) ?: check_upstream(c, fc, t);
}
