// SPDX-License-Identifier: BSD-2-Clause
/*
 * `culvert check` and `culvert convert`: a name to listen at that is not found is a mistake, since
 * no daemon would start; one of an upstream is worth a warning.  Both are looked up as a daemon
 * does it at the start.  What this machine cannot hold is worth a warning, too: fewer clients may
 * come; and so are sessions that nothing would end.
 */
#include "daemon/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "base/parse_size.h"
#include "config/option.h"
#include "config/read.h"
#include "daemon/resources_needed.h"
#include "relay/upstream_socket.h"
#include "relay/names.h"

/* --- the account --- */

static int check_account(const struct config *c)
{
	char err[512];
	struct account account;

	return account_find_as_root(c->user, &account, err, sizeof(err)) ?
		       config_complain(config_place(c, &c->defaults, "user"), "%s", err) : 0;
}

/* --- the machine --- */

/* This process may have what a daemon may have that is started in its place. */
static void check_machine(const struct config *c)
{
	uint64_t ram = memory_of_machine();
	struct needs needs = needs_of(c);
	unsigned long limit = sandbox_raise_nofile(needs.descriptors);
	const char *at = config_place(c, &c->defaults, "max-sessions");
	char want[SIZE_STRLEN], has[SIZE_STRLEN];

	size_format(ram, has, sizeof(has));
	if (limit < needs.descriptors)
		log_complain(0, "warning: %smax-sessions: " FEW_DESCRIPTORS " (the limit of this "
			     "shell; a unit has its own, LimitNOFILE=)", at, limit, c->max_sessions,
			     needs.sockets, needs.descriptors);
	if (needs.memory > ram)
		log_complain(0, "warning: %smax-sessions: %u sessions take %s at least, and this "
			     "machine has %s: lower it", at, c->max_sessions,
			     size_format(needs.memory, want, sizeof(want)), has);
	if (c->kernel_memory >= ram)
		log_complain(0, "warning: %skernel-memory: %s is no bound, since this machine has "
			     "%s: lower it", config_place(c, &c->defaults, "kernel-memory"),
			     size_format(c->kernel_memory, want, sizeof(want)), has);
}

/* The servers of FC have N addresses. */
static void check_forward(const struct config *c, const struct forward_conf *fc, size_t n)
{
	unsigned int own = fc->max_sessions ?: c->max_sessions;
	unsigned int sessions = own < c->max_sessions ? own : c->max_sessions;
	char why[256];

	if (!fc->keepalive_ms && !fc->idle_timeout_ms && !fc->fin_timeout_ms &&
	    !(endpoint_is_unix(&fc->listen) && upstreams_are_unix(&fc->upstream)))
		log_complain(0, "warning: %sforward %s: without keepalive, idle-timeout or fin-timeout a "
			     "session whose client or server has vanished stays for ever",
			     fc->place, forward_name(fc));
	/* a transparent forward connects from its clients' addresses */
	if (!n || fc->transparent || upstreams_are_unix(&fc->upstream) ||
	    sessions <= n * upstream_ports())
		return;
	snprintf(why, sizeof(why), "max-sessions allows %u, and %zu address%s of one port "
		 "take%s %zu (net.ipv4.ip_local_port_range): lower it, widen the range, or add a "
		 "server", sessions, n, n == 1 ? "" : "es", n == 1 ? "s" : "", n * upstream_ports());
	config_complain_address(fc, false, "warning: ", why);
}

/* --- names --- */

static void warn_of_upstream(const struct forward_conf *fc, const struct lookup *u)
{
	char why[LOOKUP_WHY_LEN + sizeof(u->conf->text) + 64];

	snprintf(why, sizeof(why), "%s%s%s (culvert starts all the same, and looks again)",
		 fc->upstream.n > 1 ? u->conf->text : "", fc->upstream.n > 1 ? ": " : "",
		 u->record.why);
	config_complain_address(fc, false, "warning: ", why);
}

/* All names are looked up at the same time. */
struct lookups {
	struct loop loop;
	struct names *names;
	struct lookup *upstreams; /* one for each server of each forward */
	size_t n;
};

static void after_batch(void *arg)
{
	struct lookups *l = arg;

	names_after_batch(l->names);
	l->loop.stop = true;
	for (size_t i = 0; i < l->n; i++)
		if (!l->upstreams[i].list->n && !l->upstreams[i].record.lookups)
			l->loop.stop = false;
}

static void look_up_upstreams(struct lookups *l, struct config *c)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n_forwards; i++)
		l->n += c->forwards[i].upstream.n;
	l->upstreams = allocated(calloc(l->n, sizeof(*l->upstreams)));
	for (const struct forward_conf *fc = c->forwards; n < l->n; fc++)
		for (size_t j = 0; j < fc->upstream.n; j++) {
			struct lookup *u = &l->upstreams[n++];

			if (lookup_open(u, &fc->upstream.servers[j].at, &fc->listen, UINT32_MAX,
					  clock_ms()) ||
			    names_add(l->names, u))
				allocated(NULL);
		}
	if (l->names)
		loop_run(&l->loop);
	n = 0;
	for (const struct forward_conf *fc = c->forwards; n < l->n; fc++) {
		size_t addresses = 0;

		for (size_t j = 0; j < fc->upstream.n; j++, n++) {
			if (!l->upstreams[n].list->n)
				warn_of_upstream(fc, &l->upstreams[n]);
			addresses += l->upstreams[n].list->n;
			lookup_close(&l->upstreams[n]);
		}
		check_forward(c, fc, addresses);
	}
	free(l->upstreams);
}

/* Names are looked up as an account without privileges, since strangers answer. */
static void check_upstreams(struct config *c)
{
	struct lookups l = { .n = 0 };
	struct account account;
	char err[512] = "no event loop";
	int r = loop_open(&l.loop, after_batch, &l);

	if (!r && names_needed(c))
		r = names_open(&l.loop, NULL, NULL, &l.names, err, sizeof(err));
	if (!r && l.names && !geteuid())
		r = account_find(c->user, &account, err, sizeof(err)) ?:
		    sandbox_enter(&account, 0, err, sizeof(err));
	if (r)
		log_complain(0, "%s: warning: its host names have not been looked up: %s", c->file,
			     err);
	else
		look_up_upstreams(&l, c);
	names_close(l.names);
	loop_close(&l.loop);
}

/* Read FILE as `culvert run --config FILE` would; the command line may have its forwards. */
static int parse(int argc, char **argv, struct config *c)
{
	char command[] = "run", option[] = "--config";
	char *words[] = { command, option, argv[1], NULL };
	int r;

	memset(c, 0, sizeof(*c));
	if (argc != 2 || argv[1][0] == '-')
		return log_complain(-EINVAL, "expected: culvert %s FILE", argv[0]);
	r = config_read_any(3, words, -1, c);
	if (!r && !c->n_forwards)
		log_complain(0, "%s: warning: no forward here: give LISTEN UPSTREAM on the command "
			     "line", argv[1]);
	return r;
}

/* What has been printed must have arrived.  Returns the exit code for R. */
static int finish(struct config *c, int r)
{
	config_close(c);
	if (!r && (fflush(stdout) || ferror(stdout)))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the result: %s",
				    strerror(errno));
	return config_exit_code(r);
}

int check_run(int argc, char **argv)
{
	struct config c;
	int r = parse(argc, argv, &c) ?: check_account(&c) ?: names_find_listeners(&c, false);

	if (!r) {
		upstream_learn_ports();
		check_machine(&c);
		check_upstreams(&c);
		printf("%s: %zu forward%s%s, no mistake\n", argv[1], c.n_forwards,
		       c.n_forwards == 1 ? "" : "s", c.is_rinetd ? " of a rinetd.conf" : "");
	}
	return finish(&c, r);
}

/* --- culvert convert --- */

static void write_lines(FILE *to, const struct config_lines *said)
{
	for (size_t i = 0; i < said->n; i++)
		fprintf(to, "%s = %s\n", said->lines[i].option->name, said->lines[i].value);
}

void convert_write(FILE *to, const char *file, const struct config *c)
{
	char name[180];

	fprintf(to, "; %s, as `culvert convert` reads it%s\n",
		log_escape(file, name, sizeof(name)), c->is_rinetd ? ": a rinetd.conf" : "");
	if (c->said.n) {
		fputs("\n[culvert]\n", to);
		write_lines(to, &c->said);
	}
	for (size_t i = 0; i < c->n_forwards; i++) {
		fprintf(to, "\n[forward %s]\n", c->forwards[i].name);
		write_lines(to, &c->forwards[i].said);
	}
}

int convert_run(int argc, char **argv)
{
	struct config c;
	int r = parse(argc, argv, &c);

	if (!r)
		convert_write(stdout, argv[1], &c);
	return finish(&c, r);
}
