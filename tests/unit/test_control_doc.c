/* SPDX-License-Identifier: BSD-2-Clause */
/* docs/control.md names what the code has, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../control_doc.h"
#include "base/command.h"
#include "datapath/flow.h"
#include "datapath/stats.h"
#include "relay/forward.h"

static int setup(void **state)
{
	(void)state;
	doc_read();
	return 0;
}

static const struct doc_row *need(const char *section, const char *name)
{
	const struct doc_row *row = doc_find(section, name);

	if (!row) {
		fail_msg("docs/control.md, \"%s\": no row `%s`", section, name);
		abort(); /* fail_msg() does not return, which analysers do not know */
	}
	return row;
}

/* How many names in backticks TEXT has. */
static size_t names_in(const char *text)
{
	size_t n = 0;

	for (; text && *text; text++)
		n += *text == '`';
	return n / 2;
}

/* Rows of SECTION whose first cell is a name. */
static size_t rows_of(const char *section)
{
	size_t n = 0;

	for (size_t i = 0; i < doc_n_rows; i++)
		n += !strcmp(doc_rows[i].section, section) && doc_rows[i].cells[0][0] == '`';
	return n;
}

static void test_requests(void **state)
{
	char quoted[64];

	(void)state;
	for (size_t i = 0; i < COMMANDS; i++) {
		const struct command *c = &commands[i];
		const struct doc_row *row = need("Requests", c->name);

		for (size_t k = 0; k < c->n_keys; k++) {
			snprintf(quoted, sizeof(quoted), "`%s`", command_keys[c->keys[k]].name);
			if (!strstr(row->cells[1], quoted))
				fail_msg("docs/control.md: %s lacks %s", c->name, quoted);
		}
		assert_int_equal(names_in(row->cells[1]), c->n_keys);
		assert_int_equal(!!c->changes, strstr(row->cells[2], "hanges") != NULL);
	}
	for (size_t k = 0; k < KEYS; k++)
		need("Requests", command_keys[k].name);
	need("Requests", "command");
	/* `engine` is both a command and a key */
	assert_int_equal(rows_of("Requests"), COMMANDS + KEYS + 1);
}

static void test_errors(void **state)
{
	(void)state;
	for (size_t i = 0; i < ERRORS; i++)
		need("Errors", command_error_name((enum command_error)i));
	assert_int_equal(rows_of("Errors"), ERRORS + 3); /* and the fields */
}

static void need_state(const struct forward *f)
{
	need("`forwards`, and in `status`", forward_state_name(f));
}

static void test_names(void **state)
{
	const struct doc_row *carriers = need("`sessions`", "sessions[].flows[].carrier");
	const struct doc_row *phases = need("`sessions`", "sessions[].flows[].phase");
	char name[64];

	(void)state;
	for (int i = 0; i < REASONS; i++)
		need("`sessions`", reason_name((enum reason)i));
	for (int i = 0; i < CARRIERS; i++) {
		snprintf(name, sizeof(name), "`%s`", carrier_name((enum carrier)i));
		assert_non_null(strstr(carriers->cells[2], name));
	}
	for (int i = 0; i < FLOW_PHASES; i++) {
		snprintf(name, sizeof(name), "`%s`", flow_phase_name((enum flow_phase)i));
		assert_non_null(strstr(phases->cells[2], name));
	}
	need_state(&(struct forward){ .state = FORWARD_ACTIVE });
	need_state(&(struct forward){ .state = FORWARD_ACTIVE, .draining = true });
	need_state(&(struct forward){ .state = FORWARD_REMOVED });
	assert_int_equal(names_in(carriers->cells[2]), CARRIERS);
	assert_int_equal(names_in(phases->cells[2]), FLOW_PHASES);
}

static void test_counters(void **state)
{
	size_t n = 0;
	char name[64];

	(void)state;
	for (int i = 0; i < CAUSES; i++) {
		snprintf(name, sizeof(name), "errors.%s", cause_name((enum cause)i));
		need("`status`", name);
	}
	for (int i = 0; i < HANDOVERS; i++) {
		snprintf(name, sizeof(name), "handovers.%s", handover_name((enum handover)i));
		need("`status`", name);
	}
	for (size_t i = 0; i < doc_n_rows; i++)
		n += !strncmp(doc_rows[i].cells[0], "`errors.", 8) ||
		     !strncmp(doc_rows[i].cells[0], "`handovers.", 11);
	assert_int_equal(n, CAUSES + HANDOVERS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_counters),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
