// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a reader knows words, and not each rule about their values, nor about two
 * sections.  The reader of culvert.conf knows those rules.  So it reads what has been made, and its
 * complaints become comments, until it has none.
 */
#include "config/foreign.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"
#include "config/read.h"

#define TRIAL "@" /* the name of the file that is tried */
#define LISTS " listen allow deny allow-client deny-client " /* keys that may have several lines */
#define COMPLAINTS_MAX (1 << 16)

/* --- statements --- */

void foreign_open(struct foreign *f, const char *file, size_t len)
{
	*f = (struct foreign){ .file = file };
	f->words = allocated(calloc(len + 2, sizeof(*f->words)));
}

void foreign_close(struct foreign *f)
{
	config_close(&f->own);
	free(f->words);
	free(f->statements);
	free(f->lines);
}

/* End the statement of the words that have been read since the last one, if there are any. */
static void end_statement(struct foreign *f, unsigned int line, unsigned int depth)
{
	const struct statement *last = f->n ? &f->statements[f->n - 1] : NULL;
	char **first = last ? last->words + last->n + 1 : f->words;
	size_t n = (size_t)(f->words + f->n_words - first);

	if (!n)
		return;
	f->words[f->n_words++] = NULL;
	f->statements = array_grow(f->statements, f->n, sizeof(*f->statements));
	f->statements[f->n++] =
		(struct statement){ .words = first, .n = n, .line = line, .depth = depth };
}

/* Cut off the word at *AT; *END is where its NUL belongs, once the byte there has been read. */
static char *cut_word(char **at, char **end, unsigned int *line, bool blocks)
{
	char quote = 0, *word = *at, *to = word, *from = word;

	for (; *from; from++) {
		char c = *from;

		if (quote ? c == quote : strchr("\"'", c) && (!blocks || from == word)) {
			quote = (char)(quote ? 0 : c);
			continue;
		}
		if (!quote && (strchr(blocks ? " \t\r\n;" : " \t\r\n#", c) ||
			       (blocks && c == '{' && from[-1] != '$')))
			break;
		if (c == '\n' && !blocks) /* in quotes */
			break;
		if (c == '\\' && from[1] && from[1] != '\n' && (blocks || quote != '\'')) {
			c = *++from;
			c = (char)(c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c);
		}
		*line += *from == '\n';
		*to++ = c;
	}
	*at = from;
	*end = quote ? NULL : to;
	return word;
}

const char *foreign_read(struct foreign *f, char *at, bool blocks)
{
	unsigned int line = 1, first = 0, depth = 0, words = 0;
	char *end = NULL, c;

	while ((c = *at)) {
		if (end)
			*end = '\0';
		end = NULL;
		if (strchr(blocks ? ";{}" : "\n", c)) {
			at++;
			if (blocks && (c == '}' ? words || !depth : !words))
				return foreign_keep(f, "line %u: unexpected \"%c\"", line, c);
			end_statement(f, first, depth);
			depth += (unsigned int)(c == '{') - (unsigned int)(c == '}');
			words = 0;
			line += c == '\n';
		} else if (strchr(" \t\r\n", c)) {
			at++;
			line += c == '\n';
		} else if (c == '#') {
			at += 1 + strcspn(at + 1, "\n");
		} else {
			first = words++ ? first : line;
			f->words[f->n_words++] = cut_word(&at, &end, &line, blocks);
			if (!end)
				return foreign_keep(f, "line %u: a quote has no end", first);
		}
	}
	if (end)
		*end = '\0';
	if (!blocks)
		end_statement(f, first, 0);
	return words && blocks ? foreign_keep(f, "line %u: a \";\" is missing", first) :
	       depth           ? foreign_keep(f, "line %u: a \"}\" is missing", line) :
				 NULL;
}

struct statement *foreign_find(struct foreign *f, const char *kinds, size_t at, const char *name)
{
	for (struct statement *s = f->statements; s < f->statements + f->n; s++)
		if (!s->depth && s->n > at && has_word(f, kinds, s->words[0], "") &&
		    !strcmp(s->words[at], name))
			return s;
	return NULL;
}

struct statement *foreign_end(const struct foreign *f, struct statement *b)
{
	struct statement *s = b + 1;

	while (s < f->statements + f->n && s->depth > b->depth)
		s++;
	return s;
}

/* --- words --- */

char *text_join(char *text, const char *separator, const char *more)
{
	char *all;
	int r = asprintf(&all, "%s%s%s", text ?: "", text ? separator : "", more);

	free(text);
	return allocated(r < 0 ? NULL : all);
}

const char *text_keep(struct foreign *f, char *text)
{
	const char *kept = text ? foreign_keep(f, "%s", text) : NULL;

	free(text);
	return kept;
}

bool has_word(struct foreign *f, const char *list, const char *word, const char *end)
{
	return strstr(list, foreign_keep(f, " %.40s%s ", word, end));
}

const char *foreign_begin(const char *text)
{
	for (;; text += strcspn(text, "\n")) {
		text += strspn(text, " \t\r\n");
		if (*text != '#')
			return text;
	}
}

const char *foreign_seconds(struct foreign *f, const char *text)
{
	unsigned long long ms = 0, n, unit;
	char *end;

	for (; *text >= '0' && *text <= '9'; text = end + strspn(end, "usmhdwMy")) {
		n = strtoull(text, &end, 10);
		n = n < 1ULL << 32 ? n : 1ULL << 32;
		unit = !strncmp(end, "ms", 2) ? 1 :
		       *end == 's'            ? 1000 :
		       *end == 'm'            ? 60000 :
		       *end == 'h'            ? 3600000 :
		       *end == 'd'            ? 86400000 :
		       *end == 'w'            ? 604800000 :
		       *end == 'M'            ? 2592000000 :
		       *end == 'y'            ? 31536000000 :
						f->unit;
		ms += *end == 'u' ? (n + 999) / 1000 : unit * n;
	}
	text = foreign_keep(f, "%llu.%03llu", ms / 1000, ms % 1000);
	return ms % 1000 ? text : foreign_keep(f, "%llu", ms / 1000);
}

/* --- lines --- */

/* A line has no control character, and is a comment as a whole, or not at all. */
static void add_line(struct foreign *f, unsigned int from, bool off, const char *text)
{
	char *copy = (char *)foreign_keep(f, "%s", text);

	for (char *at = copy; *at; at++)
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			*at = '?';
	f->lines = array_grow(f->lines, f->n_lines, sizeof(*f->lines));
	f->lines[f->n_lines++] = (struct foreign_line){ copy, from, off };
}

static const char *find_line(const struct foreign *f, const char *text)
{
	for (size_t i = 0; i < f->n_lines; i++)
		if (strstr(f->lines[i].text, text))
			return f->lines[i].text;
	return NULL;
}

const char *foreign_network(struct foreign *f, const char *text)
{
	int family = strchr(text, ':') ? AF_INET6 : AF_INET, bits, end = 0;
	int most = family == AF_INET6 ? 128 : 32;
	unsigned char bytes[16];
	char address[INET6_ADDRSTRLEN];

	if (sscanf(text, "%45[^/]/%3d%n", address, &bits, &end) < 2 || text[end] || bits < 0 ||
	    bits > most || inet_pton(family, address, bytes) != 1)
		return text;
	for (int i = bits; i < most; i++)
		bytes[i / 8] &= (unsigned char)~(0x80 >> i % 8);
	inet_ntop(family, bytes, address, sizeof(address));
	return foreign_keep(f, "%s/%d", address, bits);
}

const char *foreign_name(struct foreign *f, const char *wish)
{
	char *name = (char *)foreign_keep(f, "%.200s", *wish ? wish : "forward");
	const char *unique = name;

	for (char *at = name; *at; at++)
		if ((unsigned char)*at <= ' ' || *at == 0x7f || strchr("[]", *at))
			*at = '_';
	/* numbers go on, as thousands of servers may lead to one upstream */
	while (find_line(f, foreign_keep(f, "[forward %s]", unique)))
		unique = foreign_keep(f, "%s-%u", name, ++f->n_twins + 1);
	return unique;
}

void lose(struct draft *d, const char *keyword, const char *reason)
{
	const struct statement *s = d->s;

	keyword = keyword ?: foreign_keep(d->f, "%.80s %.40s", s->words[0], s->words[1] ?: "");
	d->f->lost = true;
	if (!s->told)
		add_line(d->f, s->line, true,
			 foreign_keep(d->f, "%s:%u: %.200s: %.500s", d->f->file, s->line, keyword,
				      reason));
}

void note(struct draft *d, const char *keyword, const char *text)
{
	bool lost = d->f->lost;

	if (!find_line(d->f, text))
		lose(d, keyword, text);
	d->f->lost = lost;
}

void foreign_write(const struct foreign *f, FILE *to)
{
	for (size_t i = 0; i < f->n_lines; i++)
		fprintf(to, "%s%s\n", f->lines[i].off ? "; " : "", f->lines[i].text);
}

/* --- drafts --- */

const char *draft_find(const struct draft *d, const char *key)
{
	for (size_t i = 0; i < d->n_keys; i++)
		if (!strcmp(d->keys[i].key, key))
			return d->keys[i].value;
	return NULL;
}

void draft_set(struct draft *d, const char *key, const char *value)
{
	size_t i = 0;

	while (i < d->n_keys && (strcmp(d->keys[i].key, key) != 0 || has_word(d->f, LISTS, key, "")))
		i++;
	if (i == d->n_keys)
		d->keys = array_grow(d->keys, d->n_keys++, sizeof(*d->keys));
	d->keys[i].key = key;
	d->keys[i].value = value;
	d->keys[i].from = d->s->line;
}

void draft_end(struct draft *d, bool forward)
{
	const char *receive = draft_find(d, ".receive"), *send = draft_find(d, ".send");

	if (d->upstream)
		draft_set(d, "upstream", foreign_keep(d->f, "%s", d->upstream));
	if (d->upstream && strstr(d->upstream, " max-sessions="))
		draft_set(d, "queue", d->f->queue);
	send = send && *send ? send : NULL;
	if (forward && (receive || send))
		draft_set(d, "proxy-protocol",
			  foreign_keep(d->f, "%s%s%s", receive ?: "", receive && send ? ", " : "",
				       send ?: ""));
}

void draft_write(struct draft *d, const char *head)
{
	struct foreign *f = d->f;

	add_line(f, d->s->line, false, foreign_keep(f, "[%s]", head));
	for (size_t i = 0; i < d->n_keys; i++)
		if (*d->keys[i].key != '.')
			add_line(f, d->keys[i].from, false,
				 foreign_keep(f, "%s = %s", d->keys[i].key, d->keys[i].value));
	add_line(f, d->s->line, false, "");
}

void draft_write_not_tls(const struct draft *forward, const char *name)
{
	struct draft d = { .f = forward->f, .s = forward->s };
	const char *upstream = draft_find(forward, "upstream");

	if (upstream) {
		draft_set(&d, "upstream", upstream);
		draft_write(&d, foreign_keep(d.f, "sni %s not-tls", name));
	}
	draft_close(&d);
}

void draft_close(struct draft *d)
{
	free(d->keys);
	free(d->upstream);
}

/* --- tables --- */

/* How many words the keyword in AT has with which TITLE begins; 0: there is none. */
static size_t keyword_fits(const char *at, const char *title)
{
	for (size_t len, n = 1; *at; at += len + !!at[len]) {
		len = strcspn(at, "|");
		if (at[len - 1] == '*' ? strncmp(title, at, len - 1) != 0 :
					 strncmp(title, at, len) || !memchr(" ", title[len], 2))
			continue;
		while (len--)
			n += at[len] == ' ';
		return n;
	}
	return 0;
}

void draft_apply(struct draft *d, const struct keyword *table, struct statement *s)
{
	bool no = !strcmp(s->words[0], "no") && s->n > 1, elsewhere = false;
	char **words = s->words + no;
	const char *title = foreign_keep(d->f, "%s %s %s", words[0], words[1] ?: "",
					 words[1] && words[2] ? words[2] : "");
	size_t n = 1;

	for (; table->words; table++) {
		n = keyword_fits(table->words, title);
		if (n && d->roles & table->roles)
			break;
		elsewhere |= n;
	}
	if (!table->words && elsewhere)
		return;
	n += no;
	d->s = s;
	d->args = s->words + (n < s->n ? n : s->n);
	d->text = table->text;
	if (no && table->take && table->take != take_note)
		lose(d, NULL, NO_EQUAL);
	else if (!no && table->take)
		table->take(d);
	s->told = true;
}

void take_value(struct draft *d)
{
	draft_set(d, d->text, *d->args ?: "");
}

void take_network(struct draft *d)
{
	draft_set(d, d->text, foreign_network(d->f, *d->args ?: ""));
}

void take_seconds(struct draft *d)
{
	draft_set(d, d->text, foreign_seconds(d->f, *d->args ?: ""));
}

void take_host(struct draft *d)
{
	const char *at = *d->args ?: "";
	size_t len = strchr(at, '.') ? strcspn(at, ":") : strlen(at);

	if (*at == '$' || (*at && d->args[1]))
		lose(d, NULL, NO_EQUAL);
	draft_set(d, d->text, foreign_keep(d->f, "%.*s", (int)len, at));
}

void take_listener(struct draft *d, const char *address, bool header, const char *keyword)
{
	const char *before = draft_find(d, ".header"), *now = header ? "yes" : "no";

	if (before && strcmp(before, now) != 0)
		lose(d, keyword, "it holds for all addresses of a forward, or for none");
	draft_set(d, ".header", now);
	if (header)
		draft_set(d, ".receive", "receive");
	draft_set(d, "listen", address);
}

void take_key(struct draft *d)
{
	size_t len = strcspn(d->text, " ");

	draft_set(d, foreign_keep(d->f, "%.*s", (int)len, d->text), d->text + len + 1);
}

void take_lost(struct draft *d)
{
	lose(d, NULL, d->text);
}

void take_note(struct draft *d)
{
	note(d, NULL, d->text);
}

/* --- the trial --- */

/* Read the lines as culvert would.  COMPLAINTS: what it says.  -errno, or the number of forwards. */
static int read_lines(const struct foreign *f, char *complaints)
{
	char run[] = "run", option[] = "-c", name[] = TRIAL;
	char *words[] = { run, option, name, NULL };
	FILE *to = allocated(fdopen(memfd_create("converted", MFD_CLOEXEC), "w+"));
	struct config c;
	int r;

	foreign_write(f, to);
	fflush(to);
	rewind(to);
	log_keep_complaint(complaints, COMPLAINTS_MAX);
	r = config_read_any(3, words, fileno(to), &c);
	log_keep_complaint(NULL, 0);
	r = r ?: (int)c.n_forwards;
	config_close(&c);
	fclose(to);
	return r;
}

/* Make line AT a comment, with its section if the section must not be without it. */
static void drop(struct foreign *f, size_t at, const char *why)
{
	static const char vital[] = LISTS "upstream proxy-protocol ";
	struct foreign_line *all = f->lines, *line = &all[at];
	char *key = strndup(line->text, strcspn(line->text, " "));
	size_t begin = at, end = at + 1;

	if (*line->text == '[' || has_word(f, vital, allocated(key), "")) {
		while (begin && *all[begin].text != '[')
			begin--;
		while (end < f->n_lines && *all[end].text)
			end++;
	}
	free(key);
	while (begin < end)
		all[begin++].off = true;
	f->lost = true;
	line->text = foreign_keep(f, "%s:%u: %s: %s", f->file, line->from, line->text, why);
}

/* Make the lines of COMPLAINTS ("@:LINE: REASON; @:LINE: REASON") comments.  False: there is none. */
static bool drop_all(struct foreign *f, char *complaints)
{
	bool any = false;

	for (char *at = complaints, *next; at; at = next ? next + 2 : NULL) {
		char *why = NULL, *see;
		unsigned long line;

		next = strstr(at, "; " TRIAL ":");
		if (next)
			*next = '\0';
		line = strncmp(at, TRIAL ":", 2) ? 0 : strtoul(at + 2, &why, 10);
		if (!line || line > f->n_lines || f->lines[line - 1].off)
			continue;
		see = strstr(why, ": see " TRIAL ":");
		if (see)
			*see = '\0';
		drop(f, line - 1, why + strspn(why, ": "));
		any = true;
	}
	return any;
}

int foreign_try(struct foreign *f)
{
	char *complaints = allocated(malloc(COMPLAINTS_MAX));
	int r;

	do
		r = read_lines(f, complaints);
	while (r < 0 && drop_all(f, complaints));
	if (r < 0)
		r = log_complain(-EINVAL, "%s: %s", f->file, complaints);
	free(complaints);
	return r;
}
