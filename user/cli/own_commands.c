// SPDX-License-Identifier: BSD-2-Clause
#include "cli/own_commands.h"

#include "cli/top.h"
#include "config/read.h"
#include "daemon/adopt.h"
#include "daemon/check.h"
#include "daemon/daemon.h"
#include "probe/probe.h"

static const struct command_key_def no_options[] = { { .name = NULL } };
static const struct command_key_def graft_options[] = {
	{ .name = "remove", .help = "reset the sessions, and remove all that is left" },
	{ .name = "control", .metavar = "PATH", .help = "control socket of the daemon" },
	{ .name = "graft-pins", .metavar = "DIR", .help = "graft-pins of the daemon" },
	{ .name = NULL },
};
static const struct command_key_def top_options[] = {
	{ .name = "control", .metavar = "PATH", .help = "control socket of the daemon" },
	{ .name = "forward", .metavar = "NAME", .help = "sessions of this forward" },
	{ .name = "client", .metavar = "ADDR", .help = "sessions of these clients" },
	{ .name = NULL },
};
static const struct command_key_def probe_options[] = {
	{ .name = "json", .help = "print the results as JSON" },
	{ .name = NULL },
};

const struct own_command own_commands[] = {
	{ "run", "forward connections", daemon_run, config_help, NULL, "ADDRESS" },
	{ "check", "find mistakes in a configuration file", check_run, check_help, no_options,
	  "FILE" },
	{ "convert", "print a configuration file, also a rinetd.conf, in culvert's own form",
	  convert_run, convert_help, no_options, "FILE" },
	{ "top", "watch the sessions of a running daemon, and change them", top_run, top_help,
	  top_options, NULL },
	{ "graft", "remove grafted sessions that a daemon has left", graft_run, graft_help,
	  graft_options, NULL },
	{ "probe", "try each kernel behaviour that culvert relies on", probe_run, probe_help,
	  probe_options, NULL },
	{ .name = NULL },
};
