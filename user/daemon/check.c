// SPDX-License-Identifier: BSD-2-Clause
/*
 * `culvert check` and `culvert convert`.  No daemon would start with an unknown name to listen at,
 * so such a name is a mistake.  An unknown name of an upstream is a warning, and so are too few
 * descriptors.
 */
#include "daemon/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "config/convert.h"
#include "config/file.h"
#include "config/option.h"
#include "config/read.h"
#include "daemon/adopt.h"
#include "daemon/check_hooks.h"
#include "relay/marked_sockets.h"
#include "relay/names.h"
#include "relay/session_syn.h"
#include "relay/upstream_socket.h"

/* --- the account, descriptors --- */

static int check_account(const struct config *c)
{
	char err[512];
	struct account account;

	log_keep_complaint(err, sizeof(err));
	account_find_as_root(c->user, &account);
	log_keep_complaint(NULL, 0);
	return *err ? config_complain(option_place(c, &c->defaults, "user"), "%s", err) : 0;
}

/* A daemon that is started from this shell has the same limit as this process. */
static void check_descriptors(const struct config *c)
{
	struct needs needs = check_needs(c);
	unsigned long limit = sandbox_raise_nofile(needs.descriptors);

	if (limit < needs.descriptors)
		log_complain(0,
			     "warning: %smax-sessions: only %lu descriptors: %u sessions need %lu, "
			     "and %lu to splice both ways: raise RLIMIT_NOFILE or lower "
			     "--max-sessions (the limit of this shell; a unit has its own, "
			     "LimitNOFILE=)",
			     option_place(c, &c->defaults, "max-sessions"), limit, c->max_sessions,
			     needs.sockets, needs.descriptors);
}

/* --- names --- */

/*
 * A name that is not found is a warning, because a daemon would start all the same.  If no name
 * server answers, stop: to ask for each name would take too long.
 */
static void check_upstreams(const struct config *c)
{
	char why[256];
	int r = 0;

	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		for (size_t j = 0; r != -EAGAIN && j < fc->upstream.n; j++) {
			struct endpoint *e = &fc->upstream.servers[j].at;

			r = e->named ? endpoint_look_up(e, false, why, sizeof(why)) : 0;
			if (r)
				log_complain(0,
					     "warning: %supstream %s: %s (culvert starts all the "
					     "same, and looks again)",
					     fc->place, e->text, why);
		}
}

/* --- names of [sni] --- */

/* Does WORD of LEN bytes stand among the words of TEXT? */
static bool has_word(const char *text, const char *word, size_t len)
{
	for (size_t n; *(text += strspn(text, " \t")); text += n) {
		n = strcspn(text, " \t");
		if (n == len && !strncasecmp(text, word, n))
			return true;
	}
	return false;
}

/* Do all words of SOME stand among those of TEXT? */
static bool has_words(const char *text, const char *some)
{
	for (size_t n; *(some += strspn(some, " \t")); some += n) {
		n = strcspn(some, " \t");
		if (!has_word(text, some, n))
			return false;
	}
	return true;
}

/* Find an earlier section that takes all clients with NAME that FC would take; or NULL. */
static const struct forward_conf *find_before(const struct config *c, const struct forward_conf *fc,
					      const char *name, size_t len)
{
	for (const struct forward_conf *o = c->forwards; o < fc; o++)
		if (o->sni && o->of == fc->of &&
		    (!o->alpn || (fc->alpn && has_words(o->alpn, fc->alpn))) &&
		    has_word(o->sni, name, len))
			return o;
	return NULL;
}

/* Names that never match. */
static void check_names(const struct config *c)
{
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		for (const char *at = fc->sni ?: ""; *(at += strspn(at, " \t"));
		     at += strcspn(at, " \t")) {
			size_t len = strcspn(at, " \t");
			const struct forward_conf *o = find_before(c, fc, at, len);

			if (o)
				log_complain(0, "warning: %s\"%.*s\" never matches: %s comes first",
					     fc->place, (int)len, at, forward_name(o));
		}
}

/* --- other relays --- */

/* Does the kernel connect from a port of RANGE, which is text? */
static bool check_uses_any(const char *range)
{
	unsigned int ports[2];

	return config_port_range(range, ports) && upstream_learn_ports() && upstream_use_any(ports);
}

/*
 * Find settings that prevent another relay from carrying this relay's sessions on, or this relay
 * from carrying on those of the other.
 */
static void check_standby(const struct config *c, bool fleet)
{
	const char *place = option_place(c, &c->defaults, "standby-ports");
	bool pair = c->standby_ports;

	if (pair && check_uses_any(c->standby_ports))
		log_complain(0,
			     "warning: %sstandby-ports: this relay itself connects from ports %u "
			     "to %u, so an imported session may find its port taken "
			     "(net.ipv4.ip_local_port_range)",
			     place, upstream_ports[0], upstream_ports[1]);
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		if ((pair || fleet) && !fc->source.len && !fc->transparent &&
		    !upstreams_are_unix(&fc->upstream))
			log_complain(0,
				     "warning: %sno source: servers see an address of this "
				     "machine alone, so no other relay can take the sessions over",
				     fc->place);
}

static const struct forward_conf *find_named(const struct config *c, const char *name)
{
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		if (!strcmp(forward_name(fc), name))
			return fc;
	return NULL;
}

/* Records name forwards: O has to have each forward of C.  -EINVAL. */
static int check_same_forwards(const struct config *c, const struct config *o)
{
	int r = 0;

	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++) {
		const char *name = forward_name(fc);
		const struct forward_conf *its = find_named(o, name);

		if (!its)
			r = config_complain(fc->place,
					    "%s has no forward %s, and would refuse its "
					    "sessions",
					    o->file, name);
		else if (its->listen.udp != fc->listen.udp)
			r = config_complain(fc->place, "forward %s is %s here, but %s in %s", name,
					    protocol_name(fc->listen.udp),
					    protocol_name(its->listen.udp), o->file);
	}
	return r;
}

/*
 * A router between relays and servers sends packets for a shared source to any relay, so the answer
 * to a handshake meets a relay that knows nothing of it.  -EINVAL.
 */
static int check_sources(const struct config *c, const struct config *o)
{
	const struct forward_conf *its, *end = o->forwards + o->n_forwards;
	int r = 0;

	if (c->standby_ports && o->standby_ports) /* a pair, or routers split ports */
		return 0;
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++) {
		for (its = o->forwards; its < end && !addr_equal(&fc->source, &its->source); its++)
			continue;
		if (fc->source.len && its < end)
			r = config_complain(option_place(c, fc, "source"),
					    "source: that of %s in %s: a server's answer to a "
					    "handshake may reach the other relay, which knows "
					    "nothing of it (unless an address moves, or routers "
					    "split ports: then set standby-ports)",
					    forward_name(its), o->file);
	}
	return r;
}

/* Ids of sessions have the relay's number.  -EINVAL. */
static int check_names_of_relays(const struct config *c, const struct config *o)
{
	const char *place = option_place(c, &c->defaults, "relay");

	if (!strcmp(c->relay, o->relay))
		return config_complain(place, "relay: %s has the same name", o->file);
	if (id_relay(c->relay) == id_relay(o->relay))
		return config_complain(place,
				       "relay: %s and %s of %s make the same number, so ids "
				       "of sessions would be the same: take another name",
				       c->relay, o->relay, o->file);
	return 0;
}

/* C, of N relays that carry on each other's sessions.  -EINVAL, after complaints. */
static int check_fleet(const struct config *c, size_t n)
{
	int r = 0;

	for (size_t i = 1; i < n; i++) {
		r = check_same_forwards(&c[i], c) ?: r;
		r = check_same_forwards(c, &c[i]) ?: r;
		for (size_t j = 0; j < i; j++) {
			r = check_names_of_relays(&c[i], &c[j]) ?: r;
			r = check_sources(&c[i], &c[j]) ?: r;
		}
	}
	return r;
}

static void check_set_up(const struct config *c)
{
	const char *place = option_place(c, &c->defaults, "set-up-ports");

	if (check_uses_any(c->set_up_ports))
		log_complain(
			0,
			"warning: %sset-up-ports: the kernel connects from ports %u to %u: other "
			"programs here may fail to connect to the same servers "
			"(net.ipv4.ip_local_reserved_ports)",
			place, upstream_ports[0], upstream_ports[1]);
}

/* Say where sessions of each forward of TCP begin that leaves it to us; HOOKS: check_hooks_write(). */
static void check_beginnings(const struct config *c, int hooks)
{
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++) {
		struct forward f = { .conf = fc, .engine = fc->engine };
		const char *why = session_syn_refusal(fc, adopt_no_syn(c), forward_grafts(&f),
						      hooks > 0);

		if (fc->set_up != SET_UP_SOCKETS && !fc->listen.udp)
			printf("%s: sessions %s%s\n", forward_name(fc),
			       why       ? "begin by sockets: " :
			       !hooks    ? "may begin in the kernel" :
			       hooks > 0 ? "may begin in the kernel, past all these hooks" :
					   "may begin in the kernel (auto: unless there are hooks)",
			       why ?: "");
	}
}

/* READER reads FILE as `culvert run --config FILE` would. */
static int parse(char *file, int (*reader)(int, char **, int, struct config *), struct config *c)
{
	char command[] = "run", option[] = "--config";
	char *words[] = { command, option, file, NULL };

	memset(c, 0, sizeof(*c));
	if (!file || *file == '-')
		return log_complain(-EINVAL, "expected the name of a file");
	return reader(3, words, -1, c);
}

/* Complain if the output could not be written.  Returns the exit code for R. */
static int finish(int r)
{
	if (!r && (fflush(stdout) || ferror(stdout)))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the result: %s",
				    strerror(errno));
	return config_exit_code(r);
}

static int check_one(char *file, struct config *c, bool fleet)
{
	int r = parse(file, config_read, c);

	r = check_account(c) ?: r;
	r = r ?: names_find_listeners(c, false);
	if (r)
		return r;
	check_names(c);
	check_standby(c, fleet);
	check_set_up(c);
	check_descriptors(c);
	check_upstreams(c);
	check_beginnings(c, check_hooks_write(stdout));
	if (fleet && !c->relay)
		r = log_complain(-EINVAL,
				 "%s: relay is missing: ids of sessions would be those of "
				 "other relays",
				 c->file);
	return r;
}

int check_run(int argc, char **argv)
{
	size_t n = argc > 1 ? (size_t)argc - 1 : 1;
	struct config *c = allocated(calloc(n, sizeof(*c)));
	int r = 0;

	for (size_t i = 0; i < n; i++)
		r = check_one(argv[i + 1], &c[i], n > 1) ?: r;
	r = r ?: check_fleet(c, n);
	for (size_t i = 0; i < n; i++) {
		if (!r)
			printf("%s: %zu forward%s%s, no mistake\n", argv[i + 1], c[i].n_forwards,
			       c[i].n_forwards == 1 ? "" : "s",
			       c[i].is_rinetd ? " of a rinetd.conf" : "");
		config_close(&c[i]);
	}
	free(c);
	return finish(r);
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

	fprintf(to, "; %s, as `culvert convert` reads it%s\n", log_escape(file, name, sizeof(name)),
		c->is_rinetd ? ": a rinetd.conf" : "");
	if (c->said.n) {
		fputs("\n[culvert]\n", to);
		write_lines(to, &c->said);
	}
	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++) {
		if (fc->sni)
			fprintf(to, "\n[sni %s %s]\n", c->forwards[fc->of].name, fc->sni);
		else
			fprintf(to, "\n[forward %s]\n", fc->name);
		write_lines(to, &fc->said);
	}
}

/*
 * Convert PATH if it is a file of another program.  Nothing obeys what is read here, so the file may
 * be anybody's.  False: it is none; else *RET is the exit code.
 */
static bool convert_foreign(const char *path, int *ret)
{
	FILE *from = fopen(path, "re");
	char *text = allocated(malloc(CONFIG_FILE_MAX + 1));
	struct stat st;
	size_t len = 0;
	bool is;

	if (from && !fstat(fileno(from), &st) && S_ISREG(st.st_mode) &&
	    st.st_size <= CONFIG_FILE_MAX)
		len = fread(text, 1, CONFIG_FILE_MAX, from);
	text[len] = '\0';
	is = convert_is(text);
	if (is && strlen(text) != len)
		*ret = log_complain(EXIT_CODE_USAGE, "%s: a NUL, so this is no text", path);
	else if (is)
		*ret = convert_text(stdout, path, text);
	if (is && *ret >= 0 && (fflush(stdout) || ferror(stdout)))
		*ret = log_complain(EXIT_CODE_FAILURE, "cannot write the result: %s",
				    strerror(errno));
	*ret = *ret < 0 ? EXIT_CODE_USAGE : *ret;
	free(text);
	if (from)
		fclose(from);
	return is;
}

int convert_run(int argc, char **argv)
{
	struct config c;
	int r = 0;

	if (argc == 2 && argv[1][0] != '-' && convert_foreign(argv[1], &r))
		return r;
	r = parse(argc == 2 ? argv[1] : NULL, config_read_any, &c);

	if (!r)
		convert_write(stdout, argv[1], &c);
	config_close(&c);
	return finish(r);
}

/* --- descriptors that a configuration needs --- */

/* A session has two pipes while both its directions hold spliced bytes. */
#define DESCRIPTORS_EACH (SOCKETS_EACH + 2 * 2)
/*
 * Descriptors beside those of sessions and forwards.  OWN: maps, epoll, logs, the control socket's
 * clients, forwards that a reload adds.  SPARE: OWN, and idle pipes.
 */
#define OWN_DESCRIPTORS 256
#define SPARE_DESCRIPTORS 1024

struct needs check_needs(const struct config *c)
{
	unsigned long forwards = 0;

	for (const struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++)
		forwards += fc->listen.n_addrs * c->workers +
			    2UL * MARKED_SOCKETS * forward_needs_privileges(fc);
	return (struct needs){
		.sockets = SOCKETS_EACH * c->max_sessions + forwards + OWN_DESCRIPTORS,
		.descriptors = DESCRIPTORS_EACH * c->max_sessions + forwards + SPARE_DESCRIPTORS,
	};
}
