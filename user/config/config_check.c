// SPDX-License-Identifier: BSD-2-Clause
/*
 * Names are looked up as the daemon does it, by processes without privileges, and waited for: one
 * to listen at that is not found is a mistake, since no daemon would start; one of an upstream is
 * worth a warning.
 */
#include "config/config_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/log_file.h"
#include "config/config_listen.h"
#include "config/config_names.h"
#include "config/config_text.h"
#include "daemon/sandbox.h"
#include "relay/resolver.h"
#include "relay/resolver_wait.h"

/* Q is about a name to listen at: 0, or what is wrong with it. */
static int judge_listen(struct config_name *name, const struct question *q,
			const struct forward_text *t)
{
	char at[CONFIG_PLACE_LEN], why[LOOKUP_WHY_LEN];
	int r = config_name_found(name, q, why, sizeof(why));

	return !r ? 0 : log_complain(r, "%slisten \"%.320s\": %s",
				     config_place(t->file, t->listen_line, at), t->listen, why);
}

/* Q is about an upstream of FC. */
static void judge_upstream(struct config_name *name, const struct question *q,
			   const struct forward_conf *fc, const struct forward_text *t)
{
	char at[CONFIG_PLACE_LEN], why[LOOKUP_WHY_LEN];
	int r = config_name_found(name, q, why, sizeof(why));

	config_place(t->file, t->upstream_line, at);
	if (r)
		log_complain(0, "%swarning: upstream \"%.320s\": %s (culvert starts all the same, "
			     "and looks again)", at, t->upstream, why);
	else if (config_feeds_itself(fc))
		log_complain(0, "%swarning: upstream \"%.320s\": one of its addresses is the "
			     "listener itself, and will be left out", at, t->upstream);
}

/* Of upstreams last: their addresses are not for config_check_found(). */
static int judge_all(struct config *c, const struct config_text *text, struct config_name *names,
		     const struct question *q, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		int error = names[i].listen ? judge_listen(&names[i], &q[i],
							   &text->forwards[names[i].forward]) : 0;

		r = r ?: error;
	}
	r = r ?: config_check_found(c, text);
	for (size_t i = 0; i < n; i++)
		if (!names[i].listen)
			judge_upstream(&names[i], &q[i], &c->forwards[names[i].forward],
				       &text->forwards[names[i].forward]);
	return r;
}

static int look_up(int fd, struct config *c, const struct config_text *text,
		   struct config_name *names, size_t n)
{
	struct question *q = config_questions(names, n);
	int r;

	if (!q)
		return log_complain(-ENOMEM, "out of memory");
	resolver_wait(fd, q, n, NAMES_PATIENCE_S * 1000);
	r = judge_all(c, text, names, q, n);
	free(q);
	return r;
}

static int check_names(struct config *c, const struct config_text *text)
{
	size_t n = config_names(c, false, NULL);
	struct config_name *names;
	struct account account;
	char err[256];
	int fd, r;

	if (!n)
		return 0;
	if (account_find(c->user, &account, err, sizeof(err)) ||
	    resolver_start(&account, c->seccomp, &fd, err, sizeof(err)))
		return log_complain(0, "%s: warning: its host names have not been looked up: %s",
				    c->file, err);
	names = calloc(n, sizeof(*names));
	if (names)
		config_names(c, false, names);
	r = names ? look_up(fd, c, text, names, n) : log_complain(-ENOMEM, "out of memory");
	free(names);
	resolver_stop(fd);
	return r;
}

/* --- what is on this machine --- */

/* Directories that the systemd unit makes before culvert starts. */
static bool made_by_unit(const char *path)
{
	return !strncmp(path, "/run/culvert/", 13) || !strncmp(path, "/var/log/culvert/", 17);
}

static int check_pid_file(const struct config *c)
{
	const char *slash = c->pid_file ? strrchr(c->pid_file, '/') : NULL;
	char at[CONFIG_PLACE_LEN], *dir;
	struct stat st;
	int r = 0;

	/* that of the control socket is made by culvert */
	if (!slash || slash == c->pid_file || made_by_unit(c->pid_file) ||
	    !strncmp(c->pid_file, c->control, (size_t)(slash - c->pid_file) + 1))
		return 0;
	dir = strndup(c->pid_file, (size_t)(slash - c->pid_file));
	if (!dir)
		return log_complain(-ENOMEM, "out of memory");
	if (stat(dir, &st) && (errno == ENOENT || errno == ENOTDIR))
		r = log_complain(-errno, "%spid-file %s: %s: make its directory first (install -d "
				 "%s)", config_option_place(c, "pid-file", at), c->pid_file,
				 strerror(errno), dir);
	free(dir);
	return r;
}

/* The account that culvert becomes, and where it writes. */
static int check_machine(const struct config *c)
{
	char err[8192], at[CONFIG_PLACE_LEN];
	struct account account;
	int r = 0;

	if (account_find_as_root(c->user, &account, err, sizeof(err)))
		return log_complain(-EINVAL, "%s%s", config_option_place(c, "user", at), err);
	if (log_file_is_path(c->session_log) && !made_by_unit(c->session_log))
		r = log_file_check(c->session_log, &account, err, sizeof(err));
	if (r)
		return log_complain(r, "%ssession-log %s: %s",
				    config_option_place(c, "session-log", at), c->session_log, err);
	return check_pid_file(c);
}

int config_check(int argc, char **argv)
{
	struct config_text text = { .may_be_empty = true };
	struct config c;
	int r;

	if (argc != 2 || argv[1][0] == '-') {
		log_complain(0, "expected: culvert check FILE");
		return EXIT_CODE_USAGE;
	}
	r = config_parse_file(argv[1], &c, &text);
	r = r ?: check_machine(&c);
	r = r ?: check_names(&c, &text);
	if (!r) {
		config_text_say_notes(&text, argv[1]);
		if (!c.n_forwards)
			config_text_say_empty(argv[1]);
		printf("%s: %zu forward%s%s, no mistake\n", argv[1], c.n_forwards,
		       c.n_forwards == 1 ? "" : "s", text.is_rinetd ? " of a rinetd.conf" : "");
	}
	config_text_close(&text);
	config_close(&c);
	if (!r && (fflush(stdout) || ferror(stdout)))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the result: %s",
				    strerror(errno));
	return config_exit_code(r);
}

void config_check_help(void)
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
