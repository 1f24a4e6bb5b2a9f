// SPDX-License-Identifier: BSD-2-Clause
#include "cli/local_commands.h"

#include <stdio.h>

#include "cli/control_client.h"
#include "cli/top.h"
#include "config/read.h"
#include "daemon/adopt.h"
#include "daemon/check.h"
#include "daemon/daemon.h"
#include "daemon/reflect.h"
#include "probe/probe.h"

static const struct request_key_def no_options[] = { { .name = NULL } };
static const struct request_key_def graft_options[] = {
	{ "remove", .help = "reset the sessions, and remove all that is left" },
	{ "control", "PATH",
	  .help = "control socket of the daemon (default " CONFIG_CONTROL_DEFAULT ")" },
	{ "graft-pins", "DIR",
	  .help = "graft-pins of the daemon (default " CONFIG_GRAFT_PINS_DEFAULT ")" },
	{ .name = NULL },
};
static const struct request_key_def top_options[] = {
	{ "control", "PATH", .help = "control socket of the daemon" },
	{ "forward", "NAME", .help = "sessions of this forward" },
	{ "client", "ADDR", .help = "sessions of these clients" },
	{ .name = NULL },
};
static const struct request_key_def reflect_options[] = {
	{ "control", "PATH", .help = "control socket (default " CONFIG_CONTROL_DEFAULT ")" },
	{ "user", "NAME", .help = "account to become" },
	{ .name = NULL },
};
static const struct request_key_def probe_options[] = {
	{ "json", .help = "print the results as JSON" },
	{ .name = NULL },
};

static const char check_about[] =
	"Read FILE as `culvert run --config FILE` would, look up its host names, and say what\n"
	"is wrong, with file and line, and where sessions begin.  culvert would start in spite\n"
	"of a warning.  The check itself starts nothing.  Several files are of the relays of a\n"
	"fleet, and are compared: relays need different names and sources, and the same forwards.\n"
	"Exit code: 0 no mistake; 2 a mistake; 1 a failure that may pass.";
static const char convert_about[] =
	"Read FILE as `culvert run --config FILE` would, or a haproxy.cfg or nginx.conf, and print\n"
	"what it says as a file with sections.  Its comments are lost.  Comments in the result\n"
	"name what HAProxy or nginx has, and culvert has not; then the exit code is 1.\n"
	"Other exit codes: as of `culvert check`.";
static const char top_about[] =
	"The last line of the screen lists the keys.  All options of `culvert sessions` but\n"
	"--json are taken.";
static const char probe_about[] =
	"The trials are those of `culvert run` when it starts, on loopback connections of its\n"
	"own.  Needs the privileges of `culvert run`.\n"
	"Exit code: 0 all behaviours hold; 3 one does not, or cannot be tried.";
static const char graft_about[] =
	"After a daemon has died, or has left grafted sessions: reset these sessions, take the\n"
	"packet programs off all interfaces, and remove what is pinned.  Needs root, and\n"
	"--remove.  A daemon that runs is left alone.\n"
	"Exit code: 0 nothing is left; 1 it cannot be removed, or a daemon runs; 2 usage.";

static const char reflect_about[] =
	"Import the sessions of all relays of a fleet, and export them to all: see `relay` in\n"
	"culvert.conf(5).  Forwards nothing.  The other commands are export, import and status.";

const struct local_command local_commands[] = {
	{ "run", "forward connections", daemon_run, NULL, "ADDRESS", .help = config_help },
	{ "check", "find mistakes in a configuration file", check_run, no_options, "FILE...",
	  .about = check_about },
	{ "convert", "print a configuration, also of rinetd, HAProxy or nginx, in culvert's form",
	  convert_run, no_options, "FILE", .about = convert_about },
	{ "top", "watch forwards, servers, sessions and clients, and change them", top_run,
	  top_options, .about = top_about },
	{ "graft", "remove grafted sessions that a daemon has left", graft_run, graft_options,
	  .about = graft_about },
	{ "reflect", "pass records of grafted sessions between many relays", reflect_run,
	  reflect_options, .about = reflect_about },
	{ "probe", "try each kernel behaviour that culvert relies on", probe_run, probe_options,
	  .about = probe_about, .help = probe_help },
	{ .name = NULL },
};

void local_command_help(const struct local_command *c)
{
	if (c->about) {
		printf("Usage: culvert %s %s%s\n\nTo %s.  See culvert(8).\n\n%s\n", c->name,
		       c->word ?: "", c->options->name ? "[options]" : "", c->summary, c->about);
		if (c->options->name)
			puts("\nOptions:");
		for (const struct request_key_def *o = c->options; o->name; o++)
			client_print_option(o);
	}
	if (c->help)
		c->help();
}
