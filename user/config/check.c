// SPDX-License-Identifier: BSD-2-Clause
#include "config/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/size.h"
#include "config/file.h"

#define UNIX "unix:"

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

/* --- paths --- */

/* Skip slashes, and "." between them. */
static const char *skip_nothing(const char *path)
{
	while (path[0] == '/' && (path[1] == '/' || (path[1] == '.' && path[2] == '/')))
		path += path[1] == '/' ? 1 : 2;
	return path;
}

/* True for the same file, whatever "//" and "/./" there is in between. */
static bool same_path(const char *a, const char *b)
{
	for (;; a++, b++) {
		a = skip_nothing(a);
		b = skip_nothing(b);
		if (*a != *b)
			return false;
		if (!*a)
			return true;
	}
}

/* An option that names a file. */
struct file {
	const char *name, *path;
};

static int check_files(const struct config *c, const struct file *a, const struct file *b)
{
	/* Blame the option that is said: `control` has a default. */
	const struct file *at = config_option_line(c, b->name) ? b : a;
	char place[CONFIG_PLACE_LEN];

	if (!a->path || !b->path || !same_path(a->path, b->path))
		return 0;
	return log_complain(-EINVAL, "%s%s %.256s is that of %s as well: each needs its own",
			    config_option_place(c, at->name, place), at->name, at->path,
			    at == b ? a->name : b->name);
}

static int check_socket(const struct forward_text *t, const struct file *f)
{
	char why[128];

	if (!f->path || strncmp(t->listen, UNIX, strlen(UNIX)) != 0 ||
	    !same_path(t->listen + strlen(UNIX), f->path))
		return 0;
	snprintf(why, sizeof(why), "the path is that of %s as well: each needs its own", f->name);
	return forward_say_wrong(-EINVAL, t, true, why);
}

/* True if the session log is a file, and not stdout. */
static bool is_log_file(const struct config *c)
{
	return c->session_log && strcmp(c->session_log, "-") != 0;
}

int check_together(const struct config *c, const struct config_text *text)
{
	const struct file files[] = {
		{ "control", c->control },
		{ "pid-file", c->pid_file },
		{ "session-log", is_log_file(c) ? c->session_log : NULL },
	};
	const size_t n = sizeof(files) / sizeof(files[0]);
	int r = check_files(c, &files[0], &files[1]) ?: check_files(c, &files[0], &files[2]) ?:
		check_files(c, &files[1], &files[2]);

	for (size_t i = 0; !r && i < text->n * n; i++)
		r = check_socket(&text->forwards[i / n], &files[i % n]);
	return r;
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

/* Two paths to one socket.  Abstract ones begin with NUL. */
static bool same_socket(const struct addr *a, const struct addr *b)
{
	const struct sockaddr_un *x = (const struct sockaddr_un *)&a->ss;
	const struct sockaddr_un *y = (const struct sockaddr_un *)&b->ss;

	return a->ss.ss_family == AF_UNIX && b->ss.ss_family == AF_UNIX && x->sun_path[0] &&
	       same_path(x->sun_path, y->sun_path);
}

/* *RET_SAME: it is one address; else one of them is every local address. */
static bool overlap(const struct addr *a, const struct addr *b, bool *ret_same)
{
	if (a->ss.ss_family != b->ss.ss_family || addr_port(a) != addr_port(b))
		return false;
	if (addr_takes_any_port(a))
		return false; /* the kernel picks two different ports */
	*ret_same = addr_equal(a, b) || same_socket(a, b);
	return *ret_same || addr_is_any(a) || addr_is_any(b);
}

/* The first listener before number N that takes connections of number N, or NULL. */
static const struct endpoint *find_overlap(const struct config *c, size_t n, bool *ret_same)
{
	const struct endpoint *b = &c->forwards[n].listen;

	for (size_t i = 0; i < n; i++) {
		const struct endpoint *a = &c->forwards[i].listen;

		*ret_same = same_name(a, b);
		if (*ret_same)
			return a;
		for (size_t k = 0; k < a->n_addrs * b->n_addrs; k++)
			if (overlap(&a->addrs[k / b->n_addrs], &b->addrs[k % b->n_addrs], ret_same))
				return a;
	}
	return NULL;
}

const char *check_addresses(const struct config *c, size_t n, bool *ret_listen, char *buf)
{
	bool same = false;
	const struct endpoint *e = find_overlap(c, n, &same);

	*ret_listen = e;
	if (e)
		snprintf(buf, CHECK_WHY_LEN, "%s the earlier \"%s\"%s",
			 same ? "same address as" : "overlaps with", e->text,
			 same ? "" : ": both would take the same connections");
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
	char at[CONFIG_PLACE_LEN];

	if (own && all && own > all)
		return log_complain(-EINVAL, "%s%s: %u is above that of all forwards together (%u)",
				    config_place(t->file, forward_says(t, name), at), name, own,
				    all);
	return 0;
}

static int check_limits(const struct config *c, const struct forward_conf *fc,
			const struct forward_text *t)
{
	unsigned int line = forward_says(t, "soft-limit") ?: forward_says(t, "hard-limit") ?:
		config_option_line(c, "soft-limit") ?: config_option_line(c, "hard-limit");
	char soft[SIZE_STRLEN], hard[SIZE_STRLEN], at[CONFIG_PLACE_LEN];

	if (fc->soft_limit > fc->hard_limit)
		return log_complain(-EINVAL, "%ssoft-limit: %s is above hard-limit (%s)",
				    config_place(c->file, line, at),
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
	char at[CONFIG_PLACE_LEN];

	if (fc->transparent) /* a PROXY header may name a client of either family */
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

/* Say that T cannot have the setting WHAT. */
static int say_not_had(const struct forward_text *t, const char *what, const char *why)
{
	char at[CONFIG_PLACE_LEN];

	return log_complain(-EINVAL, "%s%s: %s", config_place(t->file, forward_says(t, what), at),
			    what, why);
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
