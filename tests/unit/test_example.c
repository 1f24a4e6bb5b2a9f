/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * docs/examples/culvert.conf names every key of the table, in [culvert] with its true default, and
 * is valid as it is and with every setting made.  Run from the top of the sources.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "config/option.h"
#include "config_rig.h"

#define EXAMPLE "docs/examples/culvert.conf"
#define LINE_LEN 256

/* Which of the table have been seen in [culvert], and in a [forward NAME]. */
struct seen {
	bool global[OPTIONS_MAX], forward[OPTIONS_MAX];
};

/* A line that sets a key, or would without the ";" before it: cuts it into key and value. */
static bool is_setting(char *line, char **ret_key, char **ret_value)
{
	char *key = line + (*line == ';'), *mark = strstr(key, " = ");
	size_t len = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789-");

	if (!mark || !len || key + len != mark)
		return false;
	*mark = '\0';
	*ret_key = key;
	*ret_value = mark + strlen(" = ");
	return true;
}

static void look_at_setting(struct seen *seen, bool forward, const char *key, const char *value)
{
	const struct option_def *o = option_find(key, forward ? SCOPE_FORWARD : SCOPE_CULVERT);

	if (!o) {
		fail_msg(EXAMPLE ": there is no %s in %s", key,
			 forward ? "[forward]" : "[culvert]");
		return;
	}
	(forward ? seen->forward : seen->global)[o - option_table] = true;
	if (!forward && o->initial && strcmp(o->initial, value) != 0)
		fail_msg(EXAMPLE ": the default of %s is %s, not %s", key, o->initial, value);
}

/* Each line with its newline taken off, in LINE; false at the end of the file. */
static bool next_line(FILE *f, char *line)
{
	if (!fgets(line, LINE_LEN, f))
		return false;
	assert_non_null(strchr(line, '\n'));
	line[strcspn(line, "\n")] = '\0';
	return true;
}

static FILE *open_example(void)
{
	FILE *f = fopen(EXAMPLE, "re");

	if (!f)
		fail_msg(EXAMPLE ": not here; run this from the top of the sources");
	return f;
}

TEST(test_every_key)
{
	struct seen seen = { 0 };
	char line[LINE_LEN], *key, *value;
	bool forward = false;
	FILE *f = open_example();

	while (next_line(f, line)) {
		if (*line == '[')
			forward = strncmp(line, "[forward ", 9) == 0;
		else if (is_setting(line, &key, &value))
			look_at_setting(&seen, forward, key, value);
	}
	fclose(f);
	for (const struct option_def *o = option_table; o->name; o++) {
		size_t i = (size_t)(o - option_table);

		if ((o->scope == SCOPE_GLOBAL || o->scope == SCOPE_EACH) && !seen.global[i])
			fail_msg(EXAMPLE ": %s is missing in [culvert]", o->name);
		if ((o->scope == SCOPE_FORWARD || o->scope == SCOPE_EACH) && !seen.forward[i])
			fail_msg(EXAMPLE ": %s is missing in [forward database]", o->name);
	}
}

/* It must be valid, ALL with every setting made. */
static void check_copy(bool all)
{
	char line[LINE_LEN], split[LINE_LEN], *key, *value, *text = NULL;
	FILE *f = open_example(), *to;
	struct config c;
	size_t len = 0;

	to = open_memstream(&text, &len);
	assert_non_null(to);
	while (next_line(f, line)) {
		memcpy(split, line, sizeof(split));
		fprintf(to, "%s\n",
			line + (all && is_setting(split, &key, &value) && *line == ';'));
	}
	fclose(f);
	assert_int_equal(fclose(to), 0);
	rig_good(&c, text, NULL);
	config_close(&c);
	free(text);
}

TEST(test_as_it_is)
{
	check_copy(false);
}

TEST(test_every_setting_made)
{
	check_copy(true);
}

UNIT_MAIN(rig_open, rig_close)
