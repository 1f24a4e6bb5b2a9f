// SPDX-License-Identifier: BSD-2-Clause
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "cli/control_client.h"
#include "cli/local_commands.h"
#include "commit.h"
#include "version.h"

static void usage(FILE *to)
{
	fputs("usage: culvert COMMAND [OPTIONS]\n\n"
	      "A forwarder of TCP and UDP that picks what carries each session: graft (packet\n"
	      "by packet), sockmap (socket to socket), splice or copy.\n\n",
	      to);
	for (const struct local_command *c = local_commands; c->name; c++)
		fprintf(to, "  %-10s %s\n", c->name, c->summary);
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

	clock_open();
	if (argc < 2) {
		usage(stderr);
		return EXIT_CODE_USAGE;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		puts("culvert " CULVERT_VERSION " (commit " CULVERT_COMMIT ")");
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
	for (const struct local_command *c = local_commands; c->name; c++) {
		if (strcmp(c->name, argv[1]) != 0)
			continue;
		if (!help)
			return c->run(argc - 1, argv + 1);
		local_command_help(c);
		return EXIT_CODE_OK;
	}
	if (command_find(argv[1]))
		return client_run(argc - 1, argv + 1);
	fprintf(stderr, "culvert: no such command: %s (try: culvert help)\n", argv[1]);
	return EXIT_CODE_USAGE;
}
