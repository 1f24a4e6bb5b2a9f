// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each `server` of `stream` is a forward, or two if it listens for TCP and UDP.
 * The directives of `stream` and of the server are applied in this order; a table says what each
 * does.  A map from $ssl_preread_server_name becomes sections [sni].
 */
#include "config/nginx.h"

#include <stdlib.h>
#include <string.h>

#include "config/foreign.h"

#define BLANKS " \t\r\n"
#define NO_EQUAL "culvert has no equal"

struct nginx {
	struct foreign *f;
	struct statement *stream, *end; /* its directives, and those of the blocks in it */
	unsigned int depth;             /* of its directives */
};

struct server {
	struct nginx *in;
	const struct statement *s; /* that is applied */
	char **args;               /* its words behind the first */
	const char *text;          /* of the directive's row */
	struct keys keys;
	const char *pass; /* proxy_pass */
	bool udp, accepts, accepts_all;
};

/* The end of the directives of the block B, and of blocks in it. */
static struct statement *end_of(const struct nginx *n, struct statement *b)
{
	struct statement *s = b + 1;

	while (s < n->end && s->depth > b->depth)
		s++;
	return s;
}

static void lose(struct server *v, const char *keyword, const char *reason)
{
	foreign_lost(v->in->f, v->s, keyword, reason);
}

static struct statement *find_block(struct nginx *n, const char *kind, size_t at, const char *name)
{
	for (struct statement *s = n->stream; s < n->end; s++)
		if (s->depth == n->depth && s->n > at && !strcmp(s->words[0], kind) &&
		    !strcmp(s->words[at], name))
			return s;
	return NULL;
}

/* --- the directives of a server --- */

/* "1m30s", or seconds. */
static unsigned long long time_of(const char *text)
{
	unsigned long long all = 0, n;
	char *end;

	for (; *text >= '0' && *text <= '9'; text = end) {
		n = strtoull(text, &end, 10);
		n = n < 1ULL << 40 ? n : 1ULL << 40;
		if (!strncmp(end, "ms", 2)) {
			all += n;
			end += 2;
			continue;
		}
		all += n * (*end == 'm' ? 60000 :
			    *end == 'h' ? 3600000 :
			    *end == 'd' ? 86400000 :
			    *end == 'w' ? 604800000 :
					  1000);
		end += !!*end;
	}
	return all;
}

static void take_listen(struct server *v)
{
	/* words that change nothing; those with "=" have a value */
	static const char fine[] =
		" udp reuseport bind deferred proxy_protocol backlog= rcvbuf= sndbuf= "
		"so_keepalive= ipv6only= fastopen= ssl ";
	const char *address = v->args[0] ?: "";
	bool udp = false, both = false;

	for (char **a = v->args; *a; a++) {
		udp |= !strcmp(*a, "udp");
		both |= !strcmp(*a, "ipv6only=off");
	}
	if (udp != v->udp)
		return;
	if (!strncmp(address, "[::]", 4) && both)
		address += 4;
	else if (!strncmp(address, "*:", 2))
		address = foreign_keep(v->in->f, "0.0.0.0%s", address + 1);
	else if (!strchr(address, ':'))
		address = foreign_keep(v->in->f, "0.0.0.0:%s", address);
	keys_add(&v->keys, v->s, "listen",
		 foreign_keep(v->in->f, "%s%s", address, udp ? "/udp" : ""));
	for (char **a = v->args + !!*v->args; *a; a++) {
		const char *word = foreign_keep(v->in->f, " %.*s ",
						(int)strcspn(*a, "=") + !!strchr(*a, '='), *a);

		if (!strcmp(*a, "proxy_protocol"))
			keys_set(&v->keys, v->s, "proxy-protocol", "receive");
		else if (!strcmp(*a, "ssl"))
			lose(v, "listen ssl", "culvert does not decrypt: the servers get TLS");
		else if (!strstr(fine, word))
			lose(v, foreign_keep(v->in->f, "listen %s", *a), NO_EQUAL);
	}
}

static void take_pass(struct server *v)
{
	v->pass = *v->args;
}

/* TEXT: the key. */
static void take_time(struct server *v)
{
	keys_set(&v->keys, v->s, v->text, foreign_seconds(v->in->f, time_of(*v->args ?: "")));
}

static void take_header(struct server *v)
{
	keys_set(&v->keys, v->s, "send", *v->args && !strcmp(*v->args, "on") ? "send-v1" : "");
}

static void take_nodelay(struct server *v)
{
	if (*v->args && !strcmp(*v->args, "off"))
		keys_set(&v->keys, v->s, "nodelay", "no");
}

static void take_responses(struct server *v)
{
	if (v->udp && *v->args && !strcmp(*v->args, "0"))
		keys_set(&v->keys, v->s, "replies", "no");
	else if (v->udp)
		keys_set(&v->keys, v->s, "responses", *v->args ?: "");
}

static void take_bind(struct server *v)
{
	const char *at = *v->args ?: "";

	if (!strcmp(at, "off"))
		return;
	if (*at && v->args[1] && !strcmp(at, "$remote_addr") && !strcmp(v->args[1], "transparent"))
		keys_set(&v->keys, v->s, "transparent", "yes");
	else if (*at && !v->args[1] && *at != '$')
		keys_set(&v->keys, v->s, "source", foreign_host(v->in->f, at));
	else
		lose(v, "proxy_bind", "see source and transparent");
}

/* TEXT: allow or deny.  nginx accepts clients whom no rule matches. */
static void take_access(struct server *v)
{
	v->accepts |= *v->text == 'a';
	v->accepts_all = *v->args && !strcmp(*v->args, "all");
	keys_add(&v->keys, v->s, v->text, *v->args ?: "");
}

static void take_once(struct server *v)
{
	foreign_once(v->in->f, v->s, v->s->words[0], v->text);
}

static void take_lost(struct server *v)
{
	lose(v, v->s->words[0], v->text);
}

#define LOG "culvert logs sessions as JSON: see session-log"
#define RATE "a limit of one connection has no equal: see bandwidth-per-client"

/* Change nothing, or are read elsewhere. */
static const char quiet[] =
	" server upstream map ssl_preread proxy_socket_keepalive proxy_buffer_size proxy_half_close "
	"preread_buffer_size resolver_timeout limit_conn_zone map_hash_max_size map_hash_bucket_size "
	"variables_hash_max_size variables_hash_bucket_size server_name status_zone ";

static const struct directive {
	const char *word;
	void (*take)(struct server *v);
	const char *text;
} directives[] = {
	{ "listen", take_listen, "" },
	{ "proxy_pass", take_pass, "" },
	{ "proxy_timeout", take_time, "idle-timeout" },
	{ "proxy_connect_timeout", take_time, "connect-timeout" },
	{ "preread_timeout", take_time, "hello-timeout" },
	{ "proxy_protocol_timeout", take_time, "proxy-timeout" },
	{ "proxy_protocol", take_header, "" },
	{ "proxy_bind", take_bind, "" },
	{ "proxy_responses", take_responses, "" },
	{ "allow", take_access, "allow" },
	{ "deny", take_access, "deny" },
	{ "tcp_nodelay", take_nodelay, "" },
	{ "proxy_upload_rate", take_lost, RATE },
	{ "proxy_download_rate", take_lost, RATE },
	{ "limit_conn", take_lost, "see max-sessions-per-client" },
	{ "proxy_ssl", take_lost, "culvert does not encrypt: clients must speak TLS" },
	{ "include", take_lost, "convert that file, too" },
	{ "access_log", take_once, LOG },
	{ "error_log", take_once, LOG },
	{ "log_format", take_once, LOG },
	{ "resolver", take_once, "culvert asks the servers of /etc/resolv.conf" },
	{ NULL, take_lost, NO_EQUAL },
};

static void apply(struct server *v, struct statement *s)
{
	const struct directive *d = directives;

	while (d->word && strcmp(d->word, s->words[0]) != 0)
		d++;
	v->s = s;
	v->args = s->words + 1;
	v->text = d->text;
	if (d->word || !strstr(quiet, foreign_keep(v->in->f, " %s ", s->words[0])))
		d->take(v);
	if (d->take != take_listen) /* which may be of the other protocol */
		s->told = true;
}

/* --- servers of an upstream --- */

/* NULL: the server is not in use. */
static const char *server_of(struct server *v, const struct statement *s)
{
	struct text all = { 0 };
	bool down = false;
	const char *kept;

	v->s = s;
	text_join(&all, "", s->words[1]);
	for (char **w = s->words + 2; *w; w++) {
		size_t len = strcspn(*w, "=");

		down |= !strcmp(*w, "down");
		if (!strncmp(*w, "weight=", 7) || !strcmp(*w, "backup"))
			text_join(&all, " ", *w);
		else if (!strncmp(*w, "max_fails=", 10) || !strncmp(*w, "fail_timeout=", 13))
			foreign_once(v->in->f, s, "max_fails",
				     "culvert itself decides how long a server is set aside");
		else if (strcmp(*w, "down") != 0 && strcmp(*w, "resolve") != 0)
			lose(v, foreign_keep(v->in->f, "server %.*s", (int)len, *w), NO_EQUAL);
	}
	if (down)
		foreign_once(v->in->f, s, "server",
			     foreign_keep(v->in->f, "%s is down: left out", s->words[1]));
	kept = text_keep(v->in->f, &all);
	return down ? NULL : kept;
}

static void take_how(struct server *v, const struct statement *s)
{
	const char *word = s->words[0], *by = s->n > 1 ? s->words[1] : "";

	if (!strcmp(word, "least_conn") || (!strcmp(word, "random") && s->n > 1))
		keys_set(&v->keys, s, "balance", "least-sessions");
	else if (!strcmp(word, "hash") &&
		 (!strcmp(by, "$remote_addr") || !strcmp(by, "$binary_remote_addr")))
		keys_set(&v->keys, s, "balance", "source");
	else if (strcmp(word, "zone") && strcmp(word, "random") && strcmp(word, "resolver"))
		foreign_lost(v->in->f, s, word,
			     "culvert has round-robin, least-sessions and source");
}

/* Set where TARGET leads, a name of an upstream or an address.  False: nowhere. */
static bool take_target(struct server *v, const struct statement *s, const char *target)
{
	struct statement *block = find_block(v->in, "upstream", 1, target);
	struct text all = { 0 };
	const char *one;

	if (!block && !strchr(target, '$'))
		text_join(&all, "", target);
	if (block)
		for (struct statement *c = block + 1, *end = end_of(v->in, block); c < end; c++) {
			bool server = !strcmp(c->words[0], "server") && c->n > 1;

			one = server ? server_of(v, c) : NULL;
			if (one)
				text_join(&all, ", ", one);
			if (!server)
				take_how(v, c);
			c->told = true;
		}
	one = text_keep(v->in->f, &all);
	if (one)
		keys_set(&v->keys, s, "upstream", one);
	return one;
}

/* --- forwards --- */

/* The names of M that lead to TARGET, as [sni] has them. */
static const char *names_of(struct server *v, struct statement *m, const char *target)
{
	struct foreign *f = v->in->f;
	bool hostnames = false;
	struct text all = { 0 };
	const char *name;

	for (struct statement *c = m + 1, *end = end_of(v->in, m); c < end; c++) {
		name = c->words[0];
		hostnames |= !strcmp(name, "hostnames");
		if (c->n != 2 || strcmp(c->words[1], target) != 0 || !strcmp(name, "default"))
			continue;
		if (hostnames && *name == '.')
			text_join(&all, " ", foreign_keep(f, "%s *%s", name + 1, name));
		else if (*name && !strchr(name, '~') &&
			 (!strchr(name, '*') || (hostnames && *name == '*')))
			text_join(&all, " ", name);
		else
			foreign_lost(f, c, *name ? name : "\"\"",
				     "[sni] has names and *.names alone");
		c->told = true;
	}
	return text_keep(f, &all);
}

/* Write sections [sni NAME ...] for the map M; OFF: only as comments. */
static void write_map(struct server *v, struct statement *m, const char *name)
{
	struct nginx *n = v->in;

	for (struct statement *c = m + 1, *end = end_of(n, m); c < end; c++) {
		struct server to = { .in = n, .s = c };
		const char *names;

		if (c->told || c->n != 2 || !strcmp(c->words[0], "default"))
			continue;
		names = names_of(v, m, c->words[1]);
		if (names && take_target(&to, c, c->words[1])) {
			if (!keys_find(&to.keys, "balance") && keys_find(&v->keys, "balance"))
				keys_set(&to.keys, c, "balance", "round-robin");
			foreign_section(n->f, c, foreign_keep(n->f, "sni %s %s", name, names),
					&to.keys, false);
		} else if (names) {
			c->told = false;
			foreign_lost(n->f, c, c->words[1], "not an upstream or an address");
		}
		free(to.keys.all);
	}
	for (struct statement *c = m + 1, *end = end_of(n, m); c < end; c++)
		c->told = false; /* for other forwards */
}

/* Find the servers of V, a block; M: the map of their names, if there is one. */
static bool find_target(struct server *v, const struct statement *block, struct statement **m)
{
	*m = NULL;
	if (!v->pass || *v->pass != '$')
		return v->pass && take_target(v, block, v->pass);
	*m = find_block(v->in, "map", 2, v->pass);
	if (*m && strcmp((*m)->words[1], "$ssl_preread_server_name") != 0)
		*m = NULL;
	if (!*m)
		return false;
	for (struct statement *c = *m + 1, *end = end_of(v->in, *m); c < end; c++)
		if (c->n == 2 && !strcmp(c->words[0], "default"))
			take_target(v, c, c->words[1]);
		else if (c->n == 2 && !strcmp(c->words[0], "include"))
			foreign_lost(v->in->f, c, "include", "convert that file, too");
	return true;
}

static void end_keys(struct server *v, const struct statement *block)
{
	const char *send = keys_find(&v->keys, "send");
	const char *receive = keys_find(&v->keys, "proxy-protocol");
	size_t n = 0;

	if (!keys_find(&v->keys, "idle-timeout")) /* what nginx does without the directive */
		keys_set(&v->keys, block, "idle-timeout", "600");
	if (!keys_find(&v->keys, "connect-timeout") && !v->udp)
		keys_set(&v->keys, block, "connect-timeout", "60");
	if (send && *send)
		keys_set(&v->keys, block, "proxy-protocol",
			 foreign_keep(v->in->f, "%s%s%s", receive ?: "", receive ? ", " : "", send));
	if (v->accepts && !v->accepts_all)
		keys_add(&v->keys, block, "allow", "all");
	for (size_t i = 0; i < v->keys.n; i++) {
		v->keys.all[n] = v->keys.all[i];
		n += strcmp(v->keys.all[i].key, "send") != 0;
	}
	v->keys.n = n;
}

/* The rules of a server replace those of `stream`. */
static bool has_rules(const struct nginx *n, struct statement *block)
{
	for (struct statement *c = block + 1, *end = end_of(n, block); c < end; c++)
		if (!strcmp(c->words[0], "allow") || !strcmp(c->words[0], "deny"))
			return true;
	return false;
}

static void write_server(struct nginx *n, struct statement *block, bool udp)
{
	struct server v = { .in = n, .udp = udp };
	bool rules = has_rules(n, block), good;
	struct statement *m;
	const char *name;

	for (struct statement *s = n->stream; s < n->end; s++)
		if (s->depth == n->depth && (!rules || (strcmp(s->words[0], "allow") != 0 &&
							strcmp(s->words[0], "deny") != 0)))
			apply(&v, s);
	for (struct statement *c = block + 1, *end = end_of(n, block); c < end; c++)
		if (c->depth == n->depth + 1)
			apply(&v, c);
	if (keys_find(&v.keys, "listen") || !udp) {
		name = foreign_keep(n->f, "%s%s", v.pass ? v.pass + (*v.pass == '$') : "server",
				    udp ? "-udp" : "");
		name = foreign_name(n->f, name);
		good = find_target(&v, block, &m);
		if (!good) {
			block->told = false;
			foreign_lost(n->f, block, "server",
				     "no proxy_pass to an upstream, an address, or a map from "
				     "$ssl_preread_server_name");
		}
		end_keys(&v, block);
		foreign_section(n->f, block, foreign_keep(n->f, "forward %s", name), &v.keys,
				!good || !keys_find(&v.keys, "listen"));
		if (good && m)
			write_map(&v, m, name);
	}
	free(v.keys.all);
}

static bool listens_for_tcp(const struct nginx *n, struct statement *block)
{
	bool udp = false;

	for (struct statement *c = block + 1, *end = end_of(n, block); c < end; c++) {
		bool is = false;

		for (size_t i = 0; i < c->n && !strcmp(c->words[0], "listen"); i++)
			is |= !strcmp(c->words[i], "udp");
		if (!strcmp(c->words[0], "listen") && !is)
			return true;
		udp |= is;
	}
	return !udp;
}

static void write_stream(struct nginx *n)
{
	for (struct statement *s = n->stream; s < n->end; s++)
		if (s->depth == n->depth && !strcmp(s->words[0], "server")) {
			if (listens_for_tcp(n, s))
				write_server(n, s, false);
			write_server(n, s, true);
		}
}

/* --- the file --- */

bool nginx_is(const char *text)
{
	static const char *const blocks[] = { "stream",   "events", "http",
					      "upstream", "server", "map" };
	char word[32] = "";
	size_t len, end;

	for (;;) {
		text += strspn(text, BLANKS);
		if (*text != '#')
			break;
		text += strcspn(text, "\n");
	}
	sscanf(text, "%31[a-z_]", word);
	len = strcspn(text, "#\n");
	for (end = len; end && strchr(BLANKS, text[end - 1]);)
		end--;
	for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
		if (!strcmp(word, blocks[i]) && memchr("{" BLANKS, text[strlen(word)] ?: '\n', 5))
			return true;
	return *word && end && (text[end - 1] == ';' || text[end - 1] == '{');
}

/* Cut off the word at *AT; *END is where its NUL belongs, once the byte there has been read. */
static char *cut_word(char **at, char **end, unsigned int *line)
{
	char quote = (char)(strchr("\"'", **at) ? **at : 0), *word = *at + !!quote, *to = word,
	     *from = word;

	for (; *from && (quote ? *from != quote : !strchr(BLANKS ";", *from)); from++) {
		if (!quote && *from == '{' && (from == word || from[-1] != '$'))
			break;
		*line += *from == '\n';
		if (*from == '\\' && from[1] && (!quote || strchr("\"'\\", from[1])))
			from++;
		*to++ = *from;
	}
	*at = from + (quote && *from);
	*end = to;
	return word;
}

static const char *read_directives(struct foreign *f, char *at)
{
	unsigned int line = 1, first = 0, depth = 0, words = 0;
	char *end = NULL;
	char c;

	while ((c = *at)) {
		if (end)
			*end = '\0';
		end = NULL;
		line += c == '\n';
		if (strchr(BLANKS, c)) {
			at++;
		} else if (c == '#') {
			at += strcspn(at, "\n");
		} else if (!strchr(";{}", c)) {
			first = words++ ? first : line;
			foreign_word(f, cut_word(&at, &end, &line));
		} else {
			at++;
			if (c == '}' ? words || !depth : !words)
				return foreign_keep(f, "line %u: unexpected \"%c\"", line, c);
			foreign_end(f, first, depth);
			depth += (unsigned int)(c == '{') - (unsigned int)(c == '}');
			words = 0;
		}
	}
	if (end)
		*end = '\0';
	return words ? foreign_keep(f, "line %u: a \";\" is missing", first) :
	       depth ? foreign_keep(f, "line %u: a \"}\" is missing", line) :
		       NULL;
}

/* A directive outside of `stream`. */
static void take_outer(struct foreign *f, struct statement *s, struct keys *global)
{
	static const char fine[] =
		" user pid events daemon error_log worker_rlimit_nofile worker_connections load_module "
		"worker_cpu_affinity pcre_jit master_process lock_file timer_resolution thread_pool env ";
	const char *word = s->words[0];

	if (!strcmp(word, "worker_processes") && s->n > 1 && strcmp(s->words[1], "auto") != 0)
		keys_set(global, s, "workers", s->words[1]);
	else if (!strcmp(word, "http") || !strcmp(word, "mail"))
		foreign_lost(f, s, word, "not converted: culvert forwards TCP and UDP");
	else if (!strcmp(word, "include"))
		foreign_lost(f, s, word, "convert that file, too");
	else if (strcmp(word, "worker_processes") != 0 &&
		 !strstr(fine, foreign_keep(f, " %s ", word)))
		foreign_lost(f, s, word, NO_EQUAL);
}

const char *nginx_convert(struct foreign *f, char *text)
{
	const char *wrong = read_directives(f, text);
	struct statement *end = f->statements + f->n, *s = f->statements;
	struct nginx n = { .f = f, .stream = s, .end = end };
	struct keys global = { 0 };
	bool whole = false; /* it is a nginx.conf, not a file that it includes */

	if (wrong)
		return wrong;
	for (; s < end; s++)
		whole |= !s->depth &&
			 (!strcmp(s->words[0], "stream") || !strcmp(s->words[0], "http"));
	for (s = f->statements; whole && s < end; s++)
		if (!s->depth && strcmp(s->words[0], "stream") != 0)
			take_outer(f, s, &global);
	if (global.n)
		foreign_section(f, f->statements, "culvert", &global, false);
	free(global.all);
	for (s = f->statements; whole && s < end; s++) {
		if (s->depth || strcmp(s->words[0], "stream") != 0)
			continue;
		n = (struct nginx){ .f = f, .stream = s + 1, .end = s + 1, .depth = 1 };
		while (n.end < end && n.end->depth)
			n.end++;
		write_stream(&n);
	}
	if (!whole)
		write_stream(&n);
	return NULL;
}
