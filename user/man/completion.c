// SPDX-License-Identifier: BSD-2-Clause
/*
 * Completions of the command line, for bash, zsh and fish: the commands, their options, and the
 * values of those that have a few.  The tables of the program are printed as rows that are the same
 * for all shells: each is a call of _culvert_row, a function in the language of the shell, with
 *
 *   COMMAND OPTION METAVAR VALUES HELP
 *
 * The first row of a command has no OPTION: the others are about the words that are no options.
 * Without METAVAR there is no value, or no such word; without VALUES it can be anything.
 */
#include "completion.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "base/log.h"
#include "cli/client.h"
#include "cli/own_commands.h"
#include "config/config.h"
#include "config/option.h"
#include "datapath/flow.h"
#include "relay/balance.h"

/* --- the shells --- */

static const struct shell {
	const char *name, *begin, *end;
} shells[] = {
	{ "bash",
	  "_culvert_row() {\n"
	  "\tif [[ $COMP_CWORD -eq 1 ]]; then\n"
	  "\t\t[[ $2 ]] || words+=\" $1\"\n"
	  "\telif [[ $1 == \"${COMP_WORDS[1]}\" ]]; then\n"
	  "\t\twords+=\" $2\"\n"
	  "\t\t[[ $2 || $cur == -* ]] || { metavar=$3 values=$4; }\n"
	  "\t\t[[ $2 != \"$prev\" || ! $3 ]] || { metavar=$3 values=${4:- }; }\n"
	  "\tfi\n"
	  "}\n"
	  "_culvert() {\n"
	  "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
	  "\tlocal words= metavar= values=\n"
	  "\t_culvert_rows\n"
	  "\tcase $prev:$metavar in\n"
	  "\t-c:* | *:FILE | *:PATH | *:DIR)\n"
	  "\t\tcompopt -o filenames\n"
	  "\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
	  "\t*) mapfile -t COMPREPLY < <(compgen -W \"${values:-$words}\" -- \"$cur\") ;;\n"
	  "\tesac\n"
	  "}\n"
	  "_culvert_rows() {\n",
	  "}\n"
	  "complete -F _culvert culvert\n" },
	{ "zsh",
	  "#compdef culvert\n"
	  "local -a commands options\n"
	  "_culvert_row() {\n"
	  "\tlocal value=\n"
	  "\tcase $3:$4 in\n"
	  "\t(FILE:|PATH:|DIR:) value=\":$3:_files\" ;;\n"
	  "\t(?*:) value=\":$3: \" ;;\n"
	  "\t(?*:?*) value=\":$3:($4)\" ;;\n"
	  "\tesac\n"
	  "\t[[ -n $2 ]] || commands+=(\"$1:$5\")\n"
	  "\t[[ $1 == $words[2] ]] || return 0\n"
	  "\t[[ -z $2 ]] || options+=(\"$2${3:+=}[$5]$value\")\n"
	  "\t[[ -n $2 || -z $3 ]] || options+=(\"*$value\")\n"
	  "}\n",
	  "(( CURRENT > 2 )) || { _describe command commands; return }\n"
	  "shift words\n"
	  "(( CURRENT-- ))\n"
	  "_arguments $options\n" },
	{ "fish",
	  "function __culvert_command\n"
	  "\tset -l words (commandline -opc)\n"
	  "\ttest \"$words[2]\" = \"$argv[1]\"\n"
	  "end\n"
	  "function _culvert_row -a command option metavar values help\n"
	  "\tset -l row -c culvert -n \"__culvert_command $command\"\n"
	  "\tif test -n \"$option\"\n"
	  "\t\tset -a row -l (string sub -s 3 -- $option) -d $help\n"
	  "\telse\n"
	  "\t\tcomplete -c culvert -n __culvert_command -a $command -d $help\n"
	  "\tend\n"
	  "\tif contains -- $metavar FILE PATH DIR\n"
	  "\t\tset -a row -rF\n"
	  "\telse if test -n \"$metavar\"\n"
	  "\t\tset -a row -x -a $values\n"
	  "\tend\n"
	  "\tcomplete $row\n"
	  "end\n"
	  "complete -c culvert -f\n",
	  "" },
};

/* --- the rows --- */

static void begin_row(const char *command, const char *option, const char *metavar)
{
	printf("_culvert_row %s '%s%s' '%s' '", command, *option ? "--" : "", option,
	       metavar ? metavar : "");
}

static void put_value(const char *value)
{
	if (!strpbrk(value, ", ")) /* several at once */
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

static void put_levels(void)
{
	for (int level = LOG_ERR; level <= LOG_DEBUG; level++)
		put_value(log_level_name(level));
}

static void put_option(const char *command, const struct option_def *o)
{
	begin_row(command, o->name, o->metavar);
	if (o->kind == KIND_BOOL)
		fputs("yes no", stdout);
	else if (o->kind == KIND_LEVEL)
		put_levels();
	for (size_t i = 0; o->choices && o->choices[i]; i++)
		put_value(o->choices[i]);
	end_row(o->help);
}

static void put_key_values(enum command_type type)
{
	for (unsigned int c = 0; type == TYPE_CARRIER && c < CARRIERS; c++)
		put_value(carrier_name(c));
	for (unsigned int e = 0; type == TYPE_ENGINE && e < ENGINES; e++)
		put_value(engine_name(e));
	for (unsigned int o = 0; type == TYPE_ORDER && o < ORDERS; o++)
		put_value(server_order_name(o));
	if (type == TYPE_ENGINE)
		put_value("default");
	else if (type == TYPE_LEVEL)
		put_levels();
}

static void put_key(const char *command, const struct command_key_def *key)
{
	begin_row(command, command_key_option(key), key->metavar);
	put_key_values(key->type);
	end_row(key->help);
}

static void put_own(const struct own_command *c)
{
	begin_row(c->name, "", c->word);
	end_row(c->summary);
	for (const struct command_key_def *key = c->options; key && key->name; key++)
		put_key(c->name, key);
	for (const struct option_def *o = option_table; !c->options && o->name; o++)
		if (o->scope != SCOPE_FORWARD)
			put_option(c->name, o);
}

/* Of the words the last one counts: names and ids cannot be guessed. */
static void put_command(const struct command *c)
{
	const struct command_key_def *word = NULL;

	for (size_t i = 0; i < c->n_keys; i++)
		if (c->positional >> c->keys[i] & 1)
			word = &command_keys[c->keys[i]];
	begin_row(c->name, "", word ? word->metavar : NULL);
	if (word)
		put_key_values(word->type);
	end_row(c->summary);
	for (size_t i = 0; i < c->n_keys; i++)
		put_key(c->name, &command_keys[c->keys[i]]);
	for (size_t i = 0; i < OWNS; i++)
		put_key(c->name, &client_options[i]);
}

static void put_help(void)
{
	begin_row("help", "", "COMMAND");
	for (const struct own_command *c = own_commands; c->name; c++)
		put_value(c->name);
	for (size_t i = 0; i < COMMANDS; i++)
		put_value(commands[i].name);
	end_row("show the options of a command");
	puts("_culvert_row --help '' '' '' 'show the commands'\n"
	     "_culvert_row --version '' '' '' 'show version and commit'");
}

bool completion_put(const char *name)
{
	const struct shell *shell = shells, *end = shells + sizeof(shells) / sizeof(shells[0]);

	while (shell < end && strcmp(shell->name, name) != 0)
		shell++;
	if (shell == end)
		return false;
	fputs(shell->begin, stdout);
	for (const struct own_command *c = own_commands; c->name; c++)
		put_own(c);
	for (size_t i = 0; i < COMMANDS; i++)
		put_command(&commands[i]);
	put_help();
	fputs(shell->end, stdout);
	return true;
}
