// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a forward is a frontend and its default backend, or a section "listen",
 * which is both.  The statements of `defaults`, of the frontend and of the backend are applied to one
 * struct proxy, in this order; a table says what each keyword does, and in which of the sections it
 * has a meaning.  Backends that are chosen by the TLS server name become sections [sni].
 *
 * HAProxy checks servers one by one, culvert checks all servers of a forward in one way.  So what
 * stands behind one server holds for all.
 */
#include "config/haproxy.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config/foreign.h"

#define BLANKS " \t\r"
#define NO_EQUAL "culvert has no equal"

enum { FRONT = 1, BACK = 2, GLOBAL = 4 };
enum time { CLIENT, SERVER, TUNNEL, CLIENT_FIN, SERVER_FIN, TIMES };

struct server {
	const char *address;
	unsigned long weight, check_port;
	bool backup, off, checked;
};

struct proxy {
	struct foreign *f;
	unsigned int roles;        /* of the section that is applied */
	const struct statement *s; /* that is applied */
	struct keys keys;
	struct server *servers, usual; /* USUAL: default-server */
	size_t n_servers;
	unsigned long long ms[TIMES];
	const struct statement *http, *disabled;
	const char *backend; /* default_backend */
	const char *send, *expect;
	size_t n_checked;
	bool receives, closed, accepts; /* CLOSED: whom no rule allows may not connect */
	int sends;                      /* the version of the PROXY header */
};

struct section {
	const struct statement *head;
	size_t first, end; /* of its statements */
	const struct section *defaults;
	bool used;
};

struct haproxy {
	struct foreign *f;
	struct section *sections;
	size_t n;
};

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

static void take_bind(struct proxy *p, char **args, const char *text)
{
	/* words that change nothing; those with "=" have a value */
	static const char fine[] = " name= id= nice= backlog= thread= process= shards= level= tfo "
				   "v4v6 v6only defer-accept crt= alpn= ca-file= verify= ciphers= "
				   "ssl-min-ver= no-sslv3 no-tlsv10 ";
	bool v6only = false;
	const char *address;

	(void)text;
	for (char **a = args; *a; a++)
		v6only |= !strcmp(*a, "v6only");
	for (char *all = *args, *one; (one = strsep(&all, ","));) {
		address = address_of(p, one, true, v6only);
		if (address)
			add_listen(p, address);
		else
			lose(p, "bind", "expected an address and a port");
	}
	for (char **a = args + !!*args; *a; a++) {
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
	const char *all = "";
	bool end = false;
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
		if (end && *words[i] != '.')
			return NULL;
		all = foreign_keep(p->f, "%s%s%s%s", all,
				   !*all ? "" :
				   sni   ? " " :
					   ", ",
				   end ? "*" : "", words[i]);
	}
	return *all ? all : NULL;
}

/*
 * The values of a term of a condition, "{ src A }" or the name of an `acl` above, without "!".
 * WORDS: behind its first word.  USED: how many of them belong to the term.
 */
static const char *term_of(struct proxy *p, const char *first, char **words, size_t *used, bool sni)
{
	const char *all = NULL, *more;

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
		if (!more)
			return NULL;
		all = all ? foreign_keep(p->f, sni ? "%s %s" : "%s, %s", all, more) : more;
	}
	return all;
}

/* tcp-request connection|content accept|reject [if CONDITION] */
static void take_request(struct proxy *p, char **args, const char *text)
{
	bool content = !strcmp(text, "content"), reject = *args && !strcmp(*args, "reject");
	bool accept = *args && !strcmp(*args, "accept"), no;
	const char *clients = reject && !args[1] ? "all" : NULL, *first;
	char **rest = args + !!*args;
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
	if (!clients || p->closed || (content && p->accepts) || (accept && no)) {
		lose(p, foreign_keep(p->f, "tcp-request %s", text),
		     "culvert may let in clients that HAProxy refuses: see allow and deny");
		return;
	}
	keys_add(&p->keys, p->s, accept || no ? "allow" : "deny", clients);
	p->closed |= no;
	p->accepts |= accept;
}

/* --- settings --- */

/* TEXT: the number of the time. */
static void take_time(struct proxy *p, char **args, const char *text)
{
	p->ms[*text - '0'] = time_of(*args ?: "", 1);
}

/* TEXT: the key. */
static void take_seconds(struct proxy *p, char **args, const char *text)
{
	if (!strcmp(text, "connect-timeout"))
		foreign_once(p->f, p->s, "timeout connect",
			     "connect-timeout is for all servers together, not for each");
	keys_set(&p->keys, p->s, text,
		 foreign_seconds(p->f, time_of(*args ?: "", p->roles == GLOBAL ? 1000 : 1)));
}

static void take_value(struct proxy *p, char **args, const char *text)
{
	keys_set(&p->keys, p->s, text, *args ?: "");
}

static void take_mode(struct proxy *p, char **args, const char *text)
{
	(void)text;
	p->http = *args && !strcmp(*args, "tcp") ? NULL : p->s;
}

static void take_disabled(struct proxy *p, char **args, const char *text)
{
	(void)args;
	(void)text;
	p->disabled = p->s;
}

static void take_backend(struct proxy *p, char **args, const char *text)
{
	(void)text;
	p->backend = *args;
}

static void take_balance(struct proxy *p, char **args, const char *text)
{
	const char *how = *args ?: "";

	(void)text;
	how = !strcmp(how, "roundrobin") || !strcmp(how, "static-rr") ? "round-robin" :
	      !strcmp(how, "leastconn")                               ? "least-sessions" :
	      !strcmp(how, "source")                                  ? "source" :
									NULL;
	if (how)
		keys_set(&p->keys, p->s, "balance", how);
	else
		lose(p, "balance", "culvert has round-robin, least-sessions and source");
}

static void take_source(struct proxy *p, char **args, const char *text)
{
	const char *at = *args ?: "";

	(void)text;
	for (char **a = args + !!*args; *a; a++)
		if (!strcmp(*a, "interface") && a[1])
			keys_set(&p->keys, p->s, "interface", *++a);
		else if (!strcmp(*a, "usesrc") && a[1] && !strncmp(*++a, "client", 6))
			keys_set(&p->keys, p->s, "transparent", "yes");
		else
			lose(p, "source", NO_EQUAL);
	if (strcmp(at, "0.0.0.0") != 0 && strcmp(at, "*") != 0)
		keys_set(&p->keys, p->s, "source", /* without a port of IPv4 */
			 foreign_keep(p->f, "%.*s",
				      (int)(strchr(at, '.') ? strcspn(at, ":") : strlen(at)), at));
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
static bool take_valued(struct proxy *p, struct server *to, const char *word, const char *value)
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
		take_source(p, (char *[]){ (char *)value, NULL }, "");
	else if (!strcmp(word, "maxconn"))
		lose(p, "server maxconn",
		     "culvert limits a forward, not a server: see max-sessions");
	else
		return false;
	return true;
}

static void take_words(struct proxy *p, struct server *to, char **words)
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

static void take_default_server(struct proxy *p, char **args, const char *text)
{
	(void)text;
	take_words(p, &p->usual, args);
}

/* server NAME ADDRESS WORDS, or server-template PREFIX NUMBER ADDRESS WORDS (TEXT) */
static void take_server(struct proxy *p, char **args, const char *text)
{
	struct server one = p->usual;

	for (size_t i = *text ? 2 : 1; i && *args; i--)
		args++;
	if (!*args) {
		lose(p, "server", "no address");
		return;
	}
	if (*text)
		keys_set(&p->keys, p->s, "each-address", "yes");
	one.address = address_of(p, *args, false, false) ?: foreign_keep(p->f, "%s:", *args);
	take_words(p, &one, args + 1);
	if (one.off || !one.weight) {
		lose(p, "server",
		     foreign_keep(p->f, "%s is disabled, or has no weight: left out", one.address));
		return;
	}
	p->servers = array_grow(p->servers, p->n_servers, sizeof(*p->servers));
	p->servers[p->n_servers++] = one;
	p->n_checked += one.checked;
}

/* --- checks --- */

static void take_httpchk(struct proxy *p, char **args, const char *text)
{
	(void)text;
	keys_set(&p->keys, p->s, "check-http", !args[0] ? "/" : args[1] ?: args[0]);
	if (args[0] && args[1] && !strstr("GET HEAD OPTIONS", args[0]))
		lose(p, "option httpchk", "culvert sends GET");
	if (p->s->n > 4 && strchr(args[2], '\n'))
		lose(p, "option httpchk", "culvert sends the server as Host; see check-send");
}

static void take_check_send(struct proxy *p, char **args, const char *text)
{
	(void)text;
	for (char **a = args; *a; a++)
		if (!strcmp(*a, "uri") && a[1])
			keys_set(&p->keys, p->s, "check-http", *++a);
		else if (!strcmp(*a, "ver") && a[1])
			a++;
		else if (!strcmp(*a, "meth") && a[1] && strstr("GET HEAD OPTIONS", a[1]))
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
static void take_expect(struct proxy *p, char **args, const char *text)
{
	for (; args[0] && args[1] && strcmp(args[0], "!") != 0; args++)
		if (!strcmp(args[0], "status") && *text == 'h') {
			keys_set(&p->keys, p->s, "check-status", args[1]);
			return;
		} else if (!strcmp(args[0], "string")) {
			take_string(p, args[1]);
			return;
		}
	lose(p, foreign_keep(p->f, "%s expect", text), "see check-status and check-expect");
}

static void take_send(struct proxy *p, char **args, const char *text)
{
	(void)text;
	if (p->send)
		lose(p, "tcp-check send", "culvert sends all texts at once");
	p->send = foreign_keep(p->f, "%s%s", p->send ?: "", *args ?: "");
}

static void take_redis(struct proxy *p, char **args, const char *text)
{
	(void)args;
	(void)text;
	p->send = "PING\r\n";
	p->expect = "+PONG";
}

static void take_smtp(struct proxy *p, char **args, const char *text)
{
	(void)args;
	(void)text;
	p->expect = "220";
}

static void take_tcp_connect(struct proxy *p, char **args, const char *text)
{
	(void)text;
	for (char **a = args; *a; a++)
		if (!strcmp(*a, "port") && a[1])
			keys_set(&p->keys, p->s, "check-port", *++a);
		else if (!strcmp(*a, "comment") && a[1])
			a++;
		else if (strcmp(*a, "default") != 0)
			lose(p, "tcp-check connect", foreign_keep(p->f, "%s: " NO_EQUAL, *a));
}

/* --- the table --- */

static void take_nothing(struct proxy *p, char **args, const char *text)
{
	(void)p;
	(void)args;
	(void)text;
}

/* The keyword and the first argument. */
static const char *title(struct proxy *p)
{
	return foreign_keep(p->f, "%s%s%.40s", p->s->words[0], p->s->words[1] ? " " : "",
			    p->s->words[1] ?: "");
}

static void take_once(struct proxy *p, char **args, const char *text)
{
	(void)args;
	foreign_once(p->f, p->s, title(p), text);
}

static void take_lost(struct proxy *p, char **args, const char *text)
{
	(void)args;
	lose(p, title(p), text);
}

#define LOG "culvert logs sessions as JSON: see session-log"
#define ACCOUNT "culvert has an account of its own: see user"
#define CONNECTS "culvert does not speak this; see check-send and check-expect"
#define TABLES "culvert has no such tables; balance = source keeps a client at a server"
#define NOTHING(words)                                                                             \
	{                                                                                          \
		words, FRONT | BACK, take_nothing, ""                                              \
	}

/* "*" at the end: any letters may follow.  The first row that fits counts. */
static const struct keyword {
	const char *words;
	unsigned int roles;
	void (*take)(struct proxy *p, char **args, const char *text);
	const char *text;
} keywords[] = {
	{ "bind", FRONT, take_bind, "" },
	{ "mode", FRONT | BACK, take_mode, "" },
	{ "disabled", FRONT | BACK, take_disabled, "" },
	{ "default_backend", FRONT, take_backend, "" },
	NOTHING("use_backend"), /* see write_names() */
	NOTHING("acl"),         /* see term_of() */
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
	NOTHING("tcp-check comment"),
	NOTHING("option tcp-check"),
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
	/* culvert does the same, or the word is for HTTP, or for the inside of HAProxy */
	NOTHING("timeout queue"),
	NOTHING("timeout http*"),
	NOTHING("timeout tarpit"),
	NOTHING("option clitcpka"),
	NOTHING("option srvtcpka"),
	NOTHING("option tcpka"),
	NOTHING("option tcp-smart*"),
	NOTHING("option splice*"),
	NOTHING("option redispatch"),
	NOTHING("option allbackups"),
	NOTHING("option contstats"),
	NOTHING("option socket-stats"),
	NOTHING("option abortonclose"),
	NOTHING("option forwardfor"),
	NOTHING("option http*"),
	NOTHING("http*"),
	NOTHING("errorfile"),
	NOTHING("stats*"),
	NOTHING("description"),
	NOTHING("id"),
	NOTHING("guid"),
	NOTHING("enabled"),
	NOTHING("backlog"),
	NOTHING("fullconn"),
	NOTHING("hash-type"),
	NOTHING("retry-on"),
	NOTHING("unique-id*"),
	NOTHING("load-server-state*"),
	{ "nbthread", GLOBAL, take_value, "workers" },
	{ "hard-stop-after", GLOBAL, take_seconds, "stop-timeout" },
	{ "user", GLOBAL, take_once, ACCOUNT },
	{ "group", GLOBAL, take_once, ACCOUNT },
	{ "uid", GLOBAL, take_once, ACCOUNT },
	{ "gid", GLOBAL, take_once, ACCOUNT },
	{ "stats*", GLOBAL, take_once, "culvert has a socket for commands, too: see control" },
	{ "maxconnrate", GLOBAL, take_lost, "see accept-rate of the forwards" },
	{ "lua*", GLOBAL, take_lost, NO_EQUAL },
	{ "*", GLOBAL, take_nothing, "" },
};

/* How many of WORDS are the keyword of K; 0: it is another one. */
static size_t keyword_fits(const struct keyword *k, char **words)
{
	const char *at = k->words;
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

/* Apply S.  What has a meaning in other sections only is skipped. */
static void apply(struct proxy *p, struct statement *s)
{
	bool no = !strcmp(s->words[0], "no"), known = false;
	const struct keyword *end = keywords + sizeof(keywords) / sizeof(keywords[0]);

	p->s = s;
	for (const struct keyword *k = keywords; k < end; k++) {
		size_t n = keyword_fits(k, s->words + no);

		known |= n;
		if (!n || !(k->roles & p->roles))
			continue;
		if (!no)
			k->take(p, s->words + n, k->text);
		else if (k->take != take_nothing && k->take != take_once)
			take_lost(p, NULL, NO_EQUAL);
		break;
	}
	if (!known)
		take_lost(p, NULL, NO_EQUAL);
	s->told = true;
}

static void apply_section(struct proxy *p, const struct section *of, unsigned int roles)
{
	p->roles = roles;
	for (const struct section *in = of ? of->defaults : NULL;; in = of) {
		for (size_t i = in ? in->first : 0; in && i < in->end; i++)
			apply(p, &p->f->statements[i]);
		if (in == of)
			break;
	}
}

/* --- sections --- */

static struct section *find_section(struct haproxy *h, const char *a, const char *b,
				    const char *name)
{
	for (struct section *s = h->sections; s < h->sections + h->n; s++)
		if ((!strcmp(s->head->words[0], a) || !strcmp(s->head->words[0], b)) &&
		    (!name || (s->head->n > 1 && !strcmp(s->head->words[1], name))))
			return s;
	return NULL;
}

/* Make the settings of servers; HEAD: of the section that gets them. */
static void end_backend(struct proxy *p, const struct statement *head)
{
	static const char *const of_checks[] = { "check", "on-", "rise", "fall" };
	const char *all = "";
	unsigned long most = 100;
	size_t n = 0;

	if (p->expect)
		keys_set(&p->keys, head, "check-expect", foreign_escape(p->f, p->expect));
	if (p->send)
		keys_set(&p->keys, head, "check-send", foreign_escape(p->f, p->send));
	if (p->n_checked && !keys_find(&p->keys, "check"))
		keys_set(&p->keys, head, "check", "2");
	for (size_t i = 0; i < p->keys.n; i++) { /* HAProxy ignores these without "check" */
		bool drop = false;

		for (int j = 0; j < 4 && !p->n_checked; j++)
			drop |= !strncmp(p->keys.all[i].key, of_checks[j], strlen(of_checks[j]));
		p->keys.all[n] = p->keys.all[i];
		n += !drop;
	}
	p->keys.n = n;
	p->s = head;
	if (p->n_checked && p->n_checked < p->n_servers)
		foreign_once(p->f, head, "check", "culvert checks all servers of a forward");
	for (size_t i = 0; i < p->n_servers; i++)
		most = p->servers[i].weight > most ? p->servers[i].weight : most;
	for (size_t i = 0; i < p->n_servers; i++) {
		const struct server *s = &p->servers[i];
		unsigned long weight = s->weight * 100 / most ?: 1;

		all = foreign_keep(p->f, "%s%s%s", all, *all ? ", " : "", s->address);
		if (weight != 1)
			all = foreign_keep(p->f, "%s weight=%lu", all, weight);
		if (s->check_port && p->n_checked)
			all = foreign_keep(p->f, "%s check-port=%lu", all, s->check_port);
		all = foreign_keep(p->f, "%s%s", all, s->backup ? " backup" : "");
	}
	if (p->n_servers)
		keys_set(&p->keys, head, "upstream", all);
}

/* The names for which the condition of S, "if TERM or TERM", holds; NULL: it is not about names. */
static const char *names_of(struct proxy *p, const struct statement *s)
{
	const char *all = NULL, *more;
	char **at = s->words + 3;
	size_t used;

	p->s = s;
	if (s->n < 4 || strcmp(s->words[2], "if") != 0)
		return NULL;
	for (;; at++) {
		more = *at ? term_of(p, *at, at + 1, &used, true) : NULL;
		if (!more)
			return NULL;
		all = all ? foreign_keep(p->f, "%s %s", all, more) : more;
		at += 1 + used;
		if (!*at)
			return all;
		if (strcmp(*at, "or") != 0 && strcmp(*at, "||") != 0)
			return NULL;
	}
}

/* A section [sni] has what the forward has, so say what its backend does not say. */
static void write_names(struct proxy *front, struct proxy *back, const struct statement *s,
			const char *name, const char *names)
{
	static const char *const usual[][2] = {
		{ "balance", "round-robin" },
		{ "check", "0" },
		{ "check-port", "0" },
		{ "each-address", "no" },
		{ "connect-timeout", "5" },
		{ "source", "any" },
		{ "interface", "any" },
		{ "transparent", "no" },
		{ "on-down", "keep" },
		{ "on-backup", "keep" },
		{ "rise", "2" },
		{ "fall", "3" },
		{ "check-status", "200-399" },
		{ "check-timeout", "0" },
	};
	static const char *const unset[] = { "check-http", "check-send", "check-expect" };
	bool checks = keys_find(&back->keys, "check");

	for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++)
		if (keys_find(&front->keys, usual[i][0]) && !keys_find(&back->keys, usual[i][0]) &&
		    (checks || i < 2 || (i > 2 && i < 8)))
			keys_add(&back->keys, s, usual[i][0], usual[i][1]);
	for (size_t i = 0; i < 3 && checks; i++)
		if (keys_find(&front->keys, unset[i]) && !keys_find(&back->keys, unset[i]))
			foreign_lost(front->f, s, unset[i],
				     "the forward's holds for this backend, too");
	if (back->sends != front->sends)
		keys_add(&back->keys, s, "proxy-protocol",
			 !back->sends    ? "off" :
			 back->sends > 1 ? "send-v2" :
					   "send-v1");
	foreign_section(front->f, s, foreign_keep(front->f, "sni %s %s", name, names), &back->keys,
			!back->n_servers);
}

static void add_times(struct proxy *to, const struct proxy *from)
{
	for (int i = 0; i < TIMES; i++)
		to->ms[i] = from->ms[i] > to->ms[i] ? from->ms[i] : to->ms[i];
}

/* Write sections for the names of OF, which is the forward NAME.  P: its settings.  How many. */
static size_t write_sni(struct haproxy *h, struct proxy *p, const struct section *of,
			const char *name, bool only_times)
{
	size_t n = 0;

	for (size_t i = of->first; i < of->end; i++) {
		struct statement *s = &h->f->statements[i];
		struct proxy back = { .f = h->f, .usual = { .weight = 1 } };
		const char *names = !strcmp(s->words[0], "use_backend") ? names_of(p, s) : NULL;
		struct section *to = names ? find_section(h, "backend", "listen", s->words[1]) :
					     NULL;

		if (!to && !only_times && !strcmp(s->words[0], "use_backend")) {
			s->told = false;
			foreign_lost(
				h->f, s, "use_backend",
				"culvert chooses by req.ssl_sni alone: see [sni] in culvert.conf(5)");
		}
		if (!to)
			continue;
		apply_section(&back, to, BACK);
		end_backend(&back, s);
		to->used = true;
		if (only_times)
			add_times(p, &back);
		else
			write_names(p, &back, s, name, names);
		free(back.keys.all);
		free(back.servers);
		n++;
	}
	return n;
}

static void end_frontend(struct proxy *p, const struct statement *head)
{
	const unsigned long long *ms = p->ms;
	unsigned long long idle = ms[CLIENT] > ms[SERVER] ? ms[CLIENT] : ms[SERVER];
	unsigned long long fin = ms[CLIENT_FIN] > ms[SERVER_FIN] ? ms[CLIENT_FIN] : ms[SERVER_FIN];

	idle = ms[TUNNEL] ?: idle;
	if (idle)
		keys_set(&p->keys, head, "idle-timeout", foreign_seconds(p->f, idle));
	if (fin)
		keys_set(&p->keys, head, "fin-timeout", foreign_seconds(p->f, fin));
	if (p->receives || p->sends)
		keys_set(&p->keys, head, "proxy-protocol",
			 foreign_keep(p->f, "%s%s%s", p->receives ? "receive" : "",
				      p->receives && p->sends ? ", " : "",
				      p->sends > 1 ? "send-v2" :
				      p->sends     ? "send-v1" :
						     ""));
	if (p->accepts && !p->closed) /* HAProxy accepts whom no rule rejects */
		keys_add(&p->keys, head, "allow", "all");
}

/* OF: a frontend, or a section "listen". */
static void write_forward(struct haproxy *h, struct section *of)
{
	bool listen = !strcmp(of->head->words[0], "listen");
	struct proxy p = { .f = h->f, .usual = { .weight = 1 } };
	const char *name = foreign_name(h->f, of->head->n > 1 ? of->head->words[1] : "");
	struct section *to = NULL;
	size_t sni;

	apply_section(&p, of, listen ? FRONT | BACK : FRONT);
	if (p.backend)
		to = find_section(h, "backend", "listen", p.backend);
	if (to && to != of) {
		to->used = true;
		apply_section(&p, to, BACK);
	}
	end_backend(&p, of->head);
	sni = write_sni(h, &p, of, name, true);
	end_frontend(&p, of->head);
	if (p.http) {
		foreign_lost(h->f, of->head, name,
			     "mode http: not converted; culvert has metrics, and `culvert top`");
	} else if (p.disabled) {
		foreign_once(h->f, p.disabled, name, "disabled: not converted");
	} else {
		if (!p.n_servers && !sni)
			foreign_lost(h->f, of->head, name, "no server: see upstream");
		foreign_section(h->f, of->head, foreign_keep(h->f, "forward %s", name), &p.keys,
				(!p.n_servers && !sni) || !keys_find(&p.keys, "listen"));
	}
	free(p.keys.all);
	free(p.servers);
}

/* --- the file --- */

static const char *const kinds[] = {
	"global",      "defaults",  "frontend", "backend", "listen", /* these come first */
	"resolvers",   "peers",     "userlist", "mailers", "cache",
	"http-errors", "crt-store", "ring",     "program", "log-forward",
	"log-profile", "fcgi-app",  "traces",   "acme",    NULL,
};

/* The index of WORD in kinds[], or -1. */
static int kind_of(const char *word)
{
	for (int i = 0; kinds[i]; i++)
		if (!strcmp(kinds[i], word))
			return i;
	return -1;
}

bool haproxy_is(const char *text)
{
	char word[16];

	for (;;) {
		text += strspn(text, BLANKS "\n");
		if (*text != '#')
			break;
		text += strcspn(text, "\n");
	}
	return sscanf(text, "%15s", word) == 1 && kind_of(word) >= 0;
}

/* The byte for the escape at *AT, behind the backslash. */
static char unescape(char **at)
{
	char c = *(*at)++, hex[3] = { 0 }, *end;

	if (c == 'x' && (*at)[0] && (*at)[1]) {
		memcpy(hex, *at, 2);
		c = (char)strtoul(hex, &end, 16);
		if (c && !*end)
			*at += 2;
		else
			c = 'x';
		return c;
	}
	return c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
}

/* Cut the next word off *LINE; NULL: there is none.  BAD: a quote has no end. */
static char *next_word(char **line, bool *bad)
{
	char *at = *line + strspn(*line, BLANKS), *word = at, *to = at, quote = 0;

	*line = at;
	if (!*at || *at == '#')
		return NULL;
	while (*at && (quote || !strchr(BLANKS "#", *at))) {
		char c = *at++;

		if (quote ? c == quote : c == '"' || c == '\'')
			quote = quote ? 0 : c;
		else if (c == '\\' && quote != '\'' && *at)
			*to++ = unescape(&at);
		else
			*to++ = c;
	}
	*bad |= quote;
	*line = *at == '#' ? at + strlen(at) : at + !!*at;
	*to = '\0';
	return word;
}

/* Read statements; their depth is the number of their section. */
static const char *read_sections(struct haproxy *h, char *text)
{
	const struct section *anonymous = NULL;
	unsigned int number = 0;
	bool bad = false;
	char *line, *word;

	while ((line = strsep(&text, "\n"))) {
		number++;
		while ((word = next_word(&line, &bad)))
			foreign_word(h->f, word);
		if (bad)
			return foreign_keep(h->f, "line %u: a quote has no end", number);
		foreign_end(h->f, number, 0);
	}
	for (size_t i = 0; i < h->f->n; i++)
		h->n += kind_of(h->f->statements[i].words[0]) >= 0;
	h->sections = allocated(calloc(h->n + 1, sizeof(*h->sections)));
	h->n = 0;
	for (size_t i = 0; i < h->f->n; i++) {
		struct statement *s = &h->f->statements[i];
		struct section *last = &h->sections[h->n];

		if (kind_of(s->words[0]) >= 0) {
			h->sections[h->n++] = (struct section){ .head = s, .first = i + 1 };
			last->defaults = anonymous;
			if (s->n > 3 && !strcmp(s->words[2], "from"))
				last->defaults = find_section(h, "defaults", "", s->words[3]);
			if (!strcmp(s->words[0], "defaults"))
				anonymous = last;
		} else if (!h->n) {
			return foreign_keep(h->f, "line %u: before the first section", s->line);
		}
		s->depth = (unsigned int)h->n;
		h->sections[h->n - 1].end = i + 1;
	}
	return NULL;
}

const char *haproxy_convert(struct foreign *f, char *text)
{
	struct haproxy h = { .f = f };
	const char *wrong = read_sections(&h, text);
	struct proxy global = { .f = f };

	for (struct section *s = h.sections; !wrong && s < h.sections + h.n; s++)
		if (!strcmp(s->head->words[0], "global"))
			apply_section(&global, s, GLOBAL);
	if (global.keys.n)
		foreign_section(f, h.sections[0].head, "culvert", &global.keys, false);
	free(global.keys.all);
	for (struct section *s = h.sections; !wrong && s < h.sections + h.n; s++) {
		const char *kind = s->head->words[0];

		if (!strcmp(kind, "listen") || !strcmp(kind, "frontend"))
			write_forward(&h, s);
		else if (!strcmp(kind, "resolvers"))
			foreign_once(f, s->head, kind,
				     "culvert asks the servers of /etc/resolv.conf");
		else if (kind_of(kind) > 4)
			foreign_lost(f, s->head, kind, "a section without an equal");
	}
	for (struct section *s = h.sections; !wrong && s < h.sections + h.n; s++)
		if (!strcmp(s->head->words[0], "backend") && !s->used)
			foreign_once(f, s->head, "backend",
				     foreign_keep(f, "%s: no forward above uses it",
						  s->head->n > 1 ? s->head->words[1] : ""));
	free(h.sections);
	return wrong;
}
