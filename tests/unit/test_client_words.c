/* SPDX-License-Identifier: BSD-2-Clause */
/* The words of a client's command line, and the request that they become; no daemon is asked. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/exit_codes.h"
#include "capture.h"
#include "cli/client_words.h"
#include "base/command.h"
#include "client_rig.h"
#include "config/config.h"
#include "temp_dir.h"

#define A10 "aaaaaaaaaa"
#define A50 A10 A10 A10 A10 A10

static void test_usage(void **state)
{
	static const struct {
		const char *words[4];
		const char *complaint;
	} cases[] = {
		{ { "--bogus" }, "\"--bogus\": unknown argument (`culvert help sessions`" },
		{ { "--bogus=1" }, "\"--bogus=1\": unknown argument" },
		{ { "--jso" }, "\"--jso\": unknown argument" },
		{ { "word" }, "\"word\": unknown argument" },
		{ { "" }, "\"\": unknown argument" },
		{ { "a\x1b\n" }, "\"a\\x1b\\n\": unknown argument" },
		{ { "--json=1" }, "--json: takes no value" },
		{ { "--help=" }, "--help: takes no value" },
		{ { "--control" }, "--control: needs a value" },
		{ { "--control=" }, "--control: needs a value" },
		{ { "--control", "" }, "--control: needs a value" },
		{ { "--control", "--json" }, "--control: needs a value" },
		{ { "--control", "/1234567" A50 A50 },
		  "is too long, expected at most 107 bytes" },
	};
	char out[OUT_MAX], err[OUT_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(RUN(out, err, "sessions", cases[i].words[0],
				     cases[i].words[1]),
				 EXIT_CODE_USAGE);
		assert_string_equal(out, "");
		if (!strstr(err, cases[i].complaint))
			fail_msg("\"%s\" lacks \"%s\"", err, cases[i].complaint);
		assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
	}
}

static void test_help(void **state)
{
	char out[OUT_MAX], err[OUT_MAX], again[OUT_MAX], usage[64];
	struct capture capture;

	(void)state;
	for (size_t i = 0; i < COMMANDS; i++) {
		snprintf(usage, sizeof(usage), "Usage: culvert %s ", commands[i].name);
		assert_int_equal(RUN(out, err, commands[i].name, "--help"), EXIT_CODE_OK);
		assert_string_equal(err, "");
		assert_non_null(strstr(out, usage));
		assert_non_null(strstr(out, "--json"));
		assert_non_null(strstr(out, "--control PATH"));
		assert_non_null(strstr(out, "/run/culvert/control.sock"));
		assert_int_equal(RUN(again, err, commands[i].name, "-h"), EXIT_CODE_OK);
		assert_string_equal(again, out);
		capture_begin(&capture, STDOUT_FILENO);
		client_words_help(&commands[i]);
		capture_end(&capture, again, sizeof(again));
		assert_string_equal(again, out);
		for (size_t k = 0; k < commands[i].n_keys; k++)
			assert_non_null(strstr(out, command_keys[commands[i].keys[k]].name));
	}
	RUN(out, err, "kill", "--help");
	assert_non_null(strstr(out, "Usage: culvert kill [ID...] [options]"));
	RUN(out, err, "engine", "--help");
	assert_non_null(strstr(out, "Usage: culvert engine NAME [ENGINE] [options]"));
}

/* What the words become. */
static void test_requests(void **state)
{
	static const struct {
		const char *words[8];
		const char *request;
	} cases[] = {
		{ { "sessions" }, "{\"command\":\"sessions\"}" },
		{ { "sessions", "--forward", "a \"b\"", "--client=10.0.0.0/8" },
		  "{\"command\":\"sessions\",\"forward\":\"a \\\"b\\\"\","
		  "\"client\":\"10.0.0.0/8\"}" },
		{ { "sessions", "--id", "17", "--carrier", "copy" },
		  "{\"command\":\"sessions\",\"id\":[17],\"carrier\":\"copy\"}" },
		{ { "kill", "17", "--id=18", "9223372036854775807" },
		  "{\"command\":\"kill\",\"id\":[17,18,9223372036854775807]}" },
		{ { "kill", "--all" }, "{\"command\":\"kill\",\"all\":true}" },
		{ { "engine", "db" }, "{\"command\":\"engine\",\"forward\":\"db\"}" },
		{ { "engine", "db", "copy" },
		  "{\"command\":\"engine\",\"forward\":\"db\",\"engine\":\"copy\"}" },
		{ { "engine", "--forward=-x", "copy" },
		  "{\"command\":\"engine\",\"forward\":\"-x\",\"engine\":\"copy\"}" },
		{ { "drain", "db" }, "{\"command\":\"drain\",\"forward\":\"db\"}" },
		{ { "drain", "db", "--undo" },
		  "{\"command\":\"drain\",\"forward\":\"db\",\"undo\":true}" },
		{ { "drain", "db", "--deadline", "30" },
		  "{\"command\":\"drain\",\"forward\":\"db\",\"deadline\":30}" },
		{ { "drain", "db", "--deadline=0.5" },
		  "{\"command\":\"drain\",\"forward\":\"db\",\"deadline\":0.5}" },
		{ { "log-level" }, "{\"command\":\"log-level\"}" },
		{ { "log-level", "debug" }, "{\"command\":\"log-level\",\"level\":\"debug\"}" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct command *c = command_find(cases[i].words[0]);
		struct client_words words;
		char *argv[9] = { NULL };
		int argc = 0;

		for (; cases[i].words[argc]; argc++)
			argv[argc] = (char *)cases[i].words[argc];
		assert_int_equal(client_words_parse(c, argc, argv, &words), 0);
		assert_string_equal(words.line, cases[i].request);
		client_words_close(&words);
	}
}

static void test_wrong_requests(void **state)
{
	static const struct {
		const char *words[5];
		const char *complaint;
	} cases[] = {
		{ { "kill" }, "kill: needs an id, a filter or all" },
		{ { "kill", "--all", "17" }, "kill: all: contradicts" },
		{ { "kill", "0" }, "kill: id: expected a whole number from 1 to 2^63 - 1" },
		{ { "kill", "-5" }, "\"-5\": expected the number of a session" },
		{ { "kill", "1.5" }, "\"1.5\": expected the number of a session" },
		{ { "kill", "9223372036854775808" }, "expected the number of a session" },
		{ { "kill", "x\x1b" }, "\"x\\x1b\": expected the number of a session" },
		{ { "kill", "--all=1" }, "--all: takes no value" },
		{ { "sessions", "17" }, "\"17\": unknown argument" },
		{ { "sessions", "--all" }, "\"--all\": unknown argument" },
		{ { "sessions", "--client", "nobody" }, "sessions: client: expected addresses" },
		{ { "sessions", "--client", "10.0.0.1/8" }, "client: expected addresses" },
		{ { "sessions", "--carrier", "pigeon" }, "carrier: expected copy, splice or" },
		{ { "sessions", "--forward" }, "--forward: needs a value: NAME" },
		{ { "sessions", "--forward", "a", "--forward=b" }, "forward: given twice" },
		{ { "engine" }, "engine: needs forward" },
		{ { "engine", "" }, "engine: forward: expected a text" },
		{ { "engine", "a", "fast" }, "engine: engine: expected auto, sockmap, splice" },
		{ { "engine", "a", "copy", "x" }, "\"x\": unknown argument" },
		{ { "drain" }, "drain: needs forward" },
		{ { "drain", "a", "--deadline", "soon" }, "\"soon\": expected seconds" },
		{ { "drain", "a", "--undo", "--deadline=1" }, "drain: undo: contradicts" },
		{ { "log-level", "loud" }, "log-level: level: expected error, warning" },
		{ { "status", "--forward", "x" }, "\"--forward\": unknown argument" },
	};
	char out[OUT_MAX], err[OUT_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(run_words(cases[i].words, out, err), EXIT_CODE_USAGE);
		assert_string_equal(out, "");
		if (!strstr(err, cases[i].complaint))
			fail_msg("\"%s\" lacks \"%s\"", err, cases[i].complaint);
		assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
	}
}

/* More ids than fit into a request. */
static void test_too_much(void **state)
{
	struct client_words words;
	char *argv[1001];
	int r;

	(void)state;
	argv[0] = (char *)"kill";
	for (int i = 1; i <= 1000; i++)
		argv[i] = (char *)"1234567";
	assert_int_equal(client_words_parse(command_find("kill"), 500, argv, &words), 0);
	client_words_close(&words);
	r = client_words_parse(command_find("kill"), 1001, argv, &words);
	client_words_close(&words);
	assert_int_equal(r, -EINVAL);
}

/* --- where to ask --- */

/* The socket that is asked for WORDS with a configuration file that says TEXT; the exit code. */
static int find_control(const char *text, const char *option, char *control, size_t size)
{
	char dir[TEMP_DIR_LEN], path[TEMP_DIR_LEN + 8], *argv[5] = { (char *)"status" };
	struct client_words words;
	int r;

	assert_int_equal(temp_dir_make(dir), 0);
	snprintf(path, sizeof(path), "%s/c", dir);
	temp_file_write(path, text, strlen(text));
	argv[1] = (char *)option;
	argv[2] = path;
	r = client_words_parse(command_find("status"), 3, argv, &words);
	snprintf(control, size, "%s", r ? "" : words.control);
	client_words_close(&words);
	assert_int_equal(temp_dir_remove(dir), 0);
	return r;
}

static void test_config(void **state)
{
	static const struct {
		const char *text, *control;
	} cases[] = {
		{ "[culvert]\ncontrol = /run/other/c.sock\n", "/run/other/c.sock" },
		{ "[culvert]\r\nengine=copy\r\ncontrol=/a ; and why\r\n", "/a" },
		{ "", CONFIG_CONTROL_DEFAULT },
		{ "[culvert]\ncontrol =\n", CONFIG_CONTROL_DEFAULT },
		{ "[forward x]\ncontrol = /a\n", CONFIG_CONTROL_DEFAULT },
		{ "control = /a\n", CONFIG_CONTROL_DEFAULT },
		{ "0.0.0.0 80 10.0.0.1 80 [src=10.0.0.2]\nallow *\n", CONFIG_CONTROL_DEFAULT },
		/* what is wrong there is for the daemon to say */
		{ "[culvert]\nno such key\nengine = fast\ncontrol = /a\n[", "/a" },
	};
	char control[256], out[OUT_MAX], err[OUT_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (int brief = 0; brief < 2; brief++) {
			assert_int_equal(find_control(cases[i].text, brief ? "-c" : "--config",
						      control, sizeof(control)), 0);
			assert_string_equal(control, cases[i].control);
		}
	}
	assert_int_equal(RUN(out, err, "status", "--config=/proc/nonexistent/x"), EXIT_CODE_USAGE);
	assert_non_null(strstr(err, "culvert: /proc/nonexistent/x: No such file or directory"));
	assert_int_equal(RUN(out, err, "status", "--config=/proc/nonexistent/x",
			     "--control=/proc/n/x"),
			 EXIT_CODE_NO_DAEMON); /* which counts */
	assert_int_equal(RUN(out, err, "status", "-c"), EXIT_CODE_USAGE);
	assert_non_null(strstr(err, "--config: needs a value: FILE"));
}

static void test_config_too_long(void **state)
{
	char control[256], err[OUT_MAX];
	struct capture capture;
	int r;

	(void)state;
	capture_begin(&capture, STDERR_FILENO);
	r = find_control("[culvert]\ncontrol = /1234567" A50 A50 "\n", "--config", control,
			 sizeof(control));
	capture_end(&capture, err, sizeof(err));
	assert_int_equal(r, -EINVAL);
	assert_non_null(strstr(err, "is too long, expected at most 107 bytes"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_help),
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_wrong_requests),
		cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_config_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
