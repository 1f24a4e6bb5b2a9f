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

static void look_at_setting(struct seen *seen, enum option_scope scope, const char *key,
			    const char *value)
{
	const struct option_def *o = option_find(key, scope);

	if (!o) {
		fail_msg(EXAMPLE ": there is no %s in %s", key,
			 scope == SCOPE_CULVERT ? "[culvert]" :
			 scope == SCOPE_SNI     ? "[sni]" :
						  "[forward]");
		return;
	}
	(scope == SCOPE_CULVERT ? seen->global : seen->forward)[o - option_table] = true;
	if (scope == SCOPE_CULVERT && o->initial && strcmp(o->initial, value) != 0)
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
	enum option_scope scope = SCOPE_CULVERT;
	FILE *f = open_example();

	while (next_line(f, line)) {
		if (*line == '[')
			scope = !strncmp(line, "[forward ", 9) ? SCOPE_FORWARD :
				!strncmp(line, "[sni ", 5)     ? SCOPE_SNI :
								 SCOPE_CULVERT;
		else if (is_setting(line, &key, &value))
			look_at_setting(&seen, scope, key, value);
	}
	fclose(f);
	for (const struct option_def *o = option_table; o->name; o++) {
		size_t i = (size_t)(o - option_table);

		if (o->scope & SCOPE_CULVERT && !seen.global[i])
			fail_msg(EXAMPLE ": %s is missing in [culvert]", o->name);
		if (o->scope & SCOPE_OWN && !seen.forward[i])
			fail_msg(EXAMPLE ": %s is missing in [forward database], or [sni]",
				 o->name);
	}
}

/* It must be valid, ALL with every setting made. */
static void check_copy(bool all)
{
	char line[LINE_LEN], split[LINE_LEN], *key, *value, *text = NULL;
	FILE *f = open_example(), *to;
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
	rig_good(text, NULL);
	free(text);
}

TEST(test_valid)
{
	check_copy(false);
	check_copy(true);
}

UNIT_MAIN(rig_open, rig_close)
