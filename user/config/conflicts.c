// SPDX-License-Identifier: BSD-2-Clause
#include "config/conflicts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "config/option.h"

/* --- addresses --- */

/* True if IS holds for an address of A and one of B. */
static bool conflict_any_pair(const struct endpoint *a, const struct endpoint *b,
			      bool (*is)(const struct addr *, const struct addr *))
{
	for (size_t i = 0; i < a->n_addrs; i++)
		for (size_t k = 0; k < b->n_addrs; k++)
			if (is(&a->addrs[i], &b->addrs[k]))
				return true;
	return false;
}

static bool conflict_feeds_itself(const struct config *c, const struct forward_conf *fc)
{
	const struct endpoint *listen = fc->sni ? &c->forwards[fc->of].listen : &fc->listen;
	const struct upstream *u = &fc->upstream;

	for (size_t i = 0; i < u->n; i++)
		if (conflict_any_pair(&u->servers[i].at, listen, addr_leads_to))
			return true;
	return false;
}

/* True if both listeners take the same connections. */
static bool conflict_overlaps(const struct addr *a, const struct addr *b)
{
	if (a->ss.ss_family != b->ss.ss_family || addr_port(a) != addr_port(b))
		return false;
	if (addr_takes_any_port(a))
		return false; /* the kernel picks two different ports */
	return addr_equal(a, b) || addr_is_any(a) || addr_is_any(b);
}

int conflicts_complain_address(const struct forward_conf *fc, bool listen, const char *why)
{
	const struct config_line *l = option_line(&fc->said, listen ? "listen" : "upstream");

	return config_complain(l ? l->place : fc->place, "%s: \"%.320s\": %s",
			       l ? l->key : "upstream", /* by order alone */
			       listen ? fc->listen.text : fc->upstream.text, why);
}

int conflicts_of_address(const struct config *c, const struct forward_conf *fc)
{
	const struct endpoint *other = NULL;
	const char *place = "";
	char why[2 * sizeof(((struct endpoint *)0)->text) + 64];

	if (!fc->listen.udp && conflict_any_pair(&c->metrics, &fc->listen, conflict_overlaps)) {
		other = &c->metrics;
		place = option_place(c, &c->defaults, "metrics");
	}
	for (const struct forward_conf *f = c->forwards; f < fc && !other; f++)
		if (f->listen.udp == fc->listen.udp &&
		    conflict_any_pair(&f->listen, &fc->listen, conflict_overlaps)) {
			other = &f->listen;
			place = option_place(c, f, "listen");
		}
	if (!other && !fc->mistaken && conflict_feeds_itself(c, fc))
		return conflicts_complain_address(fc, false, "the upstream is the listener itself");
	if (!other)
		return 0;
	snprintf(why, sizeof(why), "takes the same connections as %s \"%s\"%s%.*s",
		 other == &c->metrics ? "metrics" : "the earlier", other->text,
		 *place ? ": see " : "", AT_PLACE(place));
	return conflicts_complain_address(fc, true, why);
}

int conflicts_of_addresses(const struct config *c)
{
	int r = 0;

	for (size_t i = 0; c->forwards && i < c->n_forwards; i++)
		r = conflicts_of_address(c, &c->forwards[i]) ?: r;
	return r;
}

/* --- other settings --- */

/* Complain about the setting NAME of FC, which it may have inherited. */
static int conflict_complain(const struct config *c, const struct forward_conf *fc,
			     const char *name, const char *why)
{
	return config_complain(option_place(c, fc, name), "%s: %s", name, why);
}

/* Complain about options that FC itself sets, and that have no meaning for its protocol. */
static int conflicts_with_protocol(const struct config *c, const struct forward_conf *fc)
{
	static const char *const words[] = { "responses", "replies", "max-reply-factor" };
	bool udp = fc->listen.udp;

	for (int i = 0; i < 3 && !udp; i++)
		if (option_line(&fc->said, words[i]))
			return conflict_complain(c, fc, words[i],
						 "only for UDP, as with listen = :53/udp");
	return udp && fc->proxy_protocol & PROXY_SEND_V1 ?
		       conflict_complain(c, fc, "proxy-protocol",
					 "UDP has version 2 alone: send-v2") :
		       0;
}

bool conflicts_may_check(const struct forward_conf *fc)
{
	const struct upstream *u = &fc->upstream;
	size_t elsewhere = 0;

	for (size_t i = 0; i < u->n; i++)
		elsewhere += u->servers[i].check_port || fc->check_port;
	return !fc->listen.udp || (u->n && elsewhere == u->n) ||
	       (!elsewhere && fc->check_send && fc->check_expect);
}

/* Complain about options of checks that FC itself sets, and that have no meaning. */
static int conflicts_of_checks(const struct config *c, const struct forward_conf *fc)
{
	static const char *const words[] = { "check-http", "check-send",  "check-expect",
					     "check-port", "check-agent", "on-down",
					     "on-backup" };
	unsigned int range[2];
	char room[1024];

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && !fc->check_ms; i++)
		if (option_line(&fc->said, words[i]))
			return conflict_complain(c, fc, words[i],
						 "servers are not checked: see `check`");
	if (fc->check_http && (*fc->check_http != '/' || strpbrk(fc->check_http, " \t")))
		return conflict_complain(c, fc, "check-http",
					 "expected a path without blanks, such as /primary");
	if (!config_range(fc->check_status, range) || range[0] < 100 || range[1] > 599)
		return conflict_complain(c, fc, "check-status",
					 "expected a number from 100 to 599, or two, as 200-399");
	if (fc->check_send && text_unescape(fc->check_send, room) < 0)
		return conflict_complain(c, fc, "check-send", "a bad escape; \\ is written \\\\");
	if (fc->check_expect && text_unescape(fc->check_expect, room) < 0)
		return conflict_complain(c, fc, "check-expect", "a bad escape; \\ is written \\\\");
	if (fc->check_agent && upstreams_are_unix(&fc->upstream))
		return conflict_complain(c, fc, "check-agent", "servers are unix sockets");
	if (fc->check_port && upstreams_are_unix(&fc->upstream))
		return conflict_complain(c, fc, "check-port", "servers are unix sockets");
	if (fc->listen.udp && fc->check_ms && (fc->check_port || fc->check_agent) &&
	    forward_needs_privileges(fc))
		return conflict_complain(c, fc, "check-port",
					 "UDP: not together with mark or transparent");
	return 0;
}

int conflicts_of_forward(const struct config *c, const struct forward_conf *fc)
{
	unsigned int ports = fc->upstream.n ? fc->upstream.servers[0].at.n_ports : 1;
	int r = conflicts_with_protocol(c, fc);

	r = conflicts_of_checks(c, fc) ?: r;
	if (!conflicts_may_check(fc) && option_line(&fc->said, "check"))
		r = conflict_complain(
			c, fc, "check",
			"servers of UDP are checked by check-port, or by check-send and "
			"check-expect");
	for (size_t i = 0; !(fc->proxy_protocol & PROXY_RECEIVE) && i < 3; i++) {
		static const char *const words[] = { "allow-client", "deny-client",
						     "proxy-protocol-in" };

		if (option_line(&fc->said, words[i]))
			r = conflict_complain(c, fc, words[i], "needs proxy-protocol = receive");
	}
	if (fc->hellos && fc->listen.udp)
		r = conflict_complain(c, fc, "listen", "[sni] needs TCP");
	if (fc->alpn && strchr(fc->alpn, ','))
		r = conflict_complain(c, fc, "alpn", "protocols are separated by blanks");
	if (fc->sni && option_line(&fc->said, "proxy-protocol") &&
	    fc->proxy_protocol & PROXY_RECEIVE)
		r = conflict_complain(
			c, fc, "proxy-protocol",
			"the PROXY header comes before the TLS hello, so receive belongs in the "
			"section of the forward");
	if (ports > 1 && ports != fc->listen.n_ports)
		r = conflict_complain(
			c, fc, "upstream",
			"a range of ports needs a listen range of the same length, and no other "
			"listen address");
	if (fc->transparent && fc->source.len)
		r = conflict_complain(
			c, fc, "transparent",
			"not together with source: it is the client's address that is used");
	if (fc->transparent && endpoint_is_unix(&fc->listen))
		r = conflict_complain(c, fc, "transparent",
				      "clients of a unix socket have no address");
	if (forward_needs_privileges(fc) && !c->privileged_process)
		r = conflict_complain(
			c, fc, fc->mark ? "mark" : "transparent",
			"needs the privileged process, and privileged-process says no");
	return r;
}

int conflicts_of_globals(const struct config *c)
{
	unsigned int ports[2];
	int r = 0;

	if (c->relay && strpbrk(c->relay, " \t\n\v\f\r"))
		r = conflict_complain(c, &c->defaults, "relay", "expected a word");
	if (c->standby_ports && !config_port_range(c->standby_ports, ports))
		r = conflict_complain(c, &c->defaults, "standby-ports",
				      "expected two ports, as 20000-29999");
	if (strcmp(c->set_up_ports, "auto") && !config_port_range(c->set_up_ports, ports))
		r = conflict_complain(c, &c->defaults, "set-up-ports",
				      "expected auto, or two ports, as 20000-28191");
	if (c->metrics.named || c->metrics.n_ports > 1 || c->metrics.udp)
		r = conflict_complain(c, &c->defaults, "metrics",
				      "needs an address and one port of TCP, not a host name");
	if (endpoint_is_unix(&c->metrics) && !strcmp(c->metrics.text + 5, c->control))
		r = conflict_complain(c, &c->defaults, "metrics",
				      "the control socket has that path");
	/* each start overwrites the pid file */
	if (c->pid_file && c->session_log && !strcmp(c->pid_file, c->session_log))
		r = conflict_complain(c, &c->defaults, "pid-file", "the session log has that path");
	return r;
}
