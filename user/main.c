// SPDX-License-Identifier: BSD-2-Clause
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "config.h"
#include "config_convert.h"
#include "daemon.h"
#include "exit_codes.h"
#include "probe.h"

struct command {
	const char *name;
	const char *summary;
	int (*run)(int argc, char **argv);
	void (*help)(void);
};

static const struct command commands[] = {
	{ "run", "forward connections", daemon_run, config_help },
	{ "sessions", "show the live sessions of a running daemon", client_sessions,
	  client_sessions_help },
	{ "status", "show its totals, errors and resources", client_status, client_status_help },
	{ "check", "find mistakes in a configuration file", config_check, config_check_help },
	{ "convert", "print a configuration file, also a rinetd.conf, in culvert's own form",
	  config_convert, config_convert_help },
	{ "probe", "try each kernel behaviour that culvert relies on", probe_run, probe_help },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *to)
{
	fputs("usage: culvert COMMAND [OPTIONS]\n\n"
	      "A TCP forwarder whose payload does not pass through user space.\n\n",
	      to);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
	fputs("\n  culvert help COMMAND    options of a command\n"
	      "  culvert --version\n\n"
	      "Exit codes: 0 success, 1 failure at run time, 2 bad usage, 3 a kernel feature or\n"
	      "privilege is missing, 4 no daemon answers on the control socket.\n",
	      to);
}

static const struct command *find(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static int help(int argc, char **argv)
{
	const struct command *c = argc > 2 ? find(argv[2]) : NULL;

	if (argc > 2 && !c) {
		fprintf(stderr, "culvert: no such command: %s\n", argv[2]);
		return EXIT_CODE_USAGE;
	}
	if (c)
		c->help();
	else
		usage(stdout);
	return EXIT_CODE_OK;
}

int main(int argc, char **argv)
{
	const struct command *c;

	if (argc < 2) {
		usage(stderr);
		return EXIT_CODE_USAGE;
	}
	if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
		return help(argc, argv);
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		puts("culvert " CULVERT_VERSION);
		return EXIT_CODE_OK;
	}
	c = find(argv[1]);
	if (!c) {
		fprintf(stderr, "culvert: no such command: %s (try: culvert help)\n", argv[1]);
		return EXIT_CODE_USAGE;
	}
	return c->run(argc - 1, argv + 1);
}
