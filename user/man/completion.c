// SPDX-License-Identifier: BSD-2-Clause
/*
 * Completions of the command line, for bash, zsh and fish: the commands, their options, and the
 * values of those that have a few.  The tables of the program are first made one list of commands;
 * then each shell has a function that prints the list in its language.
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

#define VALUES_LEN 128
#define LIST_MAX 32

/* An option, or what a word that is none means. */
struct item {
	const char *name;
	const char *help;
	const char *metavar;     /* NULL: no value */
	char values[VALUES_LEN]; /* what it can be, with blanks between; empty: anything */
};

struct entry {
	const char *name;
	const char *summary;
	struct item items[OPTIONS_MAX];
	size_t n;
	struct item word; /* without a metavar: the command takes no words */
};

static struct entry list[LIST_MAX];
static size_t n_list;

/* --- the list --- */

static void add_value(struct item *it, const char *value)
{
	size_t len = strlen(it->values);

	if (!strpbrk(value, ", ")) /* several at once */
		snprintf(it->values + len, VALUES_LEN - len, "%s%s", len ? " " : "", value);
}

static void add_levels(struct item *it)
{
	for (int level = LOG_ERR; level <= LOG_DEBUG; level++)
		add_value(it, log_level_name(level));
}

static struct entry *add_entry(const char *name, const char *summary)
{
	list[n_list] = (struct entry){ .name = name, .summary = summary };
	return &list[n_list++];
}

static struct item *add_item(struct entry *e, const char *name, const char *metavar,
			     const char *help)
{
	e->items[e->n] = (struct item){ .name = name, .metavar = metavar, .help = help };
	return &e->items[e->n++];
}

static void add_option(struct entry *e, const struct option_def *o)
{
	struct item *it = add_item(e, o->name, o->metavar, o->help);

	if (o->kind == KIND_BOOL) {
		add_value(it, "yes");
		add_value(it, "no");
	} else if (o->kind == KIND_LEVEL) {
		add_levels(it);
	}
	for (size_t i = 0; o->choices && o->choices[i]; i++)
		add_value(it, o->choices[i]);
}

static struct item *add_key(struct entry *e, const struct command_key_def *key)
{
	struct item *it = add_item(e, command_key_option(key), key->metavar, key->help);

	if (key->type == TYPE_LEVEL) {
		add_levels(it);
	} else if (key->type == TYPE_CARRIER) {
		for (unsigned int c = 0; c < CARRIERS; c++)
			add_value(it, carrier_name(c));
	} else if (key->type == TYPE_ENGINE) {
		for (unsigned int engine = 0; engine < ENGINES; engine++)
			add_value(it, engine_name(engine));
		add_value(it, "default");
	}
	return it;
}

static void list_own(const struct own_command *c)
{
	struct entry *e = add_entry(c->name, c->summary);

	e->word.metavar = c->word;
	for (const struct command_key_def *o = c->options; o && o->name; o++)
		add_key(e, o);
	for (const struct option_def *o = option_table; !c->options && o->name; o++)
		if (o->scope != SCOPE_FORWARD)
			add_option(e, o);
}

static void list_command(const struct command *c)
{
	struct entry *e = add_entry(c->name, c->summary);

	for (size_t i = 0; i < c->n_keys; i++) {
		const struct item *it = add_key(e, &command_keys[c->keys[i]]);

		if (c->positional >> c->keys[i] & 1)
			e->word = *it; /* the last one counts: names and ids cannot be guessed */
	}
	for (size_t i = 0; i < OWNS; i++)
		add_key(e, &client_options[i]);
}

static void list_commands(void)
{
	struct entry *help;

	for (const struct own_command *c = own_commands; c->name; c++)
		list_own(c);
	for (size_t i = 0; i < COMMANDS; i++)
		list_command(&commands[i]);
	help = add_entry("help", "show the options of a command");
	help->word.metavar = "COMMAND";
	for (size_t i = 0; i + 1 < n_list; i++)
		add_value(&help->word, list[i].name);
}

static bool is_file(const struct item *it)
{
	return it->metavar && (!strcmp(it->metavar, "FILE") || !strcmp(it->metavar, "PATH") ||
			       !strcmp(it->metavar, "DIR"));
}

/* TEXT between single quotes, without the characters of NOT. */
static void put_quoted(const char *text, const char *not)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", stdout);
		else if (!strchr(not, *text))
			putchar(*text);
	}
}

/* --- bash --- */

static void put_bash_values(const struct item *it)
{
	if (is_file(it))
		puts(" files=1 ;;");
	else if (*it->values)
		printf(" words='%s' ;;\n", it->values);
	else
		puts(" ;;");
}

static void put_bash_entry(const struct entry *e)
{
	printf("\t%s:*)\n\t\twords='", e->name);
	for (size_t i = 0; i < e->n; i++)
		printf("%s--%s", i ? " " : "", e->items[i].name);
	puts("'");
	if (is_file(&e->word))
		puts("\t\t[[ $cur == -* ]] || files=1");
	else if (*e->word.values)
		printf("\t\t[[ $cur == -* ]] || words='%s'\n", e->word.values);
	puts("\t\t;;");
}

static void put_bash(void)
{
	puts("_culvert() {\n"
	     "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
	     "\tlocal command=${COMP_WORDS[1]} words= files=\n"
	     "\tCOMPREPLY=()\n"
	     "\t[[ $COMP_CWORD -gt 1 ]] || command= prev=\n"
	     "\tcase $command:$prev in");
	for (const struct entry *e = list; e->name; e++)
		for (size_t i = 0; i < e->n; i++)
			if (e->items[i].metavar) {
				printf("\t%s:--%s)", e->name, e->items[i].name);
				put_bash_values(&e->items[i]);
			}
	puts("\t*:-c) files=1 ;;");
	for (const struct entry *e = list; e->name; e++)
		put_bash_entry(e);
	fputs("\t:*) words='", stdout);
	for (const struct entry *e = list; e->name; e++)
		printf("%s ", e->name);
	puts("--help --version' ;;\n"
	     "\tesac\n"
	     "\t[[ -z $words ]] || mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
	     "\t[[ -z $files ]] || { compopt -o filenames\n"
	     "\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); }\n"
	     "}\n"
	     "complete -F _culvert culvert");
}

/* --- zsh --- */

/* What follows the text of an option: ":METAVAR:(VALUES)". */
static void put_zsh_value(const struct item *it)
{
	printf(":%s:", it->metavar);
	if (is_file(it))
		fputs("_files", stdout);
	else if (*it->values)
		printf("(%s)", it->values);
	else
		putchar(' ');
}

static void put_zsh_entry(const struct entry *e)
{
	printf("%s)\n\t_arguments", e->name);
	for (size_t i = 0; i < e->n; i++) {
		printf(" \\\n\t\t'--%s%s[", e->items[i].name, e->items[i].metavar ? "=" : "");
		put_quoted(e->items[i].help, "[]\\");
		putchar(']');
		if (e->items[i].metavar)
			put_zsh_value(&e->items[i]);
		putchar('\'');
	}
	if (e->word.metavar) {
		fputs(" \\\n\t\t'*", stdout);
		put_zsh_value(&e->word);
		putchar('\'');
	}
	puts("\n\t;;");
}

static void put_zsh(void)
{
	puts("#compdef culvert\n"
	     "if (( CURRENT == 2 )); then\n"
	     "\tlocal -a commands=(");
	for (const struct entry *e = list; e->name; e++) {
		printf("\t\t'%s:", e->name);
		put_quoted(e->summary, "\\");
		puts("'");
	}
	puts("\t)\n"
	     "\t_describe command commands\n"
	     "\t_arguments '--version[show version and commit]' '--help[show the commands]'\n"
	     "\treturn\n"
	     "fi\n"
	     "shift words\n"
	     "(( CURRENT-- ))\n"
	     "case $words[1] in");
	for (const struct entry *e = list; e->name; e++)
		put_zsh_entry(e);
	puts("esac");
}

/* --- fish --- */

static void put_fish_value(const struct item *it)
{
	if (is_file(it))
		fputs(" -rF", stdout);
	else if (it->metavar)
		printf(" -x -a '%s'", it->values);
}

static void put_fish_entry(const struct entry *e)
{
	printf("complete -c culvert -n __culvert_command -a %s -d '", e->name);
	put_quoted(e->summary, "'");
	puts("'");
	for (size_t i = 0; i < e->n; i++) {
		printf("complete -c culvert -n '__culvert_command %s' -l %s", e->name,
		       e->items[i].name);
		put_fish_value(&e->items[i]);
		fputs(" -d '", stdout);
		put_quoted(e->items[i].help, "'\\");
		puts("'");
	}
	if (is_file(&e->word))
		printf("complete -c culvert -n '__culvert_command %s' -F\n", e->name);
	else if (*e->word.values)
		printf("complete -c culvert -n '__culvert_command %s' -a '%s'\n",
		       e->name, e->word.values);
}

static void put_fish(void)
{
	puts("function __culvert_command\n"
	     "\tset -l words (commandline -opc)\n"
	     "\ttest \"$words[2]\" = \"$argv[1]\"\n"
	     "end\n"
	     "complete -c culvert -f\n"
	     "complete -c culvert -n __culvert_command -l version -d 'show version and commit'\n"
	     "complete -c culvert -n __culvert_command -l help -d 'show the commands'");
	for (const struct entry *e = list; e->name; e++)
		put_fish_entry(e);
}

bool completion_put(const char *shell)
{
	void (*put)(void) = !strcmp(shell, "bash") ? put_bash :
			    !strcmp(shell, "zsh")  ? put_zsh :
			    !strcmp(shell, "fish") ? put_fish : NULL;

	if (!put)
		return false;
	list_commands();
	put();
	return true;
}
