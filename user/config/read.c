// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: all lines are first kept as written, in lists: the command line, the file's
 * lines for all forwards, and the lines of each forward.  Then the values are stored in layers:
 *
 *	defaults of the table -> [culvert] -> command line -> copied to each forward -> [forward]
 *
 * A list of rules (allow, deny) of a later layer replaces that of the layers before it.
 */
#include "config/read.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/minmax.h"
#include "config/conflicts.h"
#include "config/file.h"
#include "config/rinetd.h"

#define UDP_IDLE_MS 60000 /* if no line sets idle-timeout */

/* --- the command line --- */

/* Take the option at ARGV[*POS] and its value.  Leave *POS on the last word used. */
static int take_option(char **argv, int *pos, struct config *c)
{
	const char *word = strcmp(argv[*pos], "-c") != 0 ? argv[*pos] : "--config";
	const char *value = strchr(word, '=');
	const char *key = config_keep(c, "%.*s", (int)strcspn(word, "="), word);
	const struct option_def *o = strncmp(key, "--", 2) == 0 ?
					     option_find(key + 2, SCOPE_WORDS) :
					     NULL;

	if (!o)
		return log_complain(-EINVAL, "%s: unknown option%s (`culvert help run` lists them)",
				    key, option_hint(c, key + strspn(key, "-"), SCOPE_WORDS));
	value = value ? value + 1 : argv[++*pos];
	if (!value)
		return log_complain(-EINVAL, "%s: needs a value: %s", key, o->expected);
	config_lines_add(&c->words, (struct config_line){ o, key, value, "" });
	return 0;
}

/* Options may stand before, between and after the addresses. */
static int read_words(int argc, char **argv, struct config *c)
{
	bool options_end = false;
	int r = 0;

	for (int i = 1; i < argc && !r; i++) {
		bool second = c->addresses.n % 2;
		const char *name = second ? "upstream" : "listen";
		const char *key = second ? "UPSTREAM" : "LISTEN";

		if (!options_end && !strcmp(argv[i], "--"))
			options_end = true;
		else if (!options_end && argv[i][0] == '-')
			r = take_option(argv, &i, c);
		else
			config_lines_add(&c->addresses,
					 (struct config_line){ option_find(name, SCOPE_FORWARD),
							       key, argv[i], "" });
	}
	return r;
}

/* Add the forwards of the command line, whose addresses are pairs. */
static int add_forwards(struct config *c)
{
	const struct config_line *l = c->addresses.lines;
	size_t n = c->addresses.n;

	if (n % 2 != 0)
		return log_complain(-EINVAL, "\"%.256s\": no UPSTREAM for this LISTEN address",
				    l[n - 1].value);
	for (size_t i = 0; i < n; i += 2) {
		struct forward_conf *fc = config_add_forward(c);

		config_lines_add(&fc->said, l[i]);
		config_lines_add(&fc->said, l[i + 1]);
	}
	return 0;
}

/* --- values --- */

/*
 * Store LINES in FC, or in C.  Listen addresses come first: their protocol is needed to read
 * servers.  Rules in LINES replace those of FC.
 */
static int store_lines(struct config *c, struct forward_conf *fc, const struct config_lines *lines)
{
	const struct config_line *end = lines->lines + lines->n;
	struct acl *rules;
	bool has_rules[2] = { false, false }, listens;
	int r = 0;

	for (const struct config_line *l = lines->lines; l < end; l++)
		if (l->option->kind == KIND_LISTEN)
			r = option_store(c, fc, l) ?: r;
	listens = !r;
	if (!listens)
		endpoint_close(&fc->listen); /* which may have the address of another protocol */
	for (const struct config_line *l = lines->lines; l < end; l++) {
		/* the protocol is not known, so an upstream cannot be checked */
		if (l->option->kind == KIND_LISTEN ||
		    (l->option->kind == KIND_UPSTREAM && !listens))
			continue;
		rules = l->option->offset == offsetof(struct forward_conf, acl) ? &fc->acl :
										  &fc->acl_behind;
		if (l->option->list && !has_rules[rules == &fc->acl]) {
			acl_close(rules);
			has_rules[rules == &fc->acl] = true;
		}
		r = option_store(c, fc, l) ?: r;
	}
	return r;
}

static int store_globals(struct config *c)
{
	int r;

	options_default(c);
	r = store_lines(c, &c->defaults, &c->said);
	r = store_lines(c, &c->defaults, &c->words) ?: r;
	/* Half: one client must not take all sessions, and a proxy of many clients needs many. */
	if (c->max_sessions_per_client == UINT_MAX)
		c->max_sessions_per_client = (c->max_sessions + 1) / 2;
	return conflicts_of_globals(c) ?: r;
}

void config_settle(const struct config *c, struct forward_conf *fc)
{
	if (fc->listen.udp && !option_line_for(c, fc, "idle-timeout"))
		fc->idle_timeout_ms = UDP_IDLE_MS;
	if (!option_line(&fc->said, "check"))
		fc->check_ms = !conflicts_may_check(fc) ? 0 :
			       fc->sni                  ? c->forwards[fc->of].check_ms :
							  c->defaults.check_ms;
	if (!fc->upstream.n)
		fc->upstream.text = "";
	fc->soft_limit = smaller(fc->soft_limit, fc->hard_limit);
	if (upstreams_are_unix(&fc->upstream)) { /* a unix socket has none of these */
		fc->source.len = 0;
		fc->interface = NULL;
		fc->mark = 0;
		fc->transparent = false;
	}
}

/* Store the inherited settings of each forward, and then its own. */
static int store_forwards(struct config *c)
{
	int r = 0;

	for (size_t i = 0; i < c->n_forwards; i++) {
		struct forward_conf *fc = &c->forwards[i], own = *fc;
		int e;

		*fc = own.sni ? c->forwards[own.of] : c->defaults;
		memcpy(fc, &own, offsetof(struct forward_conf, listen));
		fc->acl.shared = fc->acl_behind.shared = true;
		if (own.sni) {
			fc->listen = (struct endpoint){ 0 };
			fc->upstream = (struct upstream){ 0 };
			fc->max_sessions = fc->max_sessions_per_client = 0; /* FORWARD has these */
		}
		e = store_lines(c, fc, &fc->said);
		if (!e && !fc->mistaken) {
			config_settle(c, fc);
			e = conflicts_of_forward(c, fc);
		}
		r = e ?: r;
	}
	return conflicts_of_addresses(c) ?: r;
}

/* --- all of it --- */

/*
 * Read the file that the command line names, if it does.  FD: that file; -1: open it.  TEXT: its text,
 * instead of FD; or NULL.
 */
static int read_file(struct config *c, int fd, const char *text)
{
	const struct config_line *config = option_line(&c->words, "config");
	struct config_reader r;

	if (!config)
		return 0;
	c->file = config->value;
	if (text) {
		c->text = allocated(strdup(text));
		r = (struct config_reader){ .c = c,
					    .file = c->file,
					    .text = allocated(strdup(text)) };
		config_reader_begin(&r);
	} else {
		config_reader_open(&r, fd, c);
	}
	c->is_rinetd = rinetd_is(r.rest);
	if (c->is_rinetd)
		rinetd_read(&r);
	else
		config_read_sections(&r);
	free(r.text);
	return r.error;
}

static int read_all(int argc, char **argv, int fd, const char *text, struct config *ret)
{
	int r;

	*ret = (struct config){ 0 };
	r = read_words(argc, argv, ret);
	if (r)
		return r;
	r = read_file(ret, fd, text);
	r = add_forwards(ret) ?: r;
	r = store_globals(ret) ?: r;
	return store_forwards(ret) ?: r;
}

int config_read_any(int argc, char **argv, int fd, struct config *ret)
{
	return read_all(argc, argv, fd, NULL, ret);
}

int config_read_text(int argc, char **argv, const char *text, struct config *ret)
{
	return read_all(argc, argv, -1, text, ret);
}

int config_read(int argc, char **argv, int fd, struct config *ret)
{
	int r = config_read_any(argc, argv, fd, ret);

	if (r || ret->n_forwards)
		return r;
	if (ret->file)
		return log_complain(-EINVAL,
				    "nothing to forward: %s has no forward, and the command line "
				    "no LISTEN UPSTREAM (see culvert.conf(5))",
				    ret->file);
	return log_complain(-EINVAL, "nothing to forward, expected LISTEN UPSTREAM on the command "
				     "line or in a file (see `culvert help run`)");
}

int config_exit_code(int r)
{
	/* no name server yet, or no memory: another start may succeed */
	bool passes = r == -EAGAIN || r == -ENOMEM;

	return r >= 0 ? EXIT_CODE_OK : passes ? EXIT_CODE_FAILURE : EXIT_CODE_USAGE;
}

/* --- the help --- */

void config_help(void)
{
	puts("Usage: culvert run [options] LISTEN UPSTREAM [LISTEN UPSTREAM]...\n"
	     "       culvert run --config FILE [options] [LISTEN UPSTREAM]...\n\n"
	     "Accept connections at each LISTEN address and forward them to its UPSTREAM address.\n"
	     "\n"
	     "  culvert run 0.0.0.0:9000 10.0.2.2:9001\n"
	     "  culvert run :53/udp 10.0.2.2:53\n"
	     "  culvert run --config /etc/culvert/culvert.conf\n\n"
	     "Addresses: 1.2.3.4:80, [::1]:80, host:80, host:http, unix:/path, unix:@abstract;\n"
	     "/udp behind the port of a LISTEN makes it and its UPSTREAM UDP;\n"
	     "a LISTEN may be :80 (all local addresses), :8000-8099 or port 0 (the kernel picks).\n"
	     "Several servers are one UPSTREAM, as \"10.0.2.2:80 weight=2, 10.0.2.3:80 backup\".\n"
	     "\n"
	     "A FILE has the options without \"--\" in a section [culvert].  Those with a \"*\"\n"
	     "may also stand in a section [forward NAME], and count for that forward instead.\n\n"
	     "Options:");
	options_help(false);
	puts("  --help                       show this help; also -h\n\n"
	     "In [forward NAME] alone, or in its sections [sni FORWARD HOST...]:");
	options_help(true);
	puts("\nA SIZE may end in K, M or G, SECONDS in s, m, h or d.\n"
	     "Manual: culvert(8), culvert.conf(5)");
}
