// SPDX-License-Identifier: BSD-2-Clause
#include "probe/probe.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/exit_codes.h"
#include "base/log.h"
#include "probe/probe_try.h"

#define ALL (PROBE_SOCKMAP | PROBE_SPLICE)

static bool holds(const struct probe_results *results, unsigned int carriers)
{
	return probe_first_bad(results, carriers) == PROBE_CHECKS;
}

/* What relies on a check; loopback, on which all do, is told of sockmap. */
static const char *carrier_text(const struct probe_check *c)
{
	return c->carriers & PROBE_SOCKMAP ? "sockmap" : "splice";
}

static void print_table(const char *kernel, const struct probe_results *results, FILE *out)
{
	static const char *const words[] = {
		[PROBE_SKIPPED] = "skip",
		[PROBE_HOLDS] = "ok",
		[PROBE_FAILS] = "FAIL",
	};

	fprintf(out, "Linux %s\n\n", kernel);
	for (size_t i = 0; i < PROBE_CHECKS; i++) {
		const struct probe_check *c = &probe_checks[i];

		fprintf(out, "%-4s  %-16s  %s%s\n", words[results->of[i].outcome], c->name,
			results->of[i].outcome == PROBE_SKIPPED ? "skipped: " : "",
			results->of[i].detail);
		if (results->of[i].outcome != PROBE_FAILS)
			continue;
		fprintf(out, "%24sexpected: %s%s%s%s\n", "", c->shows, c->since ? " (since " : "",
			c->since ? c->since : "", c->since ? ")" : "");
		fprintf(out, "%24sotherwise: %s; so culvert does not use the %s carrier\n", "",
			c->why, carrier_text(c));
	}
	fprintf(out, "\n%s\n",
		holds(results, PROBE_SOCKMAP) ?
			"the sockmap carrier can be used here" :
			"culvert run --engine auto will carry everything in user space");
	if (!holds(results, PROBE_SPLICE))
		fprintf(out, "copy will be used where splice would be better\n");
}

static struct json_object *check_json(const struct probe_check *c,
				      const struct probe_result *result)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, "name", json_object_new_string(c->name));
	json_object_object_add(o, "ok",
			       result->outcome == PROBE_SKIPPED ?
				       NULL :
				       json_object_new_boolean(result->outcome == PROBE_HOLDS));
	json_object_object_add(o, "detail", json_object_new_string(result->detail));
	json_object_object_add(o, "why", json_object_new_string(c->why));
	return o;
}

static void print_json(const char *kernel, const struct probe_results *results, FILE *out)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_object_object_add(o, "kernel", json_object_new_string(kernel));
	json_object_object_add(o, "usable", json_object_new_boolean(holds(results, PROBE_SOCKMAP)));
	json_object_object_add(o, "splice_usable",
			       json_object_new_boolean(holds(results, PROBE_SPLICE)));
	for (size_t i = 0; i < PROBE_CHECKS; i++)
		json_object_array_add(list, check_json(&probe_checks[i], &results->of[i]));
	json_object_object_add(o, "checks", list);
	fprintf(out, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN |
								JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
}

/* A failure may come from a shortage that will pass: say so. */
static void add_hint(struct probe_results *results)
{
	size_t bad = probe_first_bad(results, ALL);
	char *detail;
	size_t len;

	if (bad == PROBE_CHECKS || !results->tcp_memory_short)
		return;
	detail = results->of[bad].detail;
	len = strlen(detail);
	snprintf(detail + len, PROBE_DETAIL - len,
		 " (the machine is short of TCP memory just now)");
}

void probe_help(void)
{
	puts("Usage: culvert probe [options]\n\n"
	     "Try each kernel behaviour that the sockmap and splice carriers rely on, on loopback\n"
	     "connections of its own. Needs the privileges of `culvert run`, which does the same "
	     "when\n"
	     "it starts. Ends with 0 if all hold, 3 if not.\n\n"
	     "Options:\n"
	     "  --json            print the results as JSON\n"
	     "  --help            show this help\n\n"
	     "Checks:");
	for (size_t i = 0; i < PROBE_CHECKS; i++)
		printf("  %-16s  %s\n", probe_checks[i].name, probe_checks[i].shows);
}

int probe_run(int argc, char **argv)
{
	struct probe_results results;
	struct utsname uts = { .release = "?" };
	char err[256];
	bool json = false;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			probe_help();
			return EXIT_CODE_OK;
		}
		if (strcmp(argv[i], "--json"))
			return log_complain(EXIT_CODE_USAGE,
					    "\"%.256s\": unknown argument (`culvert help probe` "
					    "lists them)", argv[i]);
		json = true;
	}
	if (probe_check_variable(err, sizeof(err)))
		return log_complain(EXIT_CODE_USAGE, "%s", err);
	uname(&uts);
	probe_try(ALL, &results);
	add_hint(&results);
	if (json)
		print_json(uts.release, &results, stdout);
	else
		print_table(uts.release, &results, stdout);
	if (fflush(stdout) || ferror(stdout))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the results: %s",
				    strerror(errno));
	return holds(&results, ALL) ? EXIT_CODE_OK : EXIT_CODE_UNSUPPORTED;
}
