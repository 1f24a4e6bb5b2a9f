// SPDX-License-Identifier: BSD-2-Clause
#include <stdio.h>
#include <string.h>

#include "base/exit_codes.h"
#include "cli/client.h"
#include "config/config.h"
#include "daemon/adopt.h"
#include "daemon/check.h"
#include "daemon/command.h"
#include "daemon/daemon.h"
#include "probe/probe.h"

/* Those that need no daemon; the others are in command.h. */
static const struct {
	const char *name;
	const char *summary;
	int (*run)(int argc, char **argv);
	void (*help)(void);
} own_commands[] = {
	{ "run", "forward connections", daemon_run, config_help },
	{ "check", "find mistakes in a configuration file", check_run, check_help },
	{ "convert", "print a configuration file, also a rinetd.conf, in culvert's own form",
	  convert_run, convert_help },
	{ "graft", "remove grafted sessions that a daemon has left", graft_run, graft_help },
	{ "probe", "try each kernel behaviour that culvert relies on", probe_run, probe_help },
};

#define N_OWN (sizeof(own_commands) / sizeof(own_commands[0]))

static void usage(FILE *to)
{
	fputs("usage: culvert COMMAND [OPTIONS]\n\n"
	      "A TCP forwarder that picks what carries each session: graft (packet by\n"
	      "packet), sockmap (socket to socket), splice or copy.\n\n",
	      to);
	for (size_t i = 0; i < N_OWN; i++)
		fprintf(to, "  %-10s %s\n", own_commands[i].name, own_commands[i].summary);
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
	fputs("\n  culvert help COMMAND    options of a command\n"
	      "  culvert --version\n\n"
	      "To forward port 9000 of this machine:  culvert run :9000 10.0.2.2:9001\n\n"
	      "Exit codes: 0 success, 1 failure at run time, 2 bad usage, 3 a kernel feature or\n"
	      "privilege is missing, 4 no daemon answers on the control socket.\n"
	      "Manual: culvert(8), culvert.conf(5)\n",
	      to);
}

static bool is_help(const char *word)
{
	return !strcmp(word, "--help") || !strcmp(word, "-h");
}

int main(int argc, char **argv)
{
	static char help_option[] = "--help";
	bool help = false;

	if (argc < 2) {
		usage(stderr);
		return EXIT_CODE_USAGE;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		puts("culvert " CULVERT_VERSION);
		return EXIT_CODE_OK;
	}
	if (!strcmp(argv[1], "help") || is_help(argv[1])) {
		if (argc == 2) {
			usage(stdout);
			return EXIT_CODE_OK;
		}
		/* "help COMMAND" is "COMMAND --help" */
		argv[1] = argv[2];
		argv[2] = help_option;
		argc = 3;
	}
	for (int i = 2; i < argc; i++)
		help = help || is_help(argv[i]);
	for (size_t i = 0; i < N_OWN; i++) {
		if (strcmp(own_commands[i].name, argv[1]) != 0)
			continue;
		if (!help)
			return own_commands[i].run(argc - 1, argv + 1);
		own_commands[i].help();
		return EXIT_CODE_OK;
	}
	if (command_find(argv[1]))
		return client_run(argc - 1, argv + 1);
	fprintf(stderr, "culvert: no such command: %s (try: culvert help)\n", argv[1]);
	return EXIT_CODE_USAGE;
}
