/* SPDX-License-Identifier: BSD-2-Clause */
#include "config/config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/size.h"
#include "config/config_file.h"
#include "config/config_listen.h"
#include "config/config_paths.h"
#include "config/config_upstream.h"
#include "config/option_help.h"
#include "config/option_value.h"

#define NOT_GIVEN UINT_MAX

/* --- the command line --- */

/* The rules of the command line take the place of those of [culvert], all together. */
static void forget_rules(struct config *c, struct config_text *text)
{
	unsigned int *allow = &text->lines[option_number(option_find("allow", 5))];
	unsigned int *deny = &text->lines[option_number(option_find("deny", 4))];

	if (*allow || *deny)
		acl_close(&c->acl);
	*allow = *deny = 0;
}

/*
 * Take the option at ARGV[*POS], and its value; leaves *POS on the last word used.  What TEXT, the
 * file, says of it is no longer in force.
 * Returns 0, 1 (help asked for) or -EINVAL.
 */
static int take_option(int argc, char **argv, int *pos, struct config *c, struct config_text *text)
{
	const char *word = argv[*pos];
	size_t len = strcspn(word, "=");
	const char *value = word[len] ? word + len + 1 : NULL;
	const struct option_def *o = !strcmp(word, "-c") ? option_find("config", 6) :
		!strcmp(word, "-h") ? option_find("help", 4) :
		len > 2 && !strncmp(word, "--", 2) ? option_find(word + 2, len - 2) : NULL;
	char buf[OPTION_WRONG_LEN];
	int r;

	if (!o)
		return log_complain(-EINVAL, "%.*s: unknown option (`culvert help run` lists them)",
				    (int)(len > 256 ? 256 : len), word);
	if (o->kind == KIND_HELP)
		return value ? log_complain(-EINVAL, "--%s: takes no value", o->name) : 1;
	if (!value) {
		/* Another option here is a forgotten value; "=--x" says that it is meant. */
		if (*pos + 1 >= argc || strncmp(argv[*pos + 1], "--", 2) == 0)
			return log_complain(-EINVAL, "--%s: needs a value: %s", o->name,
					    option_expectation(o, buf, sizeof(buf)));
		value = argv[++*pos];
	}
	if (option_is_list(o))
		forget_rules(c, text);
	r = option_store(c, o, value);
	if (r == -ENOMEM)
		return log_complain(-ENOMEM, "out of memory");
	if (r < 0)
		return log_complain(-EINVAL, "--%s: %s", o->name, option_wrong(o, r, value, buf));
	text->lines[option_number(o)] = 0;
	return 0;
}

/* Options may stand before, between and after the addresses, which go to WORDS. */
static int parse_words(int argc, char **argv, struct config *c, struct config_text *text,
		       char **words, size_t *ret_n)
{
	bool options_end = false;
	int r;

	*ret_n = 0;
	for (int i = 1; i < argc; i++) {
		if (options_end || argv[i][0] != '-') {
			words[(*ret_n)++] = argv[i];
			continue;
		}
		if (strcmp(argv[i], "--") == 0) {
			options_end = true;
			continue;
		}
		r = take_option(argc, argv, &i, c, text);
		if (r != 0)
			return r;
	}
	return 0;
}

/* The addresses of the command line, behind those of the file. */
static int add_words(char **words, size_t n, struct config_text *text)
{
	if (n % 2 != 0)
		return log_complain(-EINVAL, "\"%.256s\": no UPSTREAM for this LISTEN address",
				    words[n - 1]);
	for (size_t i = 0; i < n; i += 2) {
		struct forward_text *t = config_text_add(text);

		if (!t)
			return log_complain(-ENOMEM, "out of memory");
		t->listen = words[i];
		t->upstream = words[i + 1];
	}
	return 0;
}

static void set_defaults(struct config *c)
{
	acl_close(&c->acl); /* a second reading begins */
	options_default(c);
	c->max_sessions_per_client = NOT_GIVEN;
}

static int read_source(const struct config_source *from, struct config *c, struct config_text *text)
{
	/* it is only read; and of nothing there would be no stream */
	FILE *f = fmemopen(from->len ? (char *)from->text : (char[]){ '\n' },
			   from->len ?: 1, "r");
	int r;

	if (!f)
		return log_complain(-ENOMEM, "out of memory");
	r = config_file_take(f, c->file, c, text);
	fclose(f);
	return r;
}

/* The command line, and beneath it the file that it names. */
static int read_all(int argc, char **argv, const struct config_source *from, struct config *c,
		    char **words, struct config_text *text)
{
	size_t n;
	int r;

	set_defaults(c);
	r = parse_words(argc, argv, c, text, words, &n);
	if (!r && c->file) {
		set_defaults(c);
		r = from ? read_source(from, c, text) : config_file_read(c->file, c, text);
		r = r ?: parse_words(argc, argv, c, text, words, &n);
	}
	return r ?: add_words(words, n, text);
}

/* --- what must hold between options --- */

static int check_options(struct config *c)
{
	unsigned int soft_line = config_option_line(c, "soft-limit");
	unsigned int hard_line = config_option_line(c, "hard-limit");
	char soft[SIZE_STRLEN], hard[SIZE_STRLEN], at[CONFIG_PLACE_LEN];

	/* one client cannot take all; one that stands for many, as a proxy does, still has many */
	if (c->max_sessions_per_client == NOT_GIVEN)
		c->max_sessions_per_client = (c->max_sessions + 1) / 2;
	if (c->soft_limit > c->hard_limit)
		return log_complain(-EINVAL, "%s%ssoft-limit: %s is above %shard-limit (%s)",
				    config_place(c->file, soft_line ? soft_line : hard_line, at),
				    soft_line ? "" : "--",
				    size_format(c->soft_limit, soft, sizeof(soft)),
				    hard_line ? "" : "--",
				    size_format(c->hard_limit, hard, sizeof(hard)));
	return 0;
}

/* --- forwards --- */

/* WHY is wrong with the listener of T, or with its upstream. */
static int say_wrong(int error, const struct forward_text *t, bool listen, const char *why)
{
	char at[CONFIG_PLACE_LEN];

	return log_complain(error, "%s%s \"%.320s\": %s",
			    config_place(t->file, listen ? t->listen_line : t->upstream_line, at),
			    t->file ? listen ? "listen" : "upstream" :
			    listen  ? "LISTEN" :
				      "UPSTREAM",
			    listen ? t->listen : t->upstream, why);
}

static int parse_endpoint(const struct forward_text *t, bool listen, struct endpoint *ret)
{
	char err[256];
	int r = endpoint_parse_offline(listen ? t->listen : t->upstream, listen, ret, err,
				       sizeof(err));

	return r < 0 ? say_wrong(r, t, listen, err) : 0;
}

/* A limit above that of all forwards together would limit nothing.  0, of either: there is none. */
static int check_most(const struct forward_text *t, const char *name, unsigned int own,
		      unsigned int all)
{
	char at[CONFIG_PLACE_LEN];

	if (own && all && own > all)
		return log_complain(-EINVAL, "%s%s: %u is above that of all forwards together (%u)",
				    config_place(t->file, forward_says(t, name), at), name, own,
				    all);
	return 0;
}

/* What FC says itself must go together with what it inherits. */
static int check_own(const struct config *c, const struct forward_conf *fc,
		     const struct forward_text *t)
{
	unsigned int line = forward_says(t, "soft-limit") ?: forward_says(t, "hard-limit");
	char soft[SIZE_STRLEN], hard[SIZE_STRLEN], at[CONFIG_PLACE_LEN];

	if (fc->soft_limit > fc->hard_limit)
		return log_complain(-EINVAL, "%ssoft-limit: %s is above the hard-limit of this "
				    "forward (%s)", config_place(t->file, line, at),
				    size_format(fc->soft_limit, soft, sizeof(soft)),
				    size_format(fc->hard_limit, hard, sizeof(hard)));
	return check_most(t, "max-sessions", fc->max_sessions, c->max_sessions) ?:
	       check_most(t, "max-sessions-per-client", fc->max_sessions_per_client,
			  c->max_sessions_per_client);
}

/* Of listener number N, and the earlier E.  BUF has OVERLAP_LEN bytes; returns BUF. */
#define OVERLAP_LEN (sizeof(((struct endpoint *)0)->text) + 128)
static const char *overlap_text(const struct endpoint *e, bool same, char *buf)
{
	snprintf(buf, OVERLAP_LEN, "%s the earlier \"%s\"%s",
		 same ? "same address as" : "overlaps with", e->text,
		 same ? "" : ": both would take the same connections");
	return buf;
}

/* Forward number N, made from T, beside those before it. */
static int check_listener(const struct config *c, size_t n, const struct forward_text *t)
{
	bool same = false;
	const struct endpoint *e = config_overlap(c, n, &same);
	char why[OVERLAP_LEN];

	return e ? say_wrong(-EINVAL, t, true, overlap_text(e, same, why)) : 0;
}

/* Of the upstream of forward FROM, from which connections come back by way of TO. */
#define LOOP_LEN 512
static const char *loop_text(const struct config *c, size_t from, size_t to, char *buf)
{
	if (from == to)
		snprintf(buf, LOOP_LEN, "the upstream is the listener itself");
	else
		snprintf(buf, LOOP_LEN, "a loop: it leads to forward \"%.300s\", and from there "
			 "back here", forward_name(&c->forwards[to]));
	return buf;
}

static int check_loops(const struct config *c, const struct config_text *text)
{
	size_t from = 0, to = 0;
	int r = config_find_loop(c, &from, &to);
	char why[LOOP_LEN];

	if (r < 0)
		return log_complain(r, "out of memory");
	return r ? say_wrong(-EINVAL, &text->forwards[from], false,
			     loop_text(c, from, to, why)) : 0;
}

int config_check_found(const struct config *c, const struct config_text *text)
{
	int r = 0;

	for (size_t i = 0; !r && i < c->n_forwards; i++)
		r = check_listener(c, i, &text->forwards[i]);
	return r ?: check_loops(c, text);
}

int config_check_listeners(const struct config *c, char *err, size_t errlen)
{
	char why[OVERLAP_LEN + LOOP_LEN];
	size_t from = 0, to = 0;
	int r;

	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct forward_conf *fc = &c->forwards[i];
		bool same = false;
		const struct endpoint *e = config_overlap(c, i, &same);

		if (e) {
			snprintf(err, errlen, "forward %s: listen \"%s\": %s", forward_name(fc),
				 fc->listen.text, overlap_text(e, same, why));
			return -EINVAL;
		}
	}
	r = config_find_loop(c, &from, &to);
	if (r < 0)
		snprintf(err, errlen, "out of memory");
	else if (r)
		snprintf(err, errlen, "forward %s: upstream \"%s\": %s",
			 forward_name(&c->forwards[from]), c->forwards[from].upstream.text,
			 loop_text(c, from, to, why));
	return r > 0 ? -EINVAL : r;
}

/* Make FC of what T says, which from now on it owns, and of what C says. */
static int inherit(struct config *c, struct forward_conf *fc, struct forward_text *t)
{
	*fc = t->own;
	t->own.acl = (struct acl){ 0 };
	fc->name = t->name;
	options_inherit(fc, c, t->lines);
	if (!forward_says(t, "allow") && !forward_says(t, "deny") && acl_copy(&fc->acl, &c->acl))
		return log_complain(-ENOMEM, "out of memory");
	return check_own(c, fc, t);
}

static int say_nothing(const struct config *c)
{
	if (c->file)
		return log_complain(-EINVAL, "nothing to forward: no forward in %.256s, expected "
				    "one there, or LISTEN UPSTREAM on the command line", c->file);
	return log_complain(-EINVAL, "nothing to forward, expected LISTEN UPSTREAM (see `culvert "
			    "help run`)");
}

static int parse_forwards(struct config *c, const struct config_text *text)
{
	int r;

	if (!text->n)
		return text->may_be_empty ? 0 : say_nothing(c);
	c->forwards = calloc(text->n, sizeof(*c->forwards));
	if (!c->forwards)
		return log_complain(-ENOMEM, "out of memory");
	while (c->n_forwards < text->n) {
		size_t i = c->n_forwards++;
		struct forward_text *t = &text->forwards[i];

		r = inherit(c, &c->forwards[i], t);
		r = r ?: parse_endpoint(t, true, &c->forwards[i].listen);
		r = r ?: parse_endpoint(t, false, &c->forwards[i].upstream);
		r = r ?: check_listener(c, i, t);
		r = r ?: config_check_upstream(c, &c->forwards[i], t);
		if (r < 0)
			return r;
	}
	return check_loops(c, text);
}

int config_parse_text(int argc, char **argv, const struct config_source *from, struct config *ret,
		      struct config_text *text)
{
	char **words;
	int r;

	memset(ret, 0, sizeof(*ret));
	words = calloc((size_t)argc + 1, sizeof(*words));
	if (!words)
		return log_complain(-ENOMEM, "out of memory");
	r = read_all(argc, argv, from, ret, words, text);
	memcpy(ret->lines, text->lines, sizeof(ret->lines));
	r = r ?: check_options(ret);
	r = r ?: parse_forwards(ret, text);
	r = r ?: config_check_paths(ret, text);
	if (r == 1)
		config_help();
	free(words);
	return r;
}

int config_parse_file(char *file, struct config *ret, struct config_text *text)
{
	char command[] = "run", option[] = "--config";
	char *words[] = { command, option, file, NULL };

	return config_parse_text(3, words, NULL, ret, text);
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

const char *config_keep(struct config *c, const char *text)
{
	char **more = array_grow(c->kept, c->n_kept, sizeof(*more));

	if (!more)
		return NULL;
	c->kept = more;
	more[c->n_kept] = strdup(text);
	return more[c->n_kept] ? more[c->n_kept++] : NULL;
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
	if (!c)
		return;
	for (size_t i = 0; i < c->n_forwards; i++) {
		endpoint_close(&c->forwards[i].listen);
		endpoint_close(&c->forwards[i].upstream);
		acl_close(&c->forwards[i].acl);
	}
	acl_close(&c->acl);
	free(c->forwards);
	c->forwards = NULL;
	c->n_forwards = 0;
	for (size_t i = 0; i < c->n_kept; i++)
		free(c->kept[i]);
	free(c->kept);
	c->kept = NULL;
	c->n_kept = 0;
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
	options_help();
	puts("  --                           end of the options\n"
	     "\n"
	     "A SIZE is in bytes, or has the suffix K, M or G.  SECONDS may have decimals: 0.5.\n"
	     "A client is one IPv4 address or one IPv6 /64 prefix.  CLIENTS are addresses and\n"
	     "prefixes, \"unix:\" (of unix sockets) and \"all\", separated by commas or blanks.\n"
	     "--allow and --deny may be given several times: the first rule that matches a client\n"
	     "decides.  A client that no rule matches may connect unless there is an --allow.\n"
	     "A client that may not connect is reset.\n"
	     "\n"
	     "A FILE has the same options without \"--\", and forwards:\n"
	     "\n"
	     "  [culvert]\n"
	     "  engine = auto\n"
	     "\n"
	     "  [forward database]\n"
	     "  listen = 0.0.0.0:5432\n"
	     "  upstream = db.example.org:5432\n"
	     "\n"
	     "A [forward NAME] may also have");
	options_help_forward();
	puts("\n"
	     "A forward with any allow or deny has only its own rules.  Options given here count\n"
	     "over those of [culvert].  SIGHUP and `culvert reload` read the file again.\n"
	     "\n"
	     "A FILE that does not begin with a section is read as a rinetd.conf;\n"
	     "`culvert convert FILE` shows what that means.\n"
	     "\n"
	     "Manual: culvert(8), culvert.conf(5)");
}
