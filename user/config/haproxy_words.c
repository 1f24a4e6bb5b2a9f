// SPDX-License-Identifier: BSD-2-Clause
/*
 * A table says what each keyword does, and in which sections it has a meaning.
 *
 * HAProxy checks servers one by one, culvert checks all servers of a forward in one way.  So what
 * stands behind one server holds for all.
 */
#include "config/haproxy_words.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define NO_EQUAL "culvert has no equal"

/* --- values --- */

static void lose(struct proxy *p, const char *keyword, const char *reason)
{
	foreign_lost(p->f, p->s, keyword, reason);
}

/* Does WORD, with END behind it, stand in LIST, between blanks? */
static bool has_word(struct proxy *p, const char *list, const char *word, const char *end)
{
	return strstr(list, foreign_keep(p->f, " %.40s%s ", word, end));
}

/* Milliseconds; without a unit TEXT is in units of UNIT ms. */
static unsigned long long time_of(const char *text, unsigned int unit)
{
	char *end;
	unsigned long long n = strtoull(text, &end, 10);

	n = n < 1ULL << 40 ? n : 1ULL << 40;
	return !strcmp(end, "us") ? (n + 999) / 1000 :
	       !strcmp(end, "ms") ? n :
	       *end == 's'        ? n * 1000 :
	       *end == 'm'        ? n * 60000 :
	       *end == 'h'        ? n * 3600000 :
	       *end == 'd'        ? n * 86400000 :
				    n * unit;
}

/* TEXT, HOST:PORT of `bind` or `server`, as culvert writes it.  V6ONLY: not IPv4, too, at "::". */
static const char *address_of(struct proxy *p, const char *text, bool listens, bool v6only)
{
	const char *at = strchr(text, '@'), *colon;
	bool v6;

	if (!strncmp(text, "unix@", 5) || *text == '/')
		return foreign_keep(p->f, "unix:%s", *text == '/' ? text : at + 1);
	if (!strncmp(text, "abns@", 5))
		return foreign_keep(p->f, "unix:@%s", at + 1);
	v6 = !strncmp(text, "ipv6@", 5);
	if (v6 || !strncmp(text, "ipv4@", 5) || !strncmp(text, "tcp", 3))
		text = at ? at + 1 : text;
	colon = strrchr(text, ':');
	if (!colon || !colon[1])
		return NULL;
	if (listens && (colon == text || (*text == '*' && colon == text + 1)) && !v6)
		return foreign_keep(p->f, "0.0.0.0%s", colon);
	if (listens && (!strncmp(text, "::", (size_t)(colon - text)) || v6) && colon - text <= 2)
		return foreign_keep(p->f, v6only ? "[::]%s" : "%s", colon);
	return foreign_keep(p->f,
			    *text != '[' && memchr(text, ':', (size_t)(colon - text)) ? "[%.*s]%s" :
											"%.*s%s",
			    (int)(colon - text), text, colon);
}

/* --- frontends --- */

/* One address at ":PORT" takes what 0.0.0.0:PORT would. */
static void add_listen(struct proxy *p, const char *address)
{
	for (size_t i = 0; i < p->keys.n; i++) {
		const char *before = p->keys.all[i].value;

		if (strcmp(p->keys.all[i].key, "listen") != 0)
			continue;
		if (!strcmp(before, address) ||
		    (*before == ':' && !strncmp(address, "0.0.0.0", 7) &&
		     !strcmp(before, address + 7)))
			return;
		if (*address == ':' && !strncmp(before, "0.0.0.0", 7) &&
		    !strcmp(before + 7, address)) {
			p->keys.all[i].value = address;
			return;
		}
	}
	keys_add(&p->keys, p->s, "listen", address);
}

static void take_bind(struct proxy *p)
{
	/* words that change nothing; those with "=" have a value */
	static const char fine[] = " name= id= nice= backlog= thread= process= shards= level= tfo "
				   "v4v6 v6only defer-accept crt= alpn= ca-file= verify= ciphers= "
				   "ssl-min-ver= no-sslv3 no-tlsv10 ";
	bool v6only = false;
	const char *address;

	for (char **a = p->args; *a; a++)
		v6only |= !strcmp(*a, "v6only");
	for (char *all = *p->args, *one; (one = strsep(&all, ","));) {
		address = address_of(p, one, true, v6only);
		if (address)
			add_listen(p, address);
		else
			lose(p, "bind", "expected an address and a port");
	}
	for (char **a = p->args + !!*p->args; *a; a++) {
		if (!strcmp(*a, "accept-proxy"))
			p->receives = true;
		else if (!strcmp(*a, "ssl"))
			lose(p, "bind ssl", "culvert does not decrypt: the servers get TLS");
		else if (has_word(p, fine, *a, "="))
			a += !!a[1];
		else if (!has_word(p, fine, *a, ""))
			lose(p, foreign_keep(p->f, "bind %s", *a), NO_EQUAL);
	}
}

/* --- conditions --- */

/*
 * The values of N words, "src A B" or "req.ssl_sni -i A B", as culvert writes clients, or (SNI) the
 * names of [sni].  NULL: they are about something else, or compare in another way.
 */
static const char *values_of(struct proxy *p, char **words, size_t n, bool sni)
{
	bool end = false, bad = false;
	struct text all = { 0 };
	const char *kept;
	size_t i = 1;

	if (!n ||
	    (sni ? strcmp(words[0], "req_ssl_sni") != 0 && strcmp(words[0], "req.ssl_sni") != 0 &&
			     strcmp(words[0], "req.ssl_sni,lower") != 0 :
		   strcmp(words[0], "src") != 0))
		return NULL;
	for (; i < n && *words[i] == '-'; i++) {
		bool by = sni && !strcmp(words[i], "-m") && i + 1 < n;

		end = by ? !strcmp(words[i + 1], "end") : end;
		if (by ? !end && strcmp(words[i + 1], "str") != 0 :
			 strcmp(words[i], "--") != 0 && strcmp(words[i], "-i") != 0)
			return NULL;
		i += by;
	}
	for (; i < n; i++) {
		bad |= end && *words[i] != '.';
		text_join(&all, sni ? " " : ", ", end ? "*" : "");
		text_join(&all, "", words[i]);
	}
	kept = text_keep(p->f, &all);
	return bad ? NULL : kept;
}

/*
 * The values of a term of a condition, "{ src A }" or the name of an `acl` above, without "!".
 * WORDS: behind its first word.  USED: how many of them belong to the term.
 */
static const char *term_of(struct proxy *p, const char *first, char **words, size_t *used, bool sni)
{
	struct text all = { 0 };
	const char *more;

	for (*used = 0; !strcmp(first, "{"); ++*used) {
		if (!words[*used])
			return NULL;
		if (!strcmp(words[*used], "}")) {
			++*used;
			return values_of(p, words, *used - 1, sni);
		}
	}
	for (const struct statement *s = p->f->statements; s < p->s; s++) {
		if (s->depth != p->s->depth || s->n < 3 || strcmp(s->words[0], "acl") != 0 ||
		    strcmp(s->words[1], first) != 0)
			continue;
		more = values_of(p, s->words + 2, s->n - 2, sni);
		if (!more) {
			free(all.all);
			return NULL;
		}
		text_join(&all, sni ? " " : ", ", more);
	}
	return text_keep(p->f, &all);
}

/* tcp-request connection|content accept|reject [if CONDITION] */
static void take_request(struct proxy *p)
{
	bool content = !strcmp(p->text, "content"),
	     reject = *p->args && !strcmp(*p->args, "reject");
	bool accept = *p->args && !strcmp(*p->args, "accept"), no;
	const char *clients = reject && !p->args[1] ? "all" : NULL, *first;
	char **rest = p->args + !!*p->args;
	size_t used;

	if (content && accept && p->s->n > 5 && strstr(p->s->words[5], "ssl_hello_type"))
		return; /* HAProxy must be told to wait for the name */
	no = *rest && !strcmp(*rest, "unless");
	if ((accept || reject) && *rest && rest[1] && (no || !strcmp(*rest, "if"))) {
		first = *++rest;
		if (*first == '!') {
			no = !no;
			first = first[1] || !rest[1] ? first + 1 : *++rest;
		}
		clients = term_of(p, first, ++rest, &used, false);
		if (clients && rest[used])
			clients = NULL;
	}
	/* "content" comes later, and knows the client of the PROXY header */
	if (!clients || p->closed || (content && (p->accepts || p->receives)) || (accept && no)) {
		lose(p, foreign_keep(p->f, "tcp-request %s", p->text),
		     "culvert may let in clients that HAProxy refuses: see allow and deny");
		return;
	}
	keys_add(&p->keys, p->s, accept || no ? "allow" : "deny", clients);
	p->closed |= no;
	p->accepts |= accept;
}

/* --- settings --- */

/* TEXT: the number of the time. */
static void take_time(struct proxy *p)
{
	p->ms[*p->text - '0'] = time_of(*p->args ?: "", 1);
}

/* TEXT: the key. */
static void take_seconds(struct proxy *p)
{
	if (!strcmp(p->text, "connect-timeout"))
		foreign_once(p->f, p->s, "timeout connect",
			     "connect-timeout is for all servers together, not for each");
	keys_set(&p->keys, p->s, p->text,
		 foreign_seconds(p->f, time_of(*p->args ?: "", p->roles == GLOBAL ? 1000 : 1)));
}

static void take_value(struct proxy *p)
{
	keys_set(&p->keys, p->s, p->text, *p->args ?: "");
}

static void take_mode(struct proxy *p)
{
	p->http = *p->args && !strcmp(*p->args, "tcp") ? NULL : p->s;
}

static void take_disabled(struct proxy *p)
{
	p->disabled = p->s;
}

static void take_backend(struct proxy *p)
{
	p->backend = *p->args;
}

static void take_balance(struct proxy *p)
{
	const char *how = *p->args ?: "";

	how = !strcmp(how, "roundrobin") || !strcmp(how, "static-rr") ? "round-robin" :
	      !strcmp(how, "leastconn")                               ? "least-sessions" :
	      !strcmp(how, "source")                                  ? "source" :
									NULL;
	if (how)
		keys_set(&p->keys, p->s, "balance", how);
	else
		lose(p, "balance", "culvert has round-robin, least-sessions and source");
}

/* ADDRESS may have a port; REST: the words behind it. */
static void set_source(struct proxy *p, const char *address, char **rest)
{
	for (char **a = rest; *a; a++)
		if (!strcmp(*a, "interface") && a[1])
			keys_set(&p->keys, p->s, "interface", *++a);
		else if (!strcmp(*a, "usesrc") && a[1] && !strncmp(*++a, "client", 6))
			keys_set(&p->keys, p->s, "transparent", "yes");
		else
			lose(p, "source", NO_EQUAL);
	if (strcmp(address, "0.0.0.0") != 0 && strcmp(address, "*") != 0)
		keys_set(&p->keys, p->s, "source", foreign_host(p->f, address));
}

static void take_source(struct proxy *p)
{
	set_source(p, *p->args ?: "", p->args + !!*p->args);
}

/* --- servers --- */

/* Words behind a server that change nothing; those with "=" have a value. */
static const char server_fine[] =
	" id= cookie= resolvers= resolve-prefer= resolve-net= resolve-opts= init-addr= guid= verify= "
	"verifyhost= ca-file= crl-file= crt= minconn= pool-max-conn= pool-purge-delay= enabled tfo "
	"non-stick check-send-proxy no-check no-backup sni= ciphers= ciphersuites= ";
/* Others with a value, which have no equal. */
static const char server_valued[] =
	" maxqueue= slowstart= track= observe= on-error= error-limit= fastinter= downinter= addr= "
	"agent-addr= agent-inter= agent-port= agent-send= check-sni= alpn= check-alpn= namespace= "
	"proto= check-proto= proxy-v2-options= tcp-ut= socks4= redir= log-proto= on-marked-down= "
	"on-marked-up= usesrc= interface= ";

/* What one server has holds for all. */
static void set_for_all(struct proxy *p, const char *key, const char *value)
{
	const char *before = keys_find(&p->keys, key);

	if (before && strcmp(before, value) != 0 && strcmp(p->s->words[0], "default-server") != 0)
		lose(p, key, "servers differ: the last value holds for all");
	keys_set(&p->keys, p->s, key, value);
}

/* WORD, and its value.  True: they are taken. */
static bool take_valued(struct proxy *p, struct proxy_server *to, const char *word,
			const char *value)
{
	if (!strcmp(word, "weight"))
		to->weight = strtoul(value, NULL, 10);
	else if (!strcmp(word, "port"))
		to->check_port = strtoul(value, NULL, 10);
	else if (!strcmp(word, "inter"))
		set_for_all(p, "check", foreign_seconds(p->f, time_of(value, 1)));
	else if (!strcmp(word, "rise") || !strcmp(word, "fall"))
		set_for_all(p, *word == 'r' ? "rise" : "fall", value);
	else if (!strcmp(word, "on-marked-down") && !strcmp(value, "shutdown-sessions"))
		set_for_all(p, "on-down", "reset");
	else if (!strcmp(word, "on-marked-up") && !strcmp(value, "shutdown-backup-sessions"))
		set_for_all(p, "on-backup", "reset");
	else if (!strcmp(word, "source"))
		set_source(p, value, (char *[]){ NULL });
	else if (!strcmp(word, "maxconn"))
		lose(p, "server maxconn",
		     "culvert limits a forward, not a server: see max-sessions");
	else
		return false;
	return true;
}

static void take_words(struct proxy *p, struct proxy_server *to, char **words)
{
	for (char **w = words; *w; w++) {
		if (w[1] && take_valued(p, to, *w, w[1])) {
			w++;
			continue;
		}
		if (!strcmp(*w, "backup"))
			to->backup = true;
		else if (!strcmp(*w, "check"))
			to->checked = true;
		else if (!strncmp(*w, "send-proxy", 10))
			p->sends = strncmp(*w, "send-proxy-v2", 13) ? 1 : 2;
		else if (!strcmp(*w, "disabled"))
			to->off = true;
		else if (!strcmp(*w, "ssl"))
			lose(p, "server ssl", "culvert does not encrypt: clients must speak TLS");
		else if (!has_word(p, server_fine, *w, "") && !has_word(p, server_fine, *w, "="))
			lose(p, foreign_keep(p->f, "server %s", *w), NO_EQUAL);
		if (w[1] &&
		    (has_word(p, server_fine, *w, "=") || has_word(p, server_valued, *w, "=")))
			w++;
	}
}

static void take_default_server(struct proxy *p)
{
	take_words(p, &p->usual, p->args);
}

/* server NAME ADDRESS WORDS, or server-template PREFIX NUMBER ADDRESS WORDS (TEXT) */
static void take_server(struct proxy *p)
{
	struct proxy_server one = p->usual;

	for (size_t i = *p->text ? 2 : 1; i && *p->args; i--)
		p->args++;
	if (!*p->args) {
		lose(p, "server", "no address");
		return;
	}
	if (*p->text)
		keys_set(&p->keys, p->s, "each-address", "yes");
	one.address = address_of(p, *p->args, false, false) ?: foreign_keep(p->f, "%s:", *p->args);
	take_words(p, &one, p->args + 1);
	if (one.off || !one.weight) {
		lose(p, "server",
		     foreign_keep(p->f, "%s is disabled, or has no weight: left out", one.address));
		return;
	}
	p->servers = array_grow(p->servers, p->n_servers, sizeof(*p->servers));
	one.s = p->s;
	p->servers[p->n_servers++] = one;
	p->n_checked += one.checked;
}

/* --- checks --- */

static void take_httpchk(struct proxy *p)
{
	keys_set(&p->keys, p->s, "check-http", !p->args[0] ? "/" : p->args[1] ?: p->args[0]);
	if (p->args[0] && p->args[1] && !strstr("GET HEAD OPTIONS", p->args[0]))
		lose(p, "option httpchk", "culvert sends GET");
	if (p->s->n > 4 && strchr(p->args[2], '\n'))
		lose(p, "option httpchk", "culvert sends the server as Host; see check-send");
}

static void take_check_send(struct proxy *p)
{
	for (char **a = p->args; *a; a++)
		if (!strcmp(*a, "uri") && a[1])
			keys_set(&p->keys, p->s, "check-http", *++a);
		else if (a[1] && (!strcmp(*a, "ver") ||
				  (!strcmp(*a, "meth") && strstr("GET HEAD OPTIONS", a[1]))))
			a++;
		else {
			lose(p, "http-check send",
			     "culvert sends the server as Host; see check-send");
			return;
		}
}

/* The text that an answer must have: of several the longest, which says most. */
static void take_string(struct proxy *p, const char *string)
{
	if (p->expect)
		lose(p, "tcp-check expect", "culvert looks for one text, the longest");
	if (!p->expect || strlen(string) > strlen(p->expect))
		p->expect = string;
}

/* TEXT: http-check or tcp-check. */
static void take_expect(struct proxy *p)
{
	for (; p->args[0] && p->args[1] && strcmp(p->args[0], "!") != 0; p->args++)
		if (!strcmp(p->args[0], "status") && *p->text == 'h') {
			keys_set(&p->keys, p->s, "check-status", p->args[1]);
			return;
		} else if (!strcmp(p->args[0], "string")) {
			take_string(p, p->args[1]);
			return;
		}
	lose(p, foreign_keep(p->f, "%s expect", p->text), "see check-status and check-expect");
}

static void take_send(struct proxy *p)
{
	if (p->send)
		lose(p, "tcp-check send", "culvert sends all texts at once");
	p->send = foreign_keep(p->f, "%s%s", p->send ?: "", *p->args ?: "");
}

static void take_redis(struct proxy *p)
{
	p->send = "PING\r\n";
	p->expect = "+PONG";
}

static void take_smtp(struct proxy *p)
{
	p->expect = "220";
}

static void take_tcp_connect(struct proxy *p)
{
	for (char **a = p->args; *a; a++)
		if (!strcmp(*a, "port") && a[1])
			keys_set(&p->keys, p->s, "check-port", *++a);
		else if (!strcmp(*a, "comment") && a[1])
			a++;
		else if (strcmp(*a, "default") != 0)
			lose(p, "tcp-check connect", foreign_keep(p->f, "%s: " NO_EQUAL, *a));
}

/* --- the table --- */

/* The keyword and the first argument. */
static const char *title(struct proxy *p)
{
	return foreign_keep(p->f, "%s%s%.40s", p->s->words[0], p->s->words[1] ? " " : "",
			    p->s->words[1] ?: "");
}

static void take_once(struct proxy *p)
{
	foreign_once(p->f, p->s, title(p), p->text);
}

static void take_lost(struct proxy *p)
{
	lose(p, title(p), p->text);
}

#define LOG "culvert logs sessions as JSON: see session-log"
#define ACCOUNT "culvert has an account of its own: see user"
#define CONNECTS "culvert does not speak this; see check-send and check-expect"
#define TABLES "culvert has no such tables; balance = source keeps a client at a server"

/* Change nothing: culvert does the same, or they are for HTTP or the inside of HAProxy. */
static const char *const quiet[] = {
	"use_backend",
	"acl", /* see proxy_names(), term_of() */
	"timeout queue",
	"timeout http*",
	"timeout tarpit",
	"tcp-check comment",
	"option tcp-check",
	"option clitcpka",
	"option srvtcpka",
	"option tcpka",
	"option tcp-smart*",
	"option splice*",
	"option redispatch",
	"option allbackups",
	"option contstats",
	"option socket-stats",
	"option abortonclose",
	"option forwardfor",
	"option http*",
	"http*",
	"errorfile",
	"stats*",
	"description",
	"id",
	"guid",
	"enabled",
	"backlog",
	"fullconn",
	"hash-type",
	"retry-on",
	"unique-id*",
	"load-server-state*",
};

/* "*" at the end: any letters may follow.  The first row that fits counts. */
static const struct keyword {
	const char *words;
	unsigned int roles;
	void (*take)(struct proxy *p);
	const char *text;
} keywords[] = {
	{ "bind", FRONT, take_bind, "" },
	{ "mode", FRONT | BACK, take_mode, "" },
	{ "disabled", FRONT | BACK, take_disabled, "" },
	{ "default_backend", FRONT, take_backend, "" },
	{ "tcp-request connection", FRONT, take_request, "connection" },
	{ "tcp-request inspect-delay", FRONT, take_seconds, "hello-timeout" },
	{ "tcp-request content", FRONT | BACK, take_request, "content" },
	{ "maxconn", FRONT | GLOBAL, take_value, "max-sessions" },
	{ "rate-limit sessions", FRONT, take_value, "accept-rate" },
	{ "server", BACK, take_server, "" },
	{ "server-template", BACK, take_server, "template" },
	{ "default-server", BACK, take_default_server, "" },
	{ "balance", BACK, take_balance, "" },
	{ "source", BACK, take_source, "" },
	{ "timeout connect", BACK, take_seconds, "connect-timeout" },
	{ "timeout check", BACK, take_seconds, "check-timeout" },
	{ "timeout client", FRONT, take_time, "0" }, /* of enum time */
	{ "timeout server", BACK, take_time, "1" },
	{ "timeout tunnel", BACK, take_time, "2" },
	{ "timeout client-fin", FRONT, take_time, "3" },
	{ "timeout server-fin", BACK, take_time, "4" },
	{ "option httpchk", BACK, take_httpchk, "" },
	{ "http-check send", BACK, take_check_send, "" },
	{ "http-check expect", BACK, take_expect, "http-check" },
	{ "http-check*", BACK, take_lost, NO_EQUAL },
	{ "tcp-check connect", BACK, take_tcp_connect, "" },
	{ "tcp-check send", BACK, take_send, "" },
	{ "tcp-check send-lf", BACK, take_send, "" },
	{ "tcp-check expect", BACK, take_expect, "tcp-check" },
	{ "option redis-check", BACK, take_redis, "" },
	{ "option smtpchk", BACK, take_smtp, "" },
	{ "option mysql-check", BACK, take_lost, CONNECTS },
	{ "option pgsql-check", BACK, take_lost, CONNECTS },
	{ "option ldap-check", BACK, take_lost, CONNECTS },
	{ "option ssl-hello-chk", BACK, take_lost, CONNECTS },
	{ "stick*", FRONT | BACK, take_lost, TABLES },
	{ "retries", BACK, take_once, "culvert tries each server once" },
	{ "log*", FRONT | BACK | GLOBAL, take_once, LOG },
	{ "option tcplog", FRONT | BACK, take_once, LOG },
	{ "option httplog", FRONT | BACK, take_once, LOG },
	{ "option dontlog*", FRONT | BACK, take_once, LOG },
	{ "option log*", FRONT | BACK, take_once, LOG },
	{ "nbthread", GLOBAL, take_value, "workers" },
	{ "hard-stop-after", GLOBAL, take_seconds, "stop-timeout" },
	{ "user", GLOBAL, take_once, ACCOUNT },
	{ "group", GLOBAL, take_once, ACCOUNT },
	{ "uid", GLOBAL, take_once, ACCOUNT },
	{ "gid", GLOBAL, take_once, ACCOUNT },
	{ "stats*", GLOBAL, take_once, "culvert has a socket for commands, too: see control" },
	{ "maxconnrate", GLOBAL, take_lost, "see accept-rate of the forwards" },
	{ "lua*", GLOBAL, take_lost, NO_EQUAL },
};

/* How many of WORDS are the keyword AT; 0: they are another one. */
static size_t keyword_fits(const char *at, char **words)
{
	size_t n = 0, len;

	for (; *at && words[n]; n++, at += len + !!at[len]) {
		len = strcspn(at, " ");
		if (at[len - 1] == '*')
			return strncmp(words[n], at, len - 1) ? 0 : n + 1;
		if (strlen(words[n]) != len || strncmp(words[n], at, len) != 0)
			return 0;
	}
	return *at ? 0 : n;
}

void proxy_apply(struct proxy *p, struct statement *s)
{
	bool no = !strcmp(s->words[0], "no"), known = p->roles == GLOBAL, undone = false;
	size_t n, i;

	p->s = s;
	for (i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
		const struct keyword *k = &keywords[i];

		n = keyword_fits(k->words, s->words + no);
		known |= n;
		if (!n || !(k->roles & p->roles))
			continue;
		p->args = s->words + n;
		p->text = k->text;
		undone = no && k->take != take_once;
		if (!no)
			k->take(p);
		break;
	}
	for (i = 0; i < sizeof(quiet) / sizeof(quiet[0]) && !known; i++)
		known = keyword_fits(quiet[i], s->words + no);
	if (!known || undone)
		lose(p, title(p), NO_EQUAL);
	s->told = true;
}

const char *proxy_names(struct proxy *p, const struct statement *s)
{
	struct text all = { 0 };
	char **at = s->words + 3;
	const char *more, *kept;
	bool good = s->n > 3 && !strcmp(s->words[2], "if");
	size_t used;

	p->s = s;
	for (; good; at++) {
		more = *at ? term_of(p, *at, at + 1, &used, true) : NULL;
		good = more;
		if (!good)
			break;
		text_join(&all, " ", more);
		at += 1 + used;
		if (!*at)
			break;
		good = !strcmp(*at, "or") || !strcmp(*at, "||");
	}
	kept = text_keep(p->f, &all);
	return good ? kept : NULL;
}
