// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a forward is a frontend and its default backend, or a section "listen",
 * which is both.  The statements of `defaults`, of the frontend and of the backend are applied to one
 * draft, in this order.  Backends that are chosen by the TLS server name become sections [sni].
 *
 * HAProxy checks servers one by one, culvert checks all servers of a forward in one way.  So what
 * stands behind one server holds for all.
 */
#include "config/foreign.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config/haproxy_rules.h"
#include "config/option.h"

/* --- frontends --- */

/*
 * TEXT, HOST:PORT of `bind` or `server`, as culvert writes it.  V6ONLY: not IPv4, too, at "::".
 * NULL: it has no port, and LISTENS.
 */
static const char *address_of(struct foreign *f, const char *text, bool listens, bool v6only)
{
	const char *at = strchr(text, '@'), *colon;
	bool v6 = !strncmp(text, "ipv6@", 5);
	int len;

	if (!strncmp(text, "unix@", 5) || *text == '/')
		return foreign_keep(f, "unix:%s", *text == '/' ? text : at + 1);
	if (!strncmp(text, "abns@", 5))
		return foreign_keep(f, "unix:@%s", at + 1);
	if (at && (v6 || !strncmp(text, "ipv4@", 5) || !strncmp(text, "tcp", 3)))
		text = at + 1;
	colon = strrchr(text, ':');
	len = (int)(colon && !strchr(colon, ']') ? (size_t)(colon - text) : strlen(text));
	if (!text[len] || !text[len + 1]) /* see add_ports() */
		return listens ? NULL : foreign_keep(f, "%.*s:", len, text);
	if (listens && len <= 1 && (!len || *text == '*') && !v6)
		return foreign_keep(f, "0.0.0.0%s", colon);
	if (listens && len <= 2 && (!strncmp(text, "::", (size_t)len) || v6))
		return foreign_keep(f, v6only ? "[::]%s" : "%s", colon);
	return foreign_keep(f,
			    *text != '[' && memchr(text, ':', (size_t)len) ? "[%.*s]%s" : "%.*s%s",
			    len, text, colon);
}

/* Servers without a port of their own have that at which the client came: keep ADDRESS's. */
static void keep_ports(struct draft *d, const char *address)
{
	const char *before = draft_find(d, ".ports"), *colon = strrchr(address, ':');
	const char *ports = strncmp(address, "unix:", 5) && colon ? colon + 1 : "";

	draft_set(d, ".ports", before && strcmp(before, ports) != 0 ? "" : ports);
}

/* Put PORTS behind the servers of D that have none. */
static void add_ports(struct draft *d, const char *ports)
{
	char *all = NULL, *at = d->upstream;

	while (at && *at) {
		size_t len = strcspn(at, ":");

		len += !!at[len];
		all = text_join(all, "", foreign_keep(d->f, "%.*s", (int)len, at));
		if (at[len - 1] == ':' && strchr(", ", at[len]))
			all = text_join(all, "", ports);
		at += len;
	}
	free(d->upstream);
	d->upstream = all;
}

static void take_bind(struct draft *d)
{
	/* words that change nothing; those with "=" have a value */
	static const char fine[] =
		" name= id= nice= backlog= thread= process= shards= level= tfo "
		"v4v6 v6only accept-proxy defer-accept crt= alpn= ca-file= verify= ciphers= ";
	bool v6only = false, header = false;
	const char *address;

	for (char **a = d->args; *a; a++) {
		v6only |= !strcmp(*a, "v6only");
		header |= !strcmp(*a, "accept-proxy");
	}
	for (char *all = *d->args, *one; (one = strsep(&all, ","));) {
		address = address_of(d->f, one, true, v6only);
		if (address) {
			take_listener(d, address, header, "accept-proxy");
			keep_ports(d, address);
		} else {
			lose(d, "bind", "expected an address and a port");
		}
	}
	for (char **a = d->args + !!*d->args; *a; a++)
		if (!strcmp(*a, "ssl"))
			lose(d, "bind ssl", NO_DECRYPTION);
		else if (has_word(d->f, fine, *a, "="))
			a += !!a[1];
		else if (!has_word(d->f, fine, *a, ""))
			lose(d, foreign_keep(d->f, "bind %s", *a), NO_EQUAL);
}

/* --- servers --- */

/* A setting of one server holds for all. */
static void set_for_all(struct draft *d, const char *key, const char *value)
{
	const char *before = draft_find(d, key);

	if (before && strcmp(before, value) != 0 && *d->s->words[0] != 'd')
		lose(d, key, "servers differ: the last value holds for all");
	draft_set(d, key, value);
}

/* Put KEY with VALUE behind ONE, from malloc(3), in place of an earlier value. */
static char *replace_word(char *one, const char *key, const char *value)
{
	char *before = strstr(one, key), *end = before ? before + 1 : NULL;

	if (before) {
		end += strcspn(end, " ");
		memmove(before, end, strlen(end) + 1);
	}
	if (!strcmp(value, "0") && strstr(key, "max-sessions")) /* no limit */
		return one;
	return text_join(text_join(one, "", key), "", value);
}

/* WORDS behind a server, as words of culvert behind ONE, from malloc(3); "": it is not in use. */
static char *take_words(struct draft *d, char *one, char **words)
{
	/* words that change nothing, or are seen to below; those with "=" have a value */
	static const char fine[] =
		" id= cookie= resolvers= resolve-prefer= init-addr= verify= sni= "
		"verifyhost= ca-file= crt= minconn= enabled tfo non-stick "
		"check-send-proxy no-check agent-check check disabled backup ";
	static const struct {
		const char *word, *key, *value; /* KEY: a key, or a word behind the server */
	} table[] = {
		{ "rise", "rise", NULL },
		{ "fall", "fall", NULL },
		{ "inter", "check", NULL },
		{ "agent-port", "check-agent", NULL },
		{ "weight", " weight=", NULL },
		{ "maxconn", " max-sessions=", NULL },
		{ "port", " check-port=", NULL },
		{ "on-marked-down", "on-down", "reset" },
		{ "on-marked-up", "on-backup", "reset" },
	};
	bool off = false;

	for (char **w = words; *w; w++) {
		size_t i = 0;

		if (!strcmp(*w, "check") || !strcmp(*w, "no-check"))
			draft_set(d, ".server-check", **w == 'c' ? "check" : "");
		off |= !strcmp(*w, "disabled");
		while (i < sizeof(table) / sizeof(table[0]) && strcmp(*w, table[i].word) != 0)
			i++;
		if (i < sizeof(table) / sizeof(table[0]) && w[1]) {
			const char *value = table[i].value ?: *++w;

			w += !!table[i].value;
			off |= !strcmp(table[i].word, "weight") && !strcmp(value, "0");
			if (*table[i].key == ' ')
				one = replace_word(one, table[i].key, value);
			else
				set_for_all(d, table[i].key,
					    i == 2 ? foreign_seconds(d->f, value) : value);
		} else if (!strcmp(*w, "backup")) {
			one = text_join(one, "", " backup");
		} else if (!strncmp(*w, "send-proxy", 10)) {
			draft_set(d, ".server-send",
				  strncmp(*w, "send-proxy-v2", 13) ? "send-v1" : "send-v2");
		} else if (!strcmp(*w, "ssl")) {
			lose(d, "server ssl", NO_ENCRYPTION);
		} else if (has_word(d->f, fine, *w, "=")) {
			w += !!w[1];
		} else if (!has_word(d->f, fine, *w, "")) {
			lose(d, foreign_keep(d->f, "server %s", *w), NO_EQUAL);
		}
	}
	if (off)
		*one = '\0';
	return one;
}

static void take_default_server(struct draft *d)
{
	char *all = text_join(NULL, "", draft_find(d, ".usual") ?: "");

	draft_set(d, ".server-check", draft_find(d, ".usual-check") ?: "");
	draft_set(d, ".server-send", draft_find(d, ".usual-send") ?: "");
	draft_set(d, ".usual", text_keep(d->f, take_words(d, all, d->args)));
	draft_set(d, ".usual-check", draft_find(d, ".server-check"));
	draft_set(d, ".usual-send", draft_find(d, ".server-send"));
}

/* server NAME ADDRESS WORDS */
static void take_server(struct draft *d)
{
	static const char *const keys[][3] = { { ".server-check", ".usual-check", ".check" },
					       { ".server-send", ".usual-send", ".send" } };
	bool disabled = false; /* if not in use, else its weight is 0 */
	const char *address;
	char *one;

	d->args += !!*d->args;
	address = *d->args ?: "";
	for (char **w = d->args; *w; w++)
		disabled |= !strcmp(*w, "disabled");
	address = address_of(d->f, address, false, false);
	one = text_join(text_join(NULL, "", address), "", draft_find(d, ".usual") ?: "");
	for (int i = 0; i < 2; i++)
		draft_set(d, keys[i][0], draft_find(d, keys[i][1]) ?: "");
	one = take_words(d, one, d->args + !!*d->args);
	for (int i = 0; i < 2 && *one; i++) {
		const char *now = draft_find(d, keys[i][0]), *before = draft_find(d, keys[i][2]);

		if (before && strcmp(before, now) != 0)
			lose(d, i ? "send-proxy" : "check", "servers differ: it holds for all");
		draft_set(d, keys[i][2], before && *before ? before : now);
	}
	if (*one)
		d->upstream = text_join(d->upstream, ", ", one);
	else
		lose(d, "server",
		     foreign_keep(d->f,
				  disabled ? "%s is disabled: left out" :
					     "%s: weight 0: add it and drain it by culvert upstream",
				  address));
	free(one);
}

/* --- checks --- */

/* TEXT with escapes as in C, as blanks at its ends would be lost. */
static const char *escape(struct foreign *f, const char *text)
{
	char *all = allocated(malloc(4 * strlen(text) + 1)), *to = all;

	for (const char *at = text; *at; at++) {
		unsigned char c = (unsigned char)*at;

		if (c == '\r' || c == '\n')
			to = stpcpy(to, c == '\r' ? "\\r" : "\\n");
		else if (c < 0x20 || c >= 0x7f || strchr(";#\\", c) ||
			 (c == ' ' && (at == text || !at[1])))
			to += sprintf(to, "\\x%02x", c);
		else
			*to++ = *at;
	}
	*to = '\0';
	return text_keep(f, all);
}

/* An answer to these has the same status. */
#define METHODS " GET HEAD OPTIONS "
#define GET "culvert sends GET, without body and variables; see check-send"

static void take_httpchk(struct draft *d)
{
	char **a = d->args;

	draft_set(d, "check-http", !a[0] ? "/" : a[1] ?: a[0]);
	if (a[0] && a[1] && (!has_word(d->f, METHODS, a[0], "") || (a[2] && strchr(a[2], '\n'))))
		lose(d, NULL, GET);
}

static void take_check_send(struct draft *d)
{
	const char *head = NULL;

	for (char **a = d->args; *a; a += 1 + !!a[1]) {
		if (!strcmp(*a, "uri") && a[1]) {
			draft_set(d, "check-http", a[1]);
		} else if (!strcmp(*a, "hdr") && a[1] && a[2] && !strchr(a[2], '%')) {
			head = foreign_keep(d->f, "%s%s: %s\r\n", head ?: "", a[1], a[2]);
			a++;
		} else if (!a[1] || (strcmp(*a, "meth") ? strcmp(*a, "ver") != 0 :
							  !has_word(d->f, METHODS, a[1], ""))) {
			lose(d, NULL, GET);
		}
	}
	if (head)
		draft_set(d, "check-send", escape(d->f, head));
}

static void take_redis(struct draft *d)
{
	draft_set(d, "check-send", "PING\\r\\n");
	draft_set(d, "check-expect", "+PONG");
}

/* TEXT: http-check or tcp-check. */
static void take_expect(struct draft *d)
{
	const char *before = draft_find(d, "check-expect"), *now;

	if (d->args[0] && d->args[1] && !strcmp(d->args[0], "status") && *d->text == 'h') {
		draft_set(d, "check-status", d->args[1]);
	} else if (d->args[0] && d->args[1] && !strcmp(d->args[0], "string")) {
		now = escape(d->f, d->args[1]);
		if (before)
			lose(d, NULL, "culvert looks for one text, the longest");
		if (!before || strlen(now) > strlen(before))
			draft_set(d, "check-expect", now);
	} else {
		lose(d, NULL, "see check-status and check-expect");
	}
}

static void take_send(struct draft *d)
{
	const char *before = draft_find(d, "check-send");

	if (before)
		lose(d, NULL, "culvert sends all texts at once");
	draft_set(d, "check-send",
		  foreign_keep(d->f, "%s%s", before ?: "", escape(d->f, *d->args ?: "")));
}

/* --- the tables --- */

static const struct keyword global_words[] = {
	{ "maxconn", BOTH, take_value, "max-sessions" },
	{ "nbthread", BOTH, take_value, "workers" },
	{ "hard-stop-after", BOTH, take_seconds, "stop-timeout" },
	{ "log*", BOTH, take_note, LOG },
	{ "user|group|uid|gid", BOTH, take_note, "culvert has an account of its own: see user" },
	{ "stats*", BOTH, take_note, "culvert has a socket for commands, too: see control" },
	{ "maxconnrate|lua*|external-check", BOTH, take_lost, NO_EQUAL },
	{ "*", BOTH, NULL, "" },
};

/* The first row that fits counts. */
static const struct keyword keywords[] = {
	{ "bind", FRONT, take_bind, "" },
	{ "mode", BOTH, take_value, ".mode" },
	{ "disabled", FRONT, take_key, ".disabled yes" },
	{ "default_backend", FRONT, take_value, ".target" },
	{ "tcp-request connection", FRONT, take_request, "" },
	{ "tcp-request session", FRONT, take_lost, ADMITS },
	{ "tcp-request inspect-delay", FRONT, take_seconds, "hello-timeout" },
	{ "tcp-request content", BOTH, take_request, "-client" },
	{ "maxconn", FRONT, take_value, "max-sessions" },
	{ "rate-limit sessions", FRONT, take_value, "accept-rate" },
	{ "server", BACK, take_server, "" },
	{ "default-server", BACK, take_default_server, "" },
	{ "balance roundrobin|balance static-rr", BACK, take_key, "balance round-robin" },
	{ "balance leastconn", BACK, take_key, "balance least-sessions" },
	{ "balance source", BACK, take_key, "balance source" },
	{ "balance", BACK, take_lost, "culvert has round-robin, least-sessions and source" },
	{ "source 0.0.0.0 usesrc|source * usesrc", BACK, take_key, "transparent yes" },
	{ "source", BACK, take_host, "source" },
	{ "timeout connect", BACK, take_seconds, "connect-timeout" },
	{ "timeout check", BACK, take_seconds, "check-timeout" },
	{ "timeout queue", BACK, take_seconds, "queue-timeout" },
	{ "timeout client", FRONT, take_seconds, ".client" },
	{ "timeout server", BOTH, take_seconds, ".server" },
	{ "timeout tunnel", BOTH, take_seconds, ".tunnel" },
	{ "timeout client-fin", FRONT, take_seconds, ".client-fin" },
	{ "timeout server-fin", BOTH, take_seconds, ".server-fin" },
	{ "option httpchk", BACK, take_httpchk, "" },
	{ "http-check send", BACK, take_check_send, "" },
	{ "http-check expect", BACK, take_expect, "http-check" },
	{ "tcp-check send", BACK, take_send, "" },
	{ "tcp-check expect", BACK, take_expect, "tcp-check" },
	{ "option allbackups", BACK, take_key, ".all-backups yes" },
	{ "option redis-check", BACK, take_redis, "" },
	{ "tcp-check connect port", BACK, take_value, "check-port" },
	{ "tcp-check connect ssl|tcp-check connect send-proxy", BACK, take_lost, NO_EQUAL },
	{ "tcp-check connect", BACK, NULL, "" },
	{ "http-check*|tcp-check*|option mysql-check|option pgsql-check|option smtpchk", BACK,
	  take_lost, "see check-send and check-expect" },
	{ "stick*", BOTH, take_lost, "no such tables; balance = source keeps a client at a server" },
	{ "retries", BACK, take_note, "culvert tries each server once" },
	{ "log*|option tcplog|option httplog|option dontlog*|option log*", BOTH, take_note, LOG },
	{ "use_backend|acl|timeout http*|option tcp*|option clitcpka|option srvtcpka|option splice*|"
	  "option redispatch|option contstats|option abortonclose|option http*|"
	  "option forwardfor|http*|errorfile|stats*|description|id|enabled|backlog|fullconn",
	  BOTH, NULL, "" }, /* of HTTP or the inside of HAProxy, or read elsewhere */
	{ NULL, BOTH, take_lost, NO_EQUAL },
};

/* --- sections --- */

/* Apply the section HEAD, behind its `defaults`. */
static void apply_section(struct draft *d, struct statement *head, unsigned int roles)
{
	struct statement *sections[] = { NULL, head };

	for (struct statement *s = d->f->statements; s < head; s++)
		sections[0] = strcmp(s->words[0], "defaults") != 0 ? sections[0] : s;
	if (head->n > 3 && !strcmp(head->words[2], "from"))
		sections[0] = foreign_find(d->f, " defaults ", 1, head->words[3]);
	d->roles = roles;
	for (int i = !sections[0]; i < 2; i++) {
		struct statement *s = sections[i], *end = foreign_end(d->f, s);

		while (++s < end)
			draft_apply(d, keywords, s);
	}
	d->s = head;
}

static bool is_of_checks(const char *key)
{
	return !strncmp(key, "check", 5) || !strncmp(key, "on-", 3) || !strcmp(key, "rise") ||
	       !strcmp(key, "fall");
}

static bool is_checked(const struct draft *d)
{
	const char *check = draft_find(d, ".check");

	return check && *check;
}

/* PORTS: where clients come. */
static void end_backend(struct draft *d, const char *ports)
{
	bool checks = is_checked(d);
	const char *backup;

	if (ports)
		add_ports(d, ports);
	if (checks && !draft_find(d, "check"))
		draft_set(d, "check", "2");
	for (size_t i = 0; i < d->n_keys; i++) /* HAProxy ignores these without "check" */
		if (!checks && is_of_checks(d->keys[i].key))
			d->keys[i].key = ".";
	backup = d->upstream ? strstr(d->upstream, " backup") : NULL;
	if (backup && strstr(backup + 1, " backup") && !draft_find(d, ".all-backups"))
		lose(d, "server backup", "HAProxy uses one backup at a time, culvert all of them");
	draft_end(d, false);
	if (draft_find(d, "queue") && !draft_find(d, "queue-timeout"))
		draft_set(d, "queue-timeout", draft_find(d, "connect-timeout") ?: "86400");
}

/* The longer one of two times; NULL: there is none. */
static const char *longer(const struct draft *d, const char *a, const char *b)
{
	const char *x = draft_find(d, a), *y = draft_find(d, b);

	return x && strtod(x, NULL) >= strtod(y ?: "0", NULL) ? x : y;
}

static const char *idle_of(const struct draft *d)
{
	return draft_find(d, ".tunnel") ?: longer(d, ".client", ".server") ?: "0";
}

/*
 * The TLS server names for which the condition of S, `use_backend BACKEND if ...`, holds, or not-tls;
 * NULL: it is about something else.
 */
static const char *names_of(struct draft *d)
{
	char **at = d->s->words + 3;
	const char *test, *names;
	bool inverted;

	if (d->s->n <= 3 || strcmp(d->s->words[2], "if") != 0)
		return NULL;
	test = condition_of(d, at, TLS, &inverted);
	if (test && inverted && strstr(test, "hello_type"))
		return "not-tls";
	if (test && !inverted && strstr(test, "payload")) {
		lose(d, NULL, "it gets all clients that do not speak TLS: see not-tls");
		return "not-tls";
	}
	names = condition_of(d, at, TLS_NAME, &inverted);
	return inverted ? NULL : names;
}

/*
 * Write a section [sni] for the backend that S chooses.  It has what FRONT has: say what it lacks.
 * NULL, or the names.
 */
static const char *write_names(struct draft *front, const char *name, struct statement *s)
{
	struct draft back = { .f = front->f };
	const char *names, *send, *sends = draft_find(front, ".send") ?: "";
	struct statement *to;

	front->s = s;
	s->told = false;
	names = names_of(front);
	to = names ? foreign_find(front->f, " backend listen ", 1, s->words[1]) : NULL;
	if (!to) {
		lose(front, NULL, "culvert chooses by req.ssl_sni alone: see [sni]");
		return NULL;
	}
	to->told = true;
	apply_section(&back, to, BACK);
	back.s = s;
	end_backend(&back, draft_find(front, ".ports"));
	for (size_t i = 0; i < front->n_keys; i++) {
		const char *key = front->keys[i].key;
		const struct option_def *o = option_find(key, SCOPE_SNI);

		if (!o || draft_find(&back, key) ||
		    has_word(front->f, " upstream proxy-protocol queue queue-timeout ", key, "") ||
		    (is_of_checks(key) && strcmp(key, "check") && !is_checked(&back)))
			continue;
		if (o->initial)
			draft_set(&back, o->name, o->initial);
		else
			lose(&back, key, "the forward's holds for this backend, too");
	}
	if (strtod(idle_of(&back), NULL) > strtod(idle_of(front), NULL))
		lose(&back, "timeout", "idle-timeout of the forward holds for this backend, too");
	send = draft_find(&back, ".send") ?: "";
	if (strcmp(send, sends) != 0)
		draft_set(&back, "proxy-protocol", *send ? send : "off");
	draft_write(&back, foreign_keep(front->f, "sni %s %s", name, names));
	draft_close(&back);
	return names;
}

/* Write the sections [sni] of the forward NAME, which D and HEAD are. */
static void write_all_names(struct draft *d, struct statement *head, const char *name)
{
	bool tls_only = draft_find(d, ".tls-only"), some = false, others = tls_only;
	struct statement *end = foreign_end(d->f, head);
	const char *names;

	for (struct statement *s = head + 1; s < end; s++) {
		if (strcmp(s->words[0], "use_backend") != 0)
			continue;
		names = write_names(d, name, s);
		some |= !!names;
		others |= names && !strcmp(names, "not-tls");
	}
	d->s = head;
	if (some && !others)
		draft_write_not_tls(d, name);
	if (!some && tls_only)
		lose(d, "tcp-request content", ADMITS);
}

/* HEAD: a frontend, or a section "listen". */
static void write_forward(struct foreign *f, struct statement *head)
{
	struct draft d = { .f = f };
	const char *name = head->n > 1 ? head->words[1] : "", *mode, *target, *fin;
	struct statement *to;

	apply_section(&d, head, *head->words[0] == 'l' ? BOTH : FRONT);
	mode = draft_find(&d, ".mode") ?: "tcp"; /* the backend has one of its own */
	target = draft_find(&d, ".target");
	to = target ? foreign_find(f, " backend listen ", 1, target) : NULL;
	if (to && to != head) {
		apply_section(&d, to, BACK);
		to->told = true;
	}
	d.s = head;
	if (strcmp(mode, "tcp") != 0 || draft_find(&d, ".disabled")) {
		lose(&d, name, "mode http, or disabled; culvert has metrics, and `culvert top`");
		draft_close(&d);
		return;
	}
	end_requests(&d);
	end_backend(&d, draft_find(&d, ".ports"));
	if (strcmp(idle_of(&d), "0") != 0)
		draft_set(&d, "idle-timeout", idle_of(&d));
	fin = longer(&d, ".client-fin", ".server-fin");
	if (fin)
		draft_set(&d, "fin-timeout", fin);
	draft_end(&d, true);
	name = foreign_name(f, name);
	draft_write(&d, foreign_keep(f, "forward %s", name));
	write_all_names(&d, head, name);
	draft_close(&d);
}

/* --- the file --- */

static bool is_section(const char *word)
{
	static const char kinds[] =
		" global defaults frontend backend listen resolvers peers userlist mailers cache "
		"http-errors crt-store ring program log-forward log-profile fcgi-app traces acme ";
	char room[24];

	return snprintf(room, sizeof(room), " %s ", word) < (int)sizeof(room) &&
	       strstr(kinds, room);
}

bool haproxy_is(const char *text)
{
	char word[20];

	return sscanf(foreign_begin(text), "%19s", word) == 1 && is_section(word);
}

const char *haproxy_convert(struct foreign *f, char *text)
{
	const char *wrong = foreign_read(f, text, false), *kind = "";
	struct statement *end = f->statements + (wrong ? 0 : f->n), *s;
	struct draft d = { .f = f, .roles = BOTH };

	f->unit = 1;
	f->queue = "1000000";
	for (s = f->statements; s < end; s++) {
		s->depth = !is_section(s->words[0]); /* the first begins one, see haproxy_is() */
		kind = s->depth ? kind : s->words[0];
		if (s->depth && !strcmp(kind, "global"))
			draft_apply(&d, global_words, s);
	}
	if (d.n_keys)
		draft_write(&d, "culvert");
	for (s = f->statements; s < end; s++)
		if (!s->depth && has_word(f, " listen frontend ", s->words[0], ""))
			write_forward(f, s);
	for (s = f->statements; s < end; s++) {
		d.s = s;
		if (!s->depth && !s->told &&
		    !has_word(f, " global defaults listen frontend ", s->words[0], ""))
			lose(&d, NULL, "no forward above uses it");
	}
	draft_close(&d);
	return wrong;
}
