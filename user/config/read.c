// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: all lines are first kept as written, in lists: the command line, the file's
 * lines for all forwards, and the lines of each forward.  Then the values are stored in layers:
 *
 *	defaults of the table -> [culvert] -> command line -> copied to each forward -> [forward]
 *
 * A list of rules (allow, deny) of a later layer replaces that of the layers before it.
 */
#include "config/read.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/minmax.h"
#include "config/file.h"
#include "config/rinetd.h"

#define UDP_IDLE_MS 60000 /* if no line sets idle-timeout */

/* --- where a setting was made --- */

static const struct config_line *find_line(const struct config *c, const struct forward_conf *fc,
					   const char *name)
{
	return option_line(&fc->said, name)         ?:
		       option_line(&c->words, name) ?:
						      option_line(&c->said, name);
}

const char *config_place(const struct config *c, const struct forward_conf *fc, const char *name)
{
	const struct config_line *l = find_line(c, fc, name);

	return l ? l->place : "";
}

/* --- the command line --- */

/* Take the option at ARGV[*POS] and its value.  Leave *POS on the last word used. */
static int take_option(char **argv, int *pos, struct config *c)
{
	const char *word = strcmp(argv[*pos], "-c") != 0 ? argv[*pos] : "--config";
	const char *value = strchr(word, '=');
	const char *key = config_keep(c, "%.*s", (int)strcspn(word, "="), word);
	const struct option_def *o = strncmp(key, "--", 2) == 0 ?
					     option_find(key + 2, SCOPE_WORDS) :
					     NULL;

	if (!o)
		return log_complain(-EINVAL, "%s: unknown option%s (`culvert help run` lists them)",
				    key, option_hint(c, key + strspn(key, "-"), SCOPE_WORDS));
	value = value ? value + 1 : argv[++*pos];
	if (!value)
		return log_complain(-EINVAL, "%s: needs a value: %s", key, o->expected);
	config_lines_add(&c->words, (struct config_line){ o, key, value, "" });
	return 0;
}

/* Options may stand before, between and after the addresses. */
static int read_words(int argc, char **argv, struct config *c)
{
	bool options_end = false;
	int r = 0;

	for (int i = 1; i < argc && !r; i++) {
		bool second = c->addresses.n % 2;
		const char *name = second ? "upstream" : "listen";
		const char *key = second ? "UPSTREAM" : "LISTEN";

		if (!options_end && !strcmp(argv[i], "--"))
			options_end = true;
		else if (!options_end && argv[i][0] == '-')
			r = take_option(argv, &i, c);
		else
			config_lines_add(&c->addresses,
					 (struct config_line){ option_find(name, SCOPE_FORWARD),
							       key, argv[i], "" });
	}
	return r;
}

/* Add the forwards of the command line, whose addresses are pairs. */
static int add_forwards(struct config *c)
{
	const struct config_line *l = c->addresses.lines;
	size_t n = c->addresses.n;

	if (n % 2 != 0)
		return log_complain(-EINVAL, "\"%.256s\": no UPSTREAM for this LISTEN address",
				    l[n - 1].value);
	for (size_t i = 0; i < n; i += 2) {
		struct forward_conf *fc = config_add_forward(c);

		config_lines_add(&fc->said, l[i]);
		config_lines_add(&fc->said, l[i + 1]);
	}
	return 0;
}

/* --- addresses --- */

/* True if IS holds for an address of A and one of B. */
static bool any_pair(const struct endpoint *a, const struct endpoint *b,
		     bool (*is)(const struct addr *, const struct addr *))
{
	for (size_t i = 0; i < a->n_addrs; i++)
		for (size_t k = 0; k < b->n_addrs; k++)
			if (is(&a->addrs[i], &b->addrs[k]))
				return true;
	return false;
}

static bool feeds_itself(const struct config *c, const struct forward_conf *fc)
{
	const struct endpoint *listen = fc->sni ? &c->forwards[fc->of].listen : &fc->listen;
	const struct upstream *u = &fc->upstream;

	for (size_t i = 0; i < u->n; i++)
		if (any_pair(&u->servers[i].at, listen, addr_leads_to))
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

int config_complain_address(const struct forward_conf *fc, bool listen, const char *why)
{
	const struct config_line *l = option_line(&fc->said, listen ? "listen" : "upstream");

	return config_complain(l->place, "%s: \"%.320s\": %s", l->key,
			       listen ? fc->listen.text : l->value, why);
}

static int check_addresses(const struct config *c, const struct forward_conf *fc)
{
	const struct endpoint *other = NULL;
	const char *place = "";
	char why[2 * sizeof(((struct endpoint *)0)->text) + 64];

	if (fc->mistaken)
		return 0;
	if (!fc->listen.udp && any_pair(&c->metrics, &fc->listen, overlap)) {
		other = &c->metrics;
		place = config_place(c, &c->defaults, "metrics");
	}
	for (const struct forward_conf *f = c->forwards; f < fc && !other; f++)
		if (f->listen.udp == fc->listen.udp && any_pair(&f->listen, &fc->listen, overlap)) {
			other = &f->listen;
			place = config_place(c, f, "listen");
		}
	if (!other && feeds_itself(c, fc))
		return config_complain_address(fc, false, "the upstream is the listener itself");
	if (!other)
		return 0;
	snprintf(why, sizeof(why), "takes the same connections as %s \"%s\"%s%.*s",
		 other == &c->metrics ? "metrics" : "the earlier", other->text,
		 *place ? ": see " : "", AT_PLACE(place));
	return config_complain_address(fc, true, why);
}

int config_check_addresses(const struct config *c)
{
	int r = 0;

	for (size_t i = 0; c->forwards && i < c->n_forwards; i++)
		r = check_addresses(c, &c->forwards[i]) ?: r;
	return r;
}

/* --- conflicts between values that are valid one by one --- */

/* Complain about the setting NAME of FC, which it may have inherited. */
static int say_wrong(const struct config *c, const struct forward_conf *fc, const char *name,
		     const char *why)
{
	return config_complain(config_place(c, fc, name), "%s: %s", name, why);
}

/* Complain about options that FC itself sets, and that have no meaning for its protocol. */
static int check_protocol(const struct config *c, const struct forward_conf *fc)
{
	static const char *const words[2][3] = { { "responses", "replies", "max-reply-factor" },
						 { "check" } };
	bool udp = fc->listen.udp;

	for (int i = 0; i < 3 && words[udp][i]; i++)
		if (option_line(&fc->said, words[udp][i]))
			return say_wrong(c, fc, words[udp][i],
					 udp ? "servers of UDP are not checked" :
					       "only for UDP, as with listen = :53/udp");
	return udp && fc->proxy_protocol & PROXY_SEND_V1 ?
		       say_wrong(c, fc, "proxy-protocol", "UDP has version 2 alone: send-v2") :
		       0;
}

static int check_forward(const struct config *c, struct forward_conf *fc)
{
	unsigned int ports = fc->upstream.n ? fc->upstream.servers[0].at.n_ports : 1;
	int r = check_protocol(c, fc);

	if (fc->listen.udp && !find_line(c, fc, "idle-timeout"))
		fc->idle_timeout_ms = UDP_IDLE_MS;
	if (fc->listen.udp)
		fc->check_ms = 0; /* drop an inherited value */
	if (!fc->upstream.n)
		fc->upstream.text = "";
	if (fc->hellos && fc->listen.udp)
		r = say_wrong(c, fc, "listen", "[sni] needs TCP");
	if (fc->alpn && strchr(fc->alpn, ','))
		r = say_wrong(c, fc, "alpn", "protocols are separated by blanks");
	if (fc->sni && option_line(&fc->said, "proxy-protocol") &&
	    fc->proxy_protocol & PROXY_RECEIVE)
		r = say_wrong(c, fc, "proxy-protocol",
			      "the PROXY header comes before the TLS hello, so receive belongs "
			      "in the section of the forward");
	fc->soft_limit = smaller(fc->soft_limit, fc->hard_limit);
	if (ports > 1 && ports != fc->listen.n_ports)
		r = say_wrong(c, fc, "upstream",
			      "a range of ports needs a listen range of the same length, and no "
			      "other listen address");
	if (upstreams_are_unix(&fc->upstream)) { /* a unix socket has none of these */
		fc->source.len = 0;
		fc->interface = NULL;
		fc->mark = 0;
		fc->transparent = false;
	}
	if (fc->transparent && fc->source.len)
		r = say_wrong(c, fc, "transparent",
			      "not together with source: it is the client's address that is used");
	if (fc->transparent && endpoint_is_unix(&fc->listen))
		r = say_wrong(c, fc, "transparent", "clients of a unix socket have no address");
	if (forward_needs_privileges(fc) && !c->privileged_process)
		r = say_wrong(c, fc, fc->mark ? "mark" : "transparent",
			      "needs the privileged process, and privileged-process says no");
	return r;
}

/* --- values --- */

/*
 * Store LINES in FC, or in C.  Listen addresses come first: their protocol is needed to read
 * servers.  Rules in LINES replace those of FC.
 */
static int store_lines(struct config *c, struct forward_conf *fc, const struct config_lines *lines)
{
	const struct config_line *end = lines->lines + lines->n;
	bool has_rules = false, listens;
	int r = 0;

	for (const struct config_line *l = lines->lines; l < end; l++)
		if (l->option->kind == KIND_LISTEN)
			r = option_store(c, fc, l) ?: r;
	listens = !r;
	for (const struct config_line *l = lines->lines; l < end; l++) {
		/* the protocol is not known, so an upstream cannot be checked */
		if (l->option->kind == KIND_LISTEN ||
		    (l->option->kind == KIND_UPSTREAM && !listens))
			continue;
		if (l->option->list && !has_rules) {
			acl_close(&fc->acl);
			has_rules = true;
		}
		r = option_store(c, fc, l) ?: r;
	}
	return r;
}

static int store_globals(struct config *c)
{
	int r;

	options_default(c);
	r = store_lines(c, &c->defaults, &c->said);
	r = store_lines(c, &c->defaults, &c->words) ?: r;
	/* Half: one client must not take all sessions, and a proxy of many clients needs many. */
	if (c->max_sessions_per_client == UINT_MAX)
		c->max_sessions_per_client = (c->max_sessions + 1) / 2;
	if (c->metrics.named || c->metrics.n_ports > 1 || c->metrics.udp)
		r = say_wrong(c, &c->defaults, "metrics",
			      "needs an address and one port of TCP, not a host name");
	if (endpoint_is_unix(&c->metrics) && !strcmp(c->metrics.text + 5, c->control))
		r = say_wrong(c, &c->defaults, "metrics", "the control socket has that path");
	/* each start overwrites the pid file */
	if (c->pid_file && c->session_log && !strcmp(c->pid_file, c->session_log))
		r = say_wrong(c, &c->defaults, "pid-file", "the session log has that path");
	return r;
}

/* Store the inherited settings of each forward, and then its own. */
static int store_forwards(struct config *c)
{
	int r = 0;

	for (size_t i = 0; i < c->n_forwards; i++) {
		struct forward_conf *fc = &c->forwards[i], own = *fc;
		int e;

		*fc = own.sni ? c->forwards[own.of] : c->defaults;
		memcpy(fc, &own, offsetof(struct forward_conf, listen));
		fc->acl.shared = true;
		if (own.sni) {
			fc->listen = (struct endpoint){ 0 };
			fc->upstream = (struct upstream){ 0 };
			fc->max_sessions = fc->max_sessions_per_client = 0; /* FORWARD has these */
		}
		e = store_lines(c, fc, &fc->said);
		if (!e && !fc->mistaken)
			e = check_forward(c, fc);
		r = e ?: r;
	}
	return config_check_addresses(c) ?: r;
}

/* --- all of it --- */

/* Read the file that the command line names, if it does.  FD: that file; -1: open it. */
static int read_file(struct config *c, int fd)
{
	const struct config_line *config = option_line(&c->words, "config");
	struct config_reader r;

	if (!config)
		return 0;
	c->file = config->value;
	config_reader_open(&r, fd, c);
	c->is_rinetd = rinetd_is(r.rest);
	if (c->is_rinetd)
		rinetd_read(&r);
	else
		config_read_sections(&r);
	free(r.text);
	return r.error;
}

int config_read_any(int argc, char **argv, int fd, struct config *ret)
{
	int r;

	*ret = (struct config){ 0 };
	r = read_words(argc, argv, ret);
	if (r)
		return r;
	r = read_file(ret, fd);
	r = add_forwards(ret) ?: r;
	r = store_globals(ret) ?: r;
	return store_forwards(ret) ?: r;
}

int config_read(int argc, char **argv, int fd, struct config *ret)
{
	int r = config_read_any(argc, argv, fd, ret);

	if (r || ret->n_forwards)
		return r;
	if (ret->file)
		return log_complain(-EINVAL,
				    "nothing to forward: %s has no forward, and the command line "
				    "no LISTEN UPSTREAM (see culvert.conf(5))",
				    ret->file);
	return log_complain(-EINVAL, "nothing to forward, expected LISTEN UPSTREAM on the command "
				     "line or in a file (see `culvert help run`)");
}

int config_exit_code(int r)
{
	/* no name server yet, or no memory: another start may succeed */
	bool passes = r == -EAGAIN || r == -ENOMEM;

	return r >= 0 ? EXIT_CODE_OK : passes ? EXIT_CODE_FAILURE : EXIT_CODE_USAGE;
}

/* --- the help --- */

void config_help(void)
{
	puts("Usage: culvert run [options] LISTEN UPSTREAM [LISTEN UPSTREAM]...\n"
	     "       culvert run --config FILE [options] [LISTEN UPSTREAM]...\n\n"
	     "Accept connections at each LISTEN address and forward them to its UPSTREAM address.\n"
	     "\n"
	     "  culvert run 0.0.0.0:9000 10.0.2.2:9001\n"
	     "  culvert run :53/udp 10.0.2.2:53\n"
	     "  culvert run --config /etc/culvert/culvert.conf\n\n"
	     "Addresses: 1.2.3.4:80, [::1]:80, host:80, host:http, unix:/path, unix:@abstract;\n"
	     "/udp behind the port of a LISTEN makes it and its UPSTREAM UDP;\n"
	     "a LISTEN may be :80 (all local addresses), :8000-8099 or port 0 (the kernel picks).\n"
	     "Several servers are one UPSTREAM, as \"10.0.2.2:80 weight=2, 10.0.2.3:80 backup\".\n"
	     "\n"
	     "A FILE has the options without \"--\" in a section [culvert].  Those with a \"*\"\n"
	     "may also stand in a section [forward NAME], and count for that forward instead.\n\n"
	     "Options:");
	options_help(false);
	puts("  --help                       show this help; also -h\n\n"
	     "In [forward NAME] alone, or in its sections [sni FORWARD HOST...]:");
	options_help(true);
	puts("\nA SIZE may end in K, M or G, SECONDS in s, m, h or d.\n"
	     "Manual: culvert(8), culvert.conf(5)");
}
