// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a forward is a frontend and its default backend, or a section "listen",
 * which is both.  The statements of `defaults`, of the frontend and of the backend are applied to one
 * struct proxy, in this order.  Backends that are chosen by the TLS server name become sections [sni].
 */
#include "config/haproxy.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config/foreign.h"
#include "config/haproxy_words.h"

#define BLANKS " \t\r"

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

static void apply_section(struct proxy *p, const struct section *of, unsigned int roles)
{
	p->roles = roles;
	for (const struct section *in = of ? of->defaults : NULL;; in = of) {
		for (size_t i = in ? in->first : 0; in && i < in->end; i++)
			proxy_apply(p, &p->f->statements[i]);
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
	struct text all = { 0 };
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
		const struct proxy_server *s = &p->servers[i];
		unsigned long weight = s->weight * 100 / most ?: 1;

		text_join(&all, ", ", s->address);
		if (weight != 1)
			text_join(&all, "", foreign_keep(p->f, " weight=%lu", weight));
		if (s->check_port && p->n_checked)
			text_join(&all, "", foreign_keep(p->f, " check-port=%lu", s->check_port));
		text_join(&all, "", s->backup ? " backup" : "");
	}
	if (p->n_servers)
		keys_set(&p->keys, p->servers[0].s, "upstream", text_keep(p->f, &all));
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

/*
 * Write sections [sni] for the backends that OF, the forward NAME, chooses by the name.  Without NAME
 * only add their times to those of P.  How many there are.
 */
static size_t write_sni(struct haproxy *h, struct proxy *p, const struct section *of,
			const char *name)
{
	size_t n = 0;

	for (size_t i = of->first; i < of->end; i++) {
		struct statement *s = &h->f->statements[i];
		struct proxy back = { .f = h->f, .usual = { .weight = 1 } };
		const char *names;
		struct section *to;

		if (strcmp(s->words[0], "use_backend") != 0)
			continue;
		names = proxy_names(p, s);
		to = names ? find_section(h, "backend", "listen", s->words[1]) : NULL;
		s->told = !name;
		if (!to) {
			foreign_lost(h->f, s, "use_backend",
				     "culvert chooses by req.ssl_sni alone: see [sni]");
			continue;
		}
		n++;
		to->used = true;
		apply_section(&back, to, BACK);
		end_backend(&back, s);
		for (int t = 0; t < TIMES && !name; t++)
			p->ms[t] = back.ms[t] > p->ms[t] ? back.ms[t] : p->ms[t];
		if (name)
			write_names(p, &back, s, name, names);
		free(back.keys.all);
		free(back.servers);
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
	const struct statement *http;
	struct section *to = NULL;
	size_t sni;

	apply_section(&p, of, listen ? FRONT | BACK : FRONT);
	http = p.http; /* the backend has a mode of its own */
	if (p.backend)
		to = find_section(h, "backend", "listen", p.backend);
	if (to && to != of) {
		to->used = true;
		apply_section(&p, to, BACK);
	}
	end_backend(&p, of->head);
	sni = write_sni(h, &p, of, NULL);
	end_frontend(&p, of->head);
	if (http) {
		foreign_lost(h->f, of->head, name,
			     "mode http: not converted; culvert has metrics, and `culvert top`");
	} else if (p.disabled) {
		foreign_once(h->f, p.disabled, name, "disabled: not converted");
	} else {
		if (!p.n_servers && !sni)
			foreign_lost(h->f, of->head, name, "no server: see upstream");
		foreign_section(h->f, of->head, foreign_keep(h->f, "forward %s", name), &p.keys,
				(!p.n_servers && !sni) || !keys_find(&p.keys, "listen"));
		write_sni(h, &p, of, name);
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
	return (char)(c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c);
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
			quote = (char)(quote ? 0 : c);
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
