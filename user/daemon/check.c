// SPDX-License-Identifier: BSD-2-Clause
/*
 * `culvert check` and `culvert convert`: a name to listen at that is not found is a mistake, since no daemon would start;
 * one of an upstream is worth a warning.  Both are looked up as a daemon does it at the start.
 */
#include "daemon/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/sandbox.h"
#include "relay/names.h"

/* --- what is on this machine --- */

/* The account that culvert becomes, and where it writes. */
static int check_machine(const struct config *c)
{
	char err[8192], at[CONFIG_PLACE_LEN];
	struct account account;
	int r = 0;

	if (account_find_as_root(c->user, &account, err, sizeof(err)))
		return log_complain(-EINVAL, "%s%s", config_option_place(c, "user", at), err);
	/* systemd makes that directory before it starts the unit */
	if (log_file_is_path(c->session_log) && strncmp(c->session_log, "/var/log/culvert/", 17) != 0)
		r = log_file_check(c->session_log, &account, err, sizeof(err));
	if (r)
		return log_complain(r, "%ssession-log %s: %s",
				    config_option_place(c, "session-log", at), c->session_log, err);
	return 0;
}

/* --- names --- */

static int check_listener(struct forward_conf *fc, const struct forward_text *t)
{
	char at[CONFIG_PLACE_LEN], why[LOOKUP_WHY_LEN];
	struct endpoint found;
	int r;

	if (fc->listen.n_addrs)
		return 0;
	r = endpoint_parse(fc->listen.text, true, &found, why, sizeof(why));
	if (r)
		return log_complain(r, "%slisten \"%.320s\": %s",
				    config_place(t->file, t->listen_line, at), t->listen, why);
	fc->listen.addrs = found.addrs;
	fc->listen.n_addrs = found.n_addrs;
	return 0;
}

static void judge_upstream(struct forward_conf *fc, const struct forward_text *t,
			   struct upstream *u, bool answered)
{
	char at[CONFIG_PLACE_LEN];
	struct lookup_record record;

	upstream_record(u, &record);
	config_place(t->file, t->upstream_line, at);
	if (!u->list->n) {
		log_complain(0, "%swarning: upstream \"%.320s\": %s (culvert starts all the same, "
			     "and looks again)", at, t->upstream,
			     answered ? record.why : "no name server has answered in time");
		return;
	}
	if (!endpoint_copy_addrs(&fc->upstream, u->list->addrs, u->list->n) &&
	    check_feeds_itself(fc))
		log_complain(0, "%swarning: upstream \"%.320s\": one of its addresses is the "
			     "listener itself, and will be left out", at, t->upstream);
}

/* All at the same time. */
static int look_up_upstreams(struct names *n, struct config *c, const struct config_text *text)
{
	const struct endpoint nowhere = { .n_addrs = 0 };
	struct upstream *us = calloc(c->n_forwards ?: 1, sizeof(*us));
	uint64_t until = clock_ms() + NAMES_PATIENCE_S * 1000;
	int r = us ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < c->n_forwards; i++)
		if (c->forwards[i].upstream.named)
			r = upstream_open(&us[i], &c->forwards[i].upstream, &nowhere, UINT32_MAX,
					  clock_ms()) ?: names_add(n, &us[i]);
	for (size_t i = 0; !r && i < c->n_forwards; i++) {
		uint64_t now = clock_ms();

		if (us[i].list && names_wait(n, &us[i], now < until ? (unsigned int)(until - now) : 0))
			judge_upstream(&c->forwards[i], &text->forwards[i], &us[i], false);
		else if (us[i].list)
			judge_upstream(&c->forwards[i], &text->forwards[i], &us[i], true);
	}
	for (size_t i = 0; us && i < c->n_forwards; i++)
		upstream_close(&us[i]);
	free(us);
	return r ? log_complain(r, "out of memory") : 0;
}

static void *run_loop(void *arg)
{
	loop_run(arg);
	return NULL;
}

static void stop_loop(void *arg)
{
	((struct loop *)arg)->stop = true;
}

static void after_batch(void *arg)
{
	names_after_batch(*(struct names **)arg);
}

/* As an account without privileges, since strangers answer. */
static int check_upstreams(struct config *c, const struct config_text *text)
{
	struct names *names = NULL;
	struct account account;
	struct loop loop;
	pthread_t thread;
	char err[512];
	int r = loop_open(&loop, after_batch, &names);

	r = r ?: names_open(&loop, NULL, NULL, &names, err, sizeof(err));
	if (!r && !geteuid())
		r = account_find(c->user, &account, err, sizeof(err)) ?:
		    sandbox_enter(&account, err, sizeof(err));
	r = r ?: -pthread_create(&thread, NULL, run_loop, &loop);
	if (r) {
		r = log_complain(0, "%s: warning: its host names have not been looked up", c->file);
	} else {
		r = look_up_upstreams(names, c, text);
		loop_call(&loop, stop_loop, &loop, NAMES_PATIENCE_S * 1000);
		pthread_join(thread, NULL);
	}
	names_close(names);
	loop_close(&loop);
	return r;
}

/* Check all listeners again, now that they have addresses. */
static int check_listeners(const struct config *c, const struct config_text *text)
{
	char why[CHECK_WHY_LEN];
	bool listen;

	for (size_t i = 0; i < c->n_forwards; i++)
		if (check_addresses(c, i, &listen, why))
			return forward_say_wrong(-EINVAL, &text->forwards[i], listen, why);
	return 0;
}

static int check_names(struct config *c, const struct config_text *text)
{
	bool named = false;
	int r = 0;

	for (size_t i = 0; !r && i < c->n_forwards; i++) {
		r = check_listener(&c->forwards[i], &text->forwards[i]);
		named = named || c->forwards[i].upstream.named;
	}
	r = r ?: check_listeners(c, text);
	return r || !named ? r : check_upstreams(c, text);
}

/* Read FILE as `culvert run --config FILE` would. */
static int parse(int argc, char **argv, struct config *c, struct config_text *text)
{
	char command[] = "run", option[] = "--config";
	char *words[] = { command, option, argv[1], NULL };

	text->may_be_empty = true;
	if (argc == 2 && argv[1][0] != '-')
		return config_parse_text(3, words, NULL, c, text);
	memset(c, 0, sizeof(*c));
	return log_complain(-EINVAL, "expected: culvert %s FILE", argv[0]);
}

/* What has been printed must have arrived.  Returns the exit code for R. */
static int finish(struct config *c, struct config_text *text, int r)
{
	config_text_close(text);
	config_close(c);
	if (!r && (fflush(stdout) || ferror(stdout)))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the result: %s",
				    strerror(errno));
	return config_exit_code(r);
}

int check_run(int argc, char **argv)
{
	struct config_text text = { 0 };
	struct config c;
	int r = parse(argc, argv, &c, &text);

	r = r ?: check_machine(&c);
	r = r ?: check_names(&c, &text);
	if (!r) {
		config_text_say_notes(&text, argv[1]);
		if (!c.n_forwards)
			config_text_say_empty(argv[1]);
		printf("%s: %zu forward%s%s, no mistake\n", argv[1], c.n_forwards,
		       c.n_forwards == 1 ? "" : "s", text.is_rinetd ? " of a rinetd.conf" : "");
	}
	return finish(&c, &text, r);
}

void check_help(void)
{
	puts("Usage: culvert check FILE\n"
	     "\n"
	     "Read a configuration file as `culvert run --config FILE` would, look up its host\n"
	     "names, for 10 seconds at most, and say what is wrong with it, with file and line.\n"
	     "An upstream's name that is not found is a warning: culvert would start, and look\n"
	     "for it again and again; a file without a forward is one too.  The account and the\n"
	     "directories of the logs must be there.  Nothing is started.\n"
	     "A file that does not begin with a section is read as a rinetd.conf.\n"
	     "\n"
	     "Exit code: 0 no mistake; 2 a mistake, a name to listen at that does not exist, or\n"
	     "the file cannot be read; 1 no name server answers for such a name, no memory, or\n"
	     "the result cannot be written.");
}

/* --- culvert convert --- */

#define COMMENT_LEN 180

/* As one line that is short enough to be read again. */
static void write_comment(FILE *to, const char *comment)
{
	char text[COMMENT_LEN];

	fprintf(to, "; %s\n", log_escape(comment, text, sizeof(text)));
}

static void write_lines(FILE *to, const struct config_lines *said)
{
	for (size_t i = 0; i < said->n; i++)
		fprintf(to, "%s = %s\n", said->lines[i].option->name, said->lines[i].value);
}

static void write_notes(FILE *to, const struct config_lines *notes)
{
	char comment[2 * COMMENT_LEN];

	for (size_t i = 0; i < notes->n; i++) {
		snprintf(comment, sizeof(comment), "line %u: %s", notes->lines[i].line,
			 notes->lines[i].value);
		write_comment(to, comment);
	}
}

void convert_write(FILE *to, const char *file, const struct config_text *text)
{
	char comment[2 * COMMENT_LEN];

	snprintf(comment, sizeof(comment), "%.140s, as `culvert convert` reads it%s", file,
		 text->is_rinetd ? ": a rinetd.conf" : "");
	write_comment(to, comment);
	write_notes(to, &text->notes);
	if (text->said.n) {
		fputs("\n[culvert]\n", to);
		write_lines(to, &text->said);
	}
	for (size_t i = 0; i < text->n; i++) {
		const struct forward_text *t = &text->forwards[i];

		fprintf(to, "\n[forward %s]\nlisten = %s\nupstream = %s\n", t->name, t->listen,
			t->upstream);
		write_lines(to, &t->said);
	}
}

int convert_run(int argc, char **argv)
{
	struct config_text text = { 0 };
	struct config c;
	int r = parse(argc, argv, &c, &text);

	if (!r) {
		if (!text.n)
			config_text_say_empty(argv[1]);
		convert_write(stdout, argv[1], &text);
	}
	return finish(&c, &text, r);
}

void convert_help(void)
{
	puts("Usage: culvert convert FILE\n"
	     "\n"
	     "Read a configuration file, which may be a rinetd.conf, as\n"
	     "`culvert run --config FILE` would, and print what it says as a file with sections.\n"
	     "Its comments are lost; what is worth knowing about the conversion is in new ones.\n"
	     "\n"
	     "Exit code: as of `culvert check`.");
}
