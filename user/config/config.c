// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the command line and the file are first kept as texts, a list of settings
 * for all forwards and one for each forward (file.h).  Then the values are stored in layers:
 *
 *	defaults of the table -> [culvert] -> command line -> copied to each forward -> [forward]
 *
 * A list (allow, deny) of a later layer replaces that of the layers before it.
 */
#include "config/config.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/size.h"
#include "config/file.h"

#define NOT_GIVEN UINT_MAX

/* --- the command line --- */

/* Take the option at ARGV[*POS] and its value.  Leave *POS on the last word used. */
static int take_option(int argc, char **argv, int *pos, struct config_text *text)
{
	const char *word = !strcmp(argv[*pos], "-c") ? "--config" :
			   !strcmp(argv[*pos], "-h") ? "--help" : argv[*pos];
	const char *value = strchr(word, '=');
	char name[256], buf[OPTION_WRONG_LEN];
	const struct option_def *o;
	const char *key;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
	key = strncmp(name, "--", 2) == 0 ? name + 2 : "";
	o = option_find(key);
	if (!o && !option_is_gone(key))
		return log_complain(-EINVAL, "%s: unknown option (`culvert help run` lists them)",
				    name);
	if (o && o->kind == KIND_HELP)
		return value ? log_complain(-EINVAL, "--%s: takes no value", o->name) : 1;
	/* Another option here is a forgotten value; "=--x" says that it is meant. */
	if (!value && (*pos + 1 >= argc || strncmp(argv[*pos + 1], "--", 2) == 0))
		return log_complain(-EINVAL, "--%s: needs a value: %s", o ? o->name : key,
				    o ? option_expectation(o, buf, sizeof(buf)) : "any");
	value = value ? value + 1 : argv[++*pos];
	config_lines_add(o ? &text->words : &text->notes, (struct config_line){
		.option = o, .key = o ? o->name : NULL, .value = o ? value : OPTION_GONE });
	return 0;
}

/* Add the forwards of the command line: the N addresses WORDS are pairs. */
static int add_forwards(char **words, size_t n, struct config_text *text)
{
	if (n % 2 != 0)
		return log_complain(-EINVAL, "\"%.256s\": no UPSTREAM for this LISTEN address",
				    words[n - 1]);
	for (size_t i = 0; i < n; i += 2) {
		struct forward_text *t = config_text_add(text);

		t->listen = words[i];
		t->upstream = words[i + 1];
	}
	return 0;
}

/* Options may stand before, between and after the addresses, which go to WORDS. */
static int read_words(int argc, char **argv, struct config_text *text, char **words, size_t *ret_n)
{
	bool options_end = false;

	*ret_n = 0;
	for (int i = 1; i < argc; i++) {
		int r;

		if (options_end || argv[i][0] != '-') {
			words[(*ret_n)++] = argv[i];
			continue;
		}
		if (strcmp(argv[i], "--") == 0) {
			options_end = true;
			continue;
		}
		r = take_option(argc, argv, &i, text);
		if (r != 0)
			return r;
	}
	return 0;
}

/* --- what must hold between values that are right one by one --- */

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

/* True if both listeners take the same connections. */
static bool overlap(const struct addr *a, const struct addr *b)
{
	if (a->ss.ss_family != b->ss.ss_family || addr_port(a) != addr_port(b))
		return false;
	if (addr_takes_any_port(a))
		return false; /* the kernel picks two different ports */
	return addr_equal(a, b) || addr_is_any(a) || addr_is_any(b);
}

/* The first listener before number N that takes connections of number N, or NULL. */
static const struct endpoint *find_overlap(const struct config *c, size_t n)
{
	const struct endpoint *b = &c->forwards[n].listen;

	for (size_t i = 0; i < n; i++) {
		const struct endpoint *a = &c->forwards[i].listen;

		if (same_name(a, b))
			return a;
		for (size_t k = 0; k < a->n_addrs * b->n_addrs; k++)
			if (overlap(&a->addrs[k / b->n_addrs], &b->addrs[k % b->n_addrs]))
				return a;
	}
	return NULL;
}

const char *check_addresses(const struct config *c, size_t n, bool *ret_listen, char *buf)
{
	const struct endpoint *e = find_overlap(c, n);

	*ret_listen = e;
	if (e)
		snprintf(buf, CHECK_WHY_LEN, "takes the same connections as the earlier \"%s\"",
			 e->text);
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

/* The line of the file that sets the option NAME for all forwards; 0: none does. */
static unsigned int option_line(const struct config *c, const char *name)
{
	return c->lines[option_number(option_find(name))];
}

/* A limit above that of all forwards together would limit nothing.  0, of either: there is none. */
static int check_most(const struct forward_text *t, const char *name, unsigned int own,
		      unsigned int all)
{
	if (own && all && own > all)
		return config_complain(t->file, forward_says(t, name), "%s: %u is above that of "
				       "all forwards together (%u)", name, own, all);
	return 0;
}

static int check_limits(const struct config *c, const struct forward_conf *fc,
			const struct forward_text *t)
{
	unsigned int line = forward_says(t, "soft-limit") ?: forward_says(t, "hard-limit") ?:
		option_line(c, "soft-limit") ?: option_line(c, "hard-limit");
	char soft[SIZE_STRLEN], hard[SIZE_STRLEN];

	if (fc->soft_limit > fc->hard_limit)
		return config_complain(c->file, line, "soft-limit: %s is above hard-limit (%s)",
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

/* Say that T cannot have the setting WHAT. */
static int say_not_had(const struct forward_text *t, const char *what, const char *why)
{
	return config_complain(t->file, forward_says(t, what), "%s: %s", what, why);
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
	return 0;
}

/* Check forward number N of C, made from T, by itself and beside those before it. */
static int check_forward(struct config *c, size_t n, const struct forward_text *t)
{
	struct forward_conf *fc = &c->forwards[n];
	char why[CHECK_WHY_LEN];
	bool listen;

	if (check_addresses(c, n, &listen, why))
		return forward_say_wrong(-EINVAL, t, listen, why);
	return check_limits(c, fc, t) ?: check_upstream(c, fc, t);
}

/* --- values --- */

/* Store LINE of FILE in FC, or in C.  FILE is NULL for the command line. */
static int store_line(struct config *c, struct forward_conf *fc, const struct config_line *line,
		      const char *file)
{
	char buf[OPTION_WRONG_LEN];
	int r = option_store(c, fc, line->option, line->value);

	return !r ? 0 : config_complain(file, line->line, "%s%s: %s", file ? "" : "--", line->key,
					option_wrong(line->option, r, line->value, buf));
}

static int store_lines(struct config *c, struct forward_conf *fc, const struct config_lines *lines,
		       const char *file)
{
	bool has_rules = false;
	int r = 0;

	for (size_t i = 0; !r && i < lines->n; i++) {
		const struct config_line *line = &lines->lines[i];

		if (option_is_list(line->option) && !has_rules) {
			acl_close(&fc->acl);
			has_rules = true;
		}
		r = store_line(c, fc, line, file);
	}
	return r;
}

/* Remember which lines of the file hold for all forwards. */
static void note_lines(struct config *c, const struct config_text *text)
{
	for (size_t i = 0; i < text->said.n; i++) {
		const struct config_line *line = &text->said.lines[i];

		if (!config_lines_find(&text->words, line->option->name))
			c->lines[option_number(line->option)] = line->line;
	}
}

static int store_globals(struct config *c, const struct config_text *text)
{
	int r;

	options_default(c);
	c->max_sessions_per_client = NOT_GIVEN;
	r = store_lines(c, &c->defaults, &text->said, c->file) ?:
	    store_lines(c, &c->defaults, &text->words, NULL);
	/* One client cannot take all; one that stands for many, as a proxy does, still has many. */
	if (c->max_sessions_per_client == NOT_GIVEN)
		c->max_sessions_per_client = (c->max_sessions + 1) / 2;
	note_lines(c, text);
	return r;
}

static int parse_endpoint(const struct forward_text *t, bool listen, struct endpoint *ret)
{
	char err[256];
	int r = endpoint_parse_offline(listen ? t->listen : t->upstream, listen, ret, err,
				       sizeof(err));

	return r < 0 ? forward_say_wrong(r, t, listen, err) : 0;
}

static int store_forward(struct config *c, struct forward_conf *fc, const struct forward_text *t)
{
	const struct acl none = { 0 };

	*fc = c->defaults;
	fc->name = t->name;
	acl_copy(&fc->acl, t->no_rules ? &none : &c->defaults.acl);
	return store_lines(c, fc, &t->said, t->file) ?: parse_endpoint(t, true, &fc->listen) ?:
	       parse_endpoint(t, false, &fc->upstream);
}

static int store_forwards(struct config *c, const struct config_text *text)
{
	int r = 0;

	if (!text->n && !text->may_be_empty)
		return log_complain(-EINVAL, "nothing to forward, expected LISTEN UPSTREAM on the "
				    "command line or in a file (see `culvert help run`)");
	c->forwards = allocated(calloc(text->n + 1, sizeof(*c->forwards)));
	while (!r && c->n_forwards < text->n) {
		size_t i = c->n_forwards++;

		r = store_forward(c, &c->forwards[i], &text->forwards[i]) ?:
		    check_forward(c, i, &text->forwards[i]);
	}
	return r;
}

/* --- all of it --- */

static int read_all(int argc, char **argv, const struct config_source *from, struct config *c,
		    char **words, struct config_text *text)
{
	const struct config_line *config;
	size_t n;
	int r = read_words(argc, argv, text, words, &n);

	if (r)
		return r;
	config = config_lines_find(&text->words, "config");
	if (config) {
		r = store_line(c, &c->defaults, config, NULL);
		r = r ?: from ? config_file_take(from, c, text) : config_file_read(c, text);
	}
	return r ?: add_forwards(words, n, text) ?: store_globals(c, text) ?:
	       store_forwards(c, text);
}

int config_parse_text(int argc, char **argv, const struct config_source *from, struct config *ret,
		      struct config_text *text)
{
	char **words = allocated(calloc((size_t)argc + 1, sizeof(*words)));
	int r;

	memset(ret, 0, sizeof(*ret));
	r = read_all(argc, argv, from, ret, words, text);
	if (r == 1)
		config_help();
	free(words);
	return r;
}

int config_parse(int argc, char **argv, struct config *ret)
{
	return config_parse_from(argc, argv, NULL, ret);
}

int config_parse_from(int argc, char **argv, const struct config_source *from, struct config *ret)
{
	struct config_text text = { 0 };
	int r = config_parse_text(argc, argv, from, ret, &text);

	if (!r && !from)
		config_text_say_notes(&text, ret->file);
	config_text_close(&text);
	return r;
}

int config_exit_code(int r)
{
	if (r >= 0)
		return EXIT_CODE_OK;
	/* no name server yet, or no memory: whoever starts culvert may try again */
	return r == -EAGAIN || r == -ENOMEM ? EXIT_CODE_FAILURE : EXIT_CODE_USAGE;
}

const char *config_keep(struct config *c, const char *fmt, ...)
{
	va_list ap;
	int r;

	c->kept = array_grow(c->kept, c->n_kept, sizeof(*c->kept));
	va_start(ap, fmt);
	r = vasprintf(&c->kept[c->n_kept], fmt, ap);
	va_end(ap);
	return allocated(r < 0 ? NULL : c->kept[c->n_kept++]);
}

const struct forward_conf *config_forward_with(const struct config *c, enum engine engine)
{
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].engine == engine)
			return &c->forwards[i];
	return NULL;
}

void config_close(struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		endpoint_close(&c->forwards[i].listen);
		endpoint_close(&c->forwards[i].upstream);
		acl_close(&c->forwards[i].acl);
	}
	for (size_t i = 0; i < c->n_kept; i++)
		free(c->kept[i]);
	acl_close(&c->defaults.acl);
	free(c->forwards);
	free(c->kept);
	*c = (struct config){ 0 };
}

/* --- places --- */

const char *config_place(const char *file, unsigned int line, char *buf)
{
	buf[0] = '\0';
	if (file && line)
		snprintf(buf, CONFIG_PLACE_LEN, "%.256s:%u: ", file, line);
	return buf;
}

int config_complain(const char *file, unsigned int line, const char *fmt, ...)
{
	char at[CONFIG_PLACE_LEN], text[OPTION_WRONG_LEN + 64];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return log_complain(-EINVAL, "%s%s", config_place(file, line, at), text);
}

const char *config_option_place(const struct config *c, const char *name, char *buf)
{
	return config_place(c->file, option_line(c, name), buf);
}

void config_help(void)
{
	puts("Usage: culvert run [options] LISTEN UPSTREAM [LISTEN UPSTREAM]...\n"
	     "       culvert run --config FILE [options] [LISTEN UPSTREAM]...\n"
	     "\n"
	     "Accept connections at each LISTEN address and forward them to its UPSTREAM address.\n"
	     "For example:\n"
	     "\n"
	     "  culvert run 0.0.0.0:9000 10.0.2.2:9001\n"
	     "  culvert run --config /etc/culvert/culvert.conf\n"
	     "\n"
	     "Addresses: 1.2.3.4:80, [::1]:80, host:80, host:http, unix:/path, unix:@abstract;\n"
	     "to listen also :80 (every local address) and port 0 (the kernel picks one).\n"
	     "\n"
	     "Options:");
	options_help(false);
	puts("  --                           end of the options\n"
	     "\n"
	     "A SIZE is in bytes, or has the suffix K, M or G.  SECONDS may have decimals: 0.5.\n"
	     "A client is one IPv4 address or one IPv6 /64 prefix.  CLIENTS are addresses,\n"
	     "prefixes, patterns (10.*), \"unix:\" (of unix sockets) and \"all\", separated by\n"
	     "commas or blanks.\n"
	     "--allow and --deny may be given several times: the first rule that matches a client\n"
	     "decides.  A client that no rule matches may connect unless there is an --allow.\n"
	     "A client that may not connect is reset.\n"
	     "\n"
	     "A FILE has the same options without \"--\" in [culvert].  Each forward has a section\n"
	     "[forward NAME] with listen = LISTEN and upstream = UPSTREAM.  There it may also have\n"
	     "the options with a \"*\", which then count instead of those of [culvert], and");
	options_help(true);
	puts("\n"
	     "A forward with any allow or deny has only its own rules.  Options given here count\n"
	     "over those of [culvert].  SIGHUP and `culvert reload` read the file again.\n"
	     "\n"
	     "A FILE that does not begin with a section is read as a rinetd.conf;\n"
	     "`culvert convert FILE` shows what that means.\n"
	     "\n"
	     "Manual: culvert(8), culvert.conf(5)");
}
