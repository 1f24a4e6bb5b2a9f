// SPDX-License-Identifier: BSD-2-Clause
/*
 * Completions of the command line, for bash, zsh and fish: the commands, their options, and the
 * values of those that have a few.  The tables of the program are printed as rows that are the same
 * for all shells: each is a call of _culvert_row, a function of scripts/completions/culvert.SHELL,
 * with
 *
 *   COMMAND OPTION METAVAR VALUES HELP
 *
 * The first rows of a command have no OPTION.  Each describes the next positional argument; "..."
 * behind METAVAR: this argument and all that follow.  Without METAVAR the option has no value, or
 * the command no argument.  Without VALUES any value is allowed.  FORWARD and SERVER are names that
 * a running daemon knows.
 */
#include "completion.h"

#include <stdio.h>
#include <string.h>

#include "cli/control_client.h"
#include "cli/local_commands.h"
#include "config/option.h"

static void begin_row(const char *command, const char *option, const char *metavar)
{
	printf("_culvert_row %s '%s%s' '%s' '", command, *option ? "--" : "", option,
	       metavar ? metavar : "");
}

static void put_value(const char *value)
{
	if (!strpbrk(value, ", ")) /* a value with a blank or comma lists other values */
		printf("%s ", value);
}

static void end_row(const char *help)
{
	fputs("' '", stdout);
	for (; *help; help++) {
		if (*help == '\'')
			fputs("'\\'", stdout);
		putchar(*help);
	}
	puts("'");
}

static void put_key_values(const struct request_key_def *key)
{
	for (size_t i = 0; i < key->n_choices; i++)
		if (key->choices[i])
			put_value(key->choices[i]);
}

static void put_option(const char *command, const struct option_def *o)
{
	begin_row(command, o->name, o->metavar);
	if (o->kind == KIND_BOOL)
		fputs("yes no", stdout);
	for (size_t i = o->min; o->choices && o->choices[i]; i++)
		put_value(o->choices[i]);
	end_row(o->help);
}

static const char *metavar_of(const struct request_key_def *key)
{
	return !strcmp(key->name, "forward") ? "FORWARD" : key->metavar;
}

static void put_key(const char *command, const struct request_key_def *key)
{
	begin_row(command, request_key_option(key), metavar_of(key));
	put_key_values(key);
	end_row(key->help);
}

static void put_own(const struct local_command *c)
{
	begin_row(c->name, "", c->word && !c->options ? "ADDRESS..." : c->word);
	end_row(c->summary);
	for (const struct request_key_def *key = c->options; key && key->name; key++)
		put_key(c->name, key);
	for (const struct option_def *o = option_table; !c->options && o->name; o++)
		if (o->scope != SCOPE_FORWARD)
			put_option(c->name, o);
}

static void put_command(const struct command *c)
{
	for (const enum request_key *key = c->keys; *key; key++)
		if (c->positional >> *key & 1) {
			begin_row(c->name, "",
				  *key == KEY_ID ? "ID..." : metavar_of(&request_keys[*key]));
			put_key_values(&request_keys[*key]);
			end_row(c->summary);
		}
	if (!c->positional) {
		begin_row(c->name, "", NULL);
		end_row(c->summary);
	}
	for (const enum request_key *key = c->keys; *key; key++)
		put_key(c->name, &request_keys[*key]);
	for (size_t i = 0; i < OWNS; i++)
		put_key(c->name, &client_options[i]);
}

static void put_help(void)
{
	begin_row("help", "", "COMMAND");
	for (const struct local_command *c = local_commands; c->name; c++)
		put_value(c->name);
	for (size_t i = 0; i < COMMANDS; i++)
		put_value(commands[i].name);
	end_row("show the options of a command");
	puts("_culvert_row --help '' '' '' 'show the commands'\n"
	     "_culvert_row --version '' '' '' 'show version and commit'");
}

void completion_rows(void)
{
	for (const struct local_command *c = local_commands; c->name; c++)
		put_own(c);
	for (size_t i = 0; i < COMMANDS; i++)
		put_command(&commands[i]);
	put_help();
}
