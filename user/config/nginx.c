// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each `server` of `stream` is a forward, or two if it listens for TCP and UDP.
 * The directives of `stream` and of the server are applied in this order.  A map from
 * $ssl_preread_server_name becomes sections [sni].
 */
#include "config/foreign.h"

#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\n"
#define INCLUDED "convert that file, too"

enum { TCP = 1, UDP = 2, BOTH = 3 };

/* --- directives of a server --- */

static bool has_argument(const struct statement *s, const char *word)
{
	for (size_t i = 1; i < s->n; i++)
		if (!strcmp(s->words[i], word))
			return true;
	return false;
}

static void take_listen(struct draft *d)
{
	/* words that change nothing; those with "=" have a value */
	static const char fine[] =
		" udp proxy_protocol reuseport bind deferred backlog= rcvbuf= sndbuf= "
		"so_keepalive= ipv6only= fastopen= ";
	const char *address = d->args[0] ?: "";

	if (!strncmp(address, "[::]", 4) && has_argument(d->s, "ipv6only=off"))
		address += 4;
	else if (!strncmp(address, "*:", 2))
		address = foreign_keep(d->f, "0.0.0.0%s", address + 1);
	else if (!strchr(address, ':'))
		address = foreign_keep(d->f, "0.0.0.0:%s", address);
	take_listener(d, foreign_keep(d->f, "%s%s", address, d->roles == UDP ? "/udp" : ""),
		      has_argument(d->s, "proxy_protocol"), "proxy_protocol");
	for (char **a = d->args + !!*d->args; *a; a++) {
		int len = (int)strcspn(*a, "=") + !!strchr(*a, '=');

		if (!strcmp(*a, "ssl"))
			lose(d, "listen ssl", NO_DECRYPTION);
		else if (!has_word(d->f, fine, foreign_keep(d->f, "%.*s", len, *a), ""))
			lose(d, foreign_keep(d->f, "listen %s", *a), NO_EQUAL);
	}
}

/* Proxies whose PROXY header counts. */
static void take_trusted(struct draft *d)
{
	const char *before = draft_find(d, ".trusted");

	draft_set(d, ".trusted",
		  foreign_keep(d->f, "%s%s%s", before ?: "", before ? " " : "",
			       foreign_network(d->f, *d->args ?: "")));
}

static const struct keyword directives[] = {
	{ "listen", BOTH, take_listen, "" },
	{ "proxy_pass", BOTH, take_value, ".target" },
	{ "proxy_timeout", BOTH, take_seconds, "idle-timeout" },
	{ "proxy_connect_timeout", BOTH, take_seconds, "connect-timeout" },
	{ "preread_timeout", BOTH, take_seconds, "hello-timeout" },
	{ "proxy_protocol_timeout", BOTH, take_seconds, "proxy-timeout" },
	{ "proxy_protocol on", BOTH, take_key, ".send send-v1" },
	{ "proxy_protocol", BOTH, take_key, ".send " },
	{ "proxy_bind $remote_addr transparent", BOTH, take_key, "transparent yes" },
	{ "proxy_bind off", BOTH, NULL, "" },
	{ "proxy_bind", BOTH, take_host, "source" },
	{ "proxy_responses 0", UDP, take_key, "replies no" },
	{ "proxy_responses", UDP, take_value, "responses" },
	{ "allow", BOTH, take_network, "allow" },
	{ "deny", BOTH, take_network, "deny" },
	{ "set_real_ip_from", BOTH, take_trusted, "" },
	{ "proxy_upload_rate|proxy_download_rate", BOTH, take_lost,
	  "a limit of one connection has no equal: see bandwidth-per-client" },
	{ "limit_conn", BOTH, take_lost, "see max-sessions-per-client" },
	{ "tcp_nodelay on", BOTH, NULL, "" },
	{ "proxy_ssl", BOTH, take_lost, NO_ENCRYPTION },
	{ "include", BOTH, take_lost, INCLUDED },
	{ "access_log|error_log|log_format", BOTH, take_note, LOG },
	{ "resolver", BOTH, take_note, "culvert asks /etc/resolv.conf" },
	{ "server|upstream|map|ssl_preread|proxy_socket_keepalive|proxy_buffer_size|"
	  "proxy_half_close|preread_buffer_size|resolver_timeout|limit_conn_zone|map_hash*|"
	  "variables_hash*|server_name|status_zone",
	  BOTH, NULL, "" },
	{ NULL, BOTH, take_lost, NO_EQUAL },
};

/* --- upstreams --- */

static void take_server(struct draft *d)
{
	char *one = text_join(NULL, "", *d->args ?: "");

	for (char **w = d->args + !!*d->args; *w; w++)
		if (!strncmp(*w, "max_conns=", 10))
			one = text_join(text_join(one, " ", "max-sessions="), "", *w + 10);
		else if (!strncmp(*w, "weight=", 7) || !strcmp(*w, "backup"))
			one = text_join(one, " ", *w);
		else if (!strncmp(*w, "max_fails=", 10) || !strncmp(*w, "fail_timeout=", 13))
			note(d, "max_fails, fail_timeout",
			     "each failure sets a server aside, for 1 s to a minute");
		else if (!has_word(d->f, " down resolve ", *w, ""))
			lose(d, foreign_keep(d->f, "server %s", *w), NO_EQUAL);
	if (has_argument(d->s, "down"))
		lose(d, NULL, "down: left out");
	else
		d->upstream = text_join(d->upstream, ", ", one);
	free(one);
}

static const struct keyword words_of_upstream[] = {
	{ "server", BOTH, take_server, "" },
	{ "least_conn|random two", BOTH, take_key, "balance least-sessions" },
	{ "hash $remote_addr|hash $binary_remote_addr", BOTH, take_key, "balance source" },
	{ "zone|random|resolver|resolver_timeout", BOTH, NULL, "" },
	{ NULL, BOTH, take_lost, "culvert has round-robin, least-sessions and source" },
};

/* Set where TARGET leads, a name of an upstream or an address. */
static void find_target(struct draft *d, const char *target)
{
	struct statement *block = foreign_find(d->f, " upstream ", 1, target), *head = d->s;
	struct statement *end = block ? foreign_end(d->f, block) : NULL;

	if (!block && !strchr(target, '$'))
		d->upstream = text_join(d->upstream, ", ", target);
	for (struct statement *c = block; block && ++c < end;)
		draft_apply(d, words_of_upstream, c);
	d->s = head;
}

/* --- forwards --- */

/* Write sections [sni NAME ...] for the map M. */
static void write_map(struct draft *front, struct statement *m, const char *name)
{
	struct foreign *f = front->f;
	struct statement *end = foreign_end(f, m), *c;
	bool patterns = false; /* else nginx takes "*.a" for a name */

	for (c = m + 1; c < end; c++)
		patterns |= !strcmp(c->words[0], "hostnames");
	for (c = m + 1; c < end; c++)
		c->told = c->n != 2 || !strcmp(c->words[0], "default");
	for (struct statement *first = m + 1; first < end; first++) {
		struct draft d = { .f = f, .roles = BOTH };
		char *all = NULL;

		for (c = first; c < end; c++) { /* all that lead where FIRST leads */
			const char *word = c->words[0];

			if (c->told || first->told || strcmp(c->words[1], first->words[1]) != 0)
				continue;
			d.s = c;
			if (!patterns && strchr(".*", *word))
				word = "";
			if (*word == '.')
				word = foreign_keep(f, "%s *%s", word + 1, word);
			if (!*word || *word == '~' || !strcmp(word, "include"))
				lose(&d, NULL,
				     "[sni] has names, and *.names (if `hostnames`) alone");
			else
				all = text_join(all, " ", word);
			c->told = c != first;
		}
		first->told = true;
		d.s = first;
		if (all) {
			find_target(&d, first->words[1]);
			if (!draft_find(&d, "balance") && draft_find(front, "balance"))
				draft_set(&d, "balance", "round-robin");
			draft_end(&d, false);
			draft_write(&d, foreign_keep(f, "sni %s %s", name, all));
		}
		free(all);
		draft_close(&d);
	}
}

static bool is_access(const char *word)
{
	return !strcmp(word, "allow") || !strcmp(word, "deny");
}

static bool is_trusted(const char *word)
{
	return !strcmp(word, "set_real_ip_from");
}

/*
 * Add what becomes of clients whom no rule matches: nginx accepts them.  With set_real_ip_from the
 * rules are about the client that the PROXY header of such a peer names; any other peer could forge
 * a header, so it is refused.
 */
static void end_access(struct draft *d)
{
	const char *trusted = draft_find(d, ".receive") ? draft_find(d, ".trusted") : NULL;
	const char *allow = trusted ? "allow-client" : "allow", *last = NULL;

	for (size_t i = 0; i < d->n_keys; i++) {
		const char *key = d->keys[i].key;

		if (!is_access(key))
			continue;
		last = d->keys[i].value;
		if (trusted)
			d->keys[i].key = *key == 'a' ? allow : "deny-client";
	}
	if (last && strcmp(last, "all") != 0)
		draft_set(d, allow, "all");
	if (last && trusted)
		draft_set(d, "allow", trusted);
}

/* Write the server BLOCK as far as it is for ROLES, TCP or UDP. */
static void write_server(struct foreign *f, struct statement *block, unsigned int roles)
{
	struct draft d = { .f = f, .roles = roles };
	struct statement *end = foreign_end(f, block), *m;
	bool rules = false, trust = false; /* those of a server replace those of `stream` */
	const char *target, *name;

	for (struct statement *c = block + 1; c < end; c++) {
		rules |= is_access(c->words[0]);
		trust |= is_trusted(c->words[0]);
	}
	for (struct statement *s = f->statements; s < f->statements + f->n; s++)
		if (!s->depth && !(rules && is_access(s->words[0])) &&
		    !(trust && is_trusted(s->words[0])))
			draft_apply(&d, directives, s);
	for (struct statement *c = block + 1; c < end; c++)
		if (strcmp(c->words[0], "listen") != 0 || has_argument(c, "udp") == (roles == UDP))
			draft_apply(&d, directives, c);
	d.s = block;
	end_access(&d);
	target = draft_find(&d, ".target") ?: "";
	if (draft_find(&d, "listen")) {
		name = foreign_name(f, foreign_keep(f, "%s%s", target + (*target == '$'),
						    roles == UDP ? "-udp" : ""));
		m = foreign_find(f, " map ", 2, target);
		m = m && !strcmp(m->words[1], "$ssl_preread_server_name") ? m : NULL;
		end = m ? foreign_end(f, m) : NULL;
		for (struct statement *c = m; m && ++c < end;)
			if (c->n == 2 && !strcmp(c->words[0], "default"))
				find_target(&d, c->words[1]);
		if (!m && *target)
			find_target(&d, target);
		if (!draft_find(&d, "idle-timeout")) /* what nginx does without the directive */
			draft_set(&d, "idle-timeout", "600");
		if (!draft_find(&d, "connect-timeout") && roles == TCP)
			draft_set(&d, "connect-timeout", "60");
		draft_end(&d, true);
		draft_write(&d, foreign_keep(f, "forward %s", name));
		if (m) {
			write_map(&d, m, name);
			draft_write_not_tls(&d, name);
		}
	}
	draft_close(&d);
}

/* --- the file --- */

bool nginx_is(const char *text)
{
	char word[32] = "", last = 0;
	size_t len;

	text = foreign_begin(text);
	sscanf(text, "%31[a-z_]", word);
	len = strcspn(text, "#\n");
	for (size_t i = 0; i < len; i++)
		if (!strchr(BLANKS, text[i]))
			last = text[i];
	return *word && (last == ';' || last == '{' || !strcmp(word, "stream"));
}

/* Outside of `stream`. */
static const struct keyword outer[] = {
	{ "worker_processes auto|stream", BOTH, NULL, "" },
	{ "worker_processes", BOTH, take_value, "workers" },
	{ "http|mail", BOTH, take_lost, "not converted: culvert forwards TCP and UDP" },
	{ "include", BOTH, take_lost, INCLUDED },
	{ "user|pid|events|daemon|error_log|worker*|load_module|pcre_jit|master_process|env", BOTH,
	  NULL, "" },
	{ NULL, BOTH, take_lost, NO_EQUAL },
};

const char *nginx_convert(struct foreign *f, char *text)
{
	const char *wrong = foreign_read(f, text, true);
	struct statement *end = f->statements + f->n, *s, *to = f->statements;
	struct draft d = { .f = f, .roles = BOTH };
	bool whole = false, in = false; /* WHOLE: not a file that a nginx.conf includes */

	f->unit = 1000;
	f->queue = "0";
	for (s = f->statements; s < end; s++)
		whole |= !s->depth && has_word(f, " stream http ", s->words[0], "");
	for (s = f->statements; !wrong && whole && s < end; s++) { /* leave those in `stream` */
		in = s->depth ? in : !strcmp(s->words[0], "stream");
		if (!s->depth)
			draft_apply(&d, outer, s);
		else if (in)
			*to++ = *s, to[-1].depth--;
	}
	if (d.n_keys)
		draft_write(&d, "culvert");
	draft_close(&d);
	f->n = whole ? (size_t)(to - f->statements) : f->n;
	for (s = f->statements; !wrong && s < f->statements + f->n; s++)
		for (unsigned int role = TCP; !s->depth && role <= UDP; role++)
			if (!strcmp(s->words[0], "server"))
				write_server(f, s, role);
	return wrong;
}
