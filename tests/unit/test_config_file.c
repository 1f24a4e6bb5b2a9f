// SPDX-License-Identifier: BSD-2-Clause
/* The file with sections: its lines, sections and keys, and what becomes of bad ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/check.h"
#include "config/config_file.h"
#include "config/config_reader.h"
#include "config_rig.h"

#define FORWARD "[forward a]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9001\n"
#define A10 "aaaaaaaaaa"
#define A50 A10 A10 A10 A10 A10
#define A200 A50 A50 A50 A50

#define FORWARD_BUT(line) "[forward a]\nupstream = 127.0.0.1:1\n" line "\n"
#define MANY 10000
#define INDENTED "indented: sections and keys begin in the first column"

static void test_everything(void **state)
{
	struct config c;

	(void)state;
	rig_good(&c,
		 "\xef\xbb\xbf# a comment\n"
		 "; another\n"
		 "\n"
		 "[culvert]\n"
		 "engine=splice\n"
		 "workers = 3 ; and why\n"
		 "hard-limit\t=\t8M\r\n"
		 "control = /run/x/y.sock\n"
		 "seccomp = kill\n"
		 "session-log = /var/log/culvert/sessions.log ; and why\n"
		 "; " A200 A200 " a long comment\n"
		 "[forward one]  # ends here\n"
		 "  \n"
		 "listen = [::1]:80\n"
		 "upstream = unix:/run/up\n"
		 "[forward two]\n"
		 "upstream = 127.0.0.1:2\n"
		 "listen = :443", /* and no newline */
		 NULL);
	assert_int_equal(c.engine, ENGINE_SPLICE);
	assert_int_equal(c.workers, 3);
	assert_int_equal(c.hard_limit, 8 << 20);
	assert_string_equal(c.control, "/run/x/y.sock");
	assert_int_equal(c.seccomp, FILTER_KILL);
	assert_string_equal(c.session_log, "/var/log/culvert/sessions.log");
	assert_string_equal(c.file, rig_path);
	assert_int_equal(c.n_forwards, 2);
	assert_string_equal(c.forwards[0].name, "one");
	assert_string_equal(c.forwards[0].listen.text, "[::1]:80");
	assert_string_equal(c.forwards[0].upstream.text, "unix:/run/up");
	assert_string_equal(c.forwards[1].name, "two");
	assert_string_equal(c.forwards[1].upstream.text, "127.0.0.1:2");
	config_close(&c);
}

/* The command line counts over the file, wherever --config stands, and adds forwards. */
static void test_with_command_line(void **state)
{
	struct config c;

	(void)state;
	rig_good(&c, "[culvert]\nengine = copy\nworkers = 3\n" FORWARD,
		 WORDS("--engine", "splice", "127.0.0.1:1", "127.0.0.1:2"));
	assert_int_equal(c.engine, ENGINE_SPLICE);
	assert_int_equal(c.workers, 3);
	assert_int_equal(c.n_forwards, 2);
	assert_string_equal(c.forwards[0].name, "a");
	assert_null(c.forwards[1].name);
	config_close(&c);

	rig_good(&c, FORWARD, NULL);
	assert_int_equal(c.max_sessions_per_client, 8192);
	config_close(&c);
	rig_good(&c, "[culvert]\nmax-sessions = 10\n" FORWARD, NULL);
	assert_int_equal(c.max_sessions_per_client, 5);
	config_close(&c);
}

static const struct rig_mistake mistakes[] = {
	{ 0, "nothing to forward", "" },
	{ 0, "nothing to forward", "[culvert]\nengine = auto\n" },
	{ 1, "engine: before the first section", "engine = auto\n" },
	{ 2, "neither [SECTION] nor KEY = VALUE", "[culvert]\nengine\n" },
	{ 2, "engines: unknown key of [culvert]", "[culvert]\nengines = auto\n" },
	{ 2, "config: unknown key", "[culvert]\nconfig = /x\n" },
	{ 2, "help: unknown key", "[culvert]\nhelp = yes\n" },
	{ 2, "--engine: unknown key", "[culvert]\n--engine = auto\n" },
	{ 2, "engine: needs a value", "[culvert]\nengine =\n" },
	{ 2, "engine: needs a value", "[culvert]\nengine = ; auto\n" },
	{ 2, "a value without a key", "[culvert]\n= auto\n" },
	{ 2, "engine: \"fast\" is not valid, expected auto, sockmap",
	  "[culvert]\nengine = fast\n" },
	{ 3, "engine: given twice, first in line 2", "[culvert]\nengine = auto\nengine = auto\n" },
	{ 2, "workers: \"0\" is not valid", "[culvert]\nworkers = 0\n" },
	{ 2, "workers: \"99999999999999999999\"", "[culvert]\nworkers = 99999999999999999999\n" },
	{ 2, "hard-limit: \"4X\" is not valid, expected a size", "[culvert]\nhard-limit = 4X\n" },
	{ 2, "probe: \"maybe\" is not valid, expected yes or no", "[culvert]\nprobe = maybe\n" },
	{ 3, "neither [SECTION] nor KEY = VALUE", FORWARD_BUT("listen") "bogus = 1\n" },
	{ 3, "neither [SECTION] nor KEY = VALUE", FORWARD_BUT("listen ; = x") "[culvert]\n" },
	{ 3, "neither [SECTION] nor KEY = VALUE", FORWARD_BUT("listen") "\tindented\n" },
	{ 2, "workers: \"#\" in a value: a comment there begins with \";\"",
	  "[culvert]\nworkers = 3 # three\n" },
	{ 2, "user: \"#\" in a value", "[culvert]\nuser = x\t#three\n" },
	{ 2, "user: \"#\" in a value", "[culvert]\nuser = # x\n" },
	{ 2, "listen: \"#\" in a value", "[forward a]\nlisten = :80 # http\n" },
	{ 3, INDENTED, "[culvert]\nengine = auto\n  workers = 2\n" },
	{ 3, INDENTED, "[culvert]\nengine = auto\n\tworkers = 2\n" },
	{ 1, INDENTED, " [culvert]\n" },
	{ 1, INDENTED, "\xef\xbb\xbf [culvert]\n" },
	{ 1, "a byte order mark that", "\xef\xbb\xbf\xef\xbb\xbf[culvert]\n" },
	{ 2, "a byte order mark that", "\n\xef\xbb\xbf[culvert]\n" },
	{ 1, "a control character", "\r[culvert]\n" },
	{ 1, "a control character", "\v[culvert]\n" },
	{ 1, "a control character", "[culvert]\f\n" },
	{ 1, "a control character", "# \x7f\n" },
	{ 2, "a control character", "[culvert]\nuser = a\rb\n" },
	{ 4, "[culvert] again, it was in line 1", "[culvert]\nworkers = 1\n\n[culvert]\n" },
	{ 1, "[Culvert]: unknown section", "[Culvert]\n" },
	{ 1, "[]: unknown section", "[]\n" },
	{ 1, "[forward]: the name is missing, expected [forward NAME]", "[forward]\n" },
	{ 1, "[forward ]: the name is missing", "[forward ]\n" },
	{ 1, "[forward a b]: a name is one word, expected [forward NAME]", "[forward a b]\n" },
	{ 1, "[forward a ]: a name is one word", "[forward a ]\n" },
	{ 1, "[forward  a]: a name is one word", "[forward  a]\n" },
	{ 1, "[forward\\ta]: a name is one word", "[forward\ta]\n" },
	{ 1, "a control character", "[forward a\x01]\n" },
	{ 1, "[forwards a]: unknown section, expected [culvert] or [forward NAME]",
	  "[forwards a]\n" },
	{ 1, "[forward ;x]: a name cannot begin with ; or #", "[forward ;x]\n" },
	{ 1, "[forward #x]: a name cannot begin with ; or #", "[forward #x]\n" },
	{ 1, "\"[\" without \"]\"", "[culvert\n" },
	{ 1, "nothing may follow \"]\"", "[culvert] engine = auto\n" },
	{ 1, "a section's name has at most 49 bytes", "[forward " A50 "]\n" },
	{ 1, "[forward a]: listen is missing", "[forward a]\n" },
	{ 1, "[forward a]: listen is missing", "[forward a]\nupstream = 127.0.0.1:1\n" },
	{ 1, "[forward a]: upstream is missing", "[forward a]\nlisten = 127.0.0.1:1\n[culvert]\n" },
	{ 4, "[forward a]: the name is taken in line 1", FORWARD FORWARD },
	{ 4, "listen: given twice, first in line 2", FORWARD "listen = 127.0.0.1:3\n" },
	{ 3, "the line has more than 199 bytes, which only comments and empty lines may have",
	  "# " A200 A200 "\n[culvert]\nuser = " A200 "\n" },
	{ 2, "the line has more than 199 bytes", "# x\n[forward " A200 "]\n" },
	{ 2, "soft-limit: 8 MiB is above --hard-limit (4 MiB)",
	  "[culvert]\nsoft-limit = 8M\n" FORWARD },
	{ 3, "soft-limit: 8 MiB is above hard-limit (5 MiB)",
	  "[culvert]\nhard-limit = 5M\nsoft-limit = 8M\n" FORWARD },
	{ 2, "--soft-limit: 1 MiB is above hard-limit (64 KiB)",
	  "[culvert]\nhard-limit = 64K\n" FORWARD },
	{ 1, "a control character", "\x1b = 1\n" },
	{ 2, "listen: this key can only be in [forward NAME]", "[culvert]\nlisten = :1\n" },
	{ 2, "upstream: this key can only be in [forward NAME]", "[culvert]\nupstream = x:1\n" },
	{ 2, "Engine: unknown key of [culvert]", "[culvert]\nEngine = auto\n" },
	{ 2, "engine auto: unknown key", "[culvert]\nengine auto : x\n" },
	{ 2, "user: a value is written without quotes", "[culvert]\nuser = \"nobody\"\n" },
	{ 2, "user: a value is written without quotes", "[culvert]\nuser = 'nobody'\n" },
	/* lines end as on Windows; numbers are the same */
	{ 2, "engine: \"fast\" is not valid", "[culvert]\r\nengine = fast\r\n" },
	{ 2, "engines: unknown key of [culvert]", "[culvert]\r\nengines = auto\r\n" },
	{ 3, "[forward a]: listen is missing",
	  "[culvert]\r\n\r\n[forward a]\r\nupstream = 127.0.0.1:1\r\n" },
	/* numbers and units */
	{ 2, "workers: \"-1\" is not valid, expected a whole number from 1 to 1024",
	  "[culvert]\nworkers = -1\n" },
	{ 2, "workers: \"0x10\" is not valid", "[culvert]\nworkers = 0x10\n" },
	{ 2, "max-sessions: \"10k\" is not valid, expected a whole number from 1 to 1000000",
	  "[culvert]\nmax-sessions = 10k\n" },
	{ 2, "max-sessions: \"1 000\" is not valid", "[culvert]\nmax-sessions = 1 000\n" },
	{ 2, "grace: \"5s\" is not valid, expected seconds from 0 to 86400, such as 5 or 0.5",
	  "[culvert]\ngrace = 5s\n" },
	{ 2, "grace: \"-1\" is not valid", "[culvert]\ngrace = -1\n" },
	{ 2, "hard-limit: \"-4M\" is not valid, expected a size from 4 KiB to 1 GiB",
	  "[culvert]\nhard-limit = -4M\n" },
	{ 2, "hard-limit: \"1 M\" is not valid", "[culvert]\nhard-limit = 1 M\n" },
	{ 2, "bandwidth: \"1Gbit\" is not valid, expected a size from 0 B to 128 GiB",
	  "[culvert]\nbandwidth = 1Gbit\n" },
};

static void test_mistakes(void **state)
{
	(void)state;
	rig_bad(mistakes, sizeof(mistakes) / sizeof(mistakes[0]));
}

/* What is no text, or too much of it. */
static void test_bytes(void **state)
{
	static const char nul[] = FORWARD "[culvert]\nengine = au\0to\n";
	static const char utf16[] = "\xff\xfe[\0c\0u\0l\0v\0e\0r\0t\0]\0\n";
	static char big[CONFIG_FILE_MAX + 100];

	(void)state;
	rig_bad_bytes(nul, sizeof(nul) - 1, 5, "a NUL byte");
	rig_bad_bytes(utf16, sizeof(utf16) - 1, 1, "a NUL byte");
	memset(big, '\n', sizeof(big));
	rig_bad_bytes(big, sizeof(big), CONFIG_FILE_MAX + 1,
		      "the file has more than 1048576 bytes");
	memset(big, 'x', sizeof(big));
	memcpy(big, "[culvert]\n", 10);
	rig_bad_bytes(big, sizeof(big), 2, "the line has more than 16383 bytes");
}

/* Of a log, say: no more of it is read than a configuration may have. */
static void test_huge(void **state)
{
	static char text[CONFIG_FILE_MAX + 64];
	struct config c;
	char err[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = i % 64 ? 'x' : '\n';
	for (int comments = 0; comments < 2; comments++) {
		for (size_t i = 1; i < sizeof(text); i += 64)
			text[i] = comments ? ';' : 'x';
		temp_file_write(rig_path, text, sizeof(text));
		assert_int_equal(truncate(rig_path, 100 << 20), 0);
		assert_int_equal(rig_read(&c, NULL, err, sizeof(err)), -EINVAL);
		config_close(&c);
		/* without a key this is taken for a rinetd.conf */
		assert_non_null(strstr(err, comments ? "the file has more than 1048576 bytes" :
						       ":2: BINDPORT is missing"));
	}
}

static void test_many_forwards(void **state)
{
	char *text = malloc(MANY * 100), err[1024];
	struct config c;

	(void)state;
	assert_non_null(text);
	for (int rinetd = 0; rinetd < 2; rinetd++) {
		size_t at = 0;

		for (int i = 1; i <= MANY; i++) {
			int n = rinetd ? sprintf(text + at, "127.0.0.1 %d 10.0.0.1 %d\n", i, i) :
					 sprintf(text + at, "[forward f%d]\nlisten = 127.0.0.1:%d\n"
						 "upstream = 10.0.0.1:%d\n", i, i, i);

			at += (size_t)n;
		}
		rig_good_noted(&c, text, err, sizeof(err));
		assert_string_equal(err, "");
		assert_int_equal(c.n_forwards, MANY);
		assert_string_equal(c.forwards[MANY - 1].listen.text, "127.0.0.1:10000");
		config_close(&c);
	}
	free(text);
}

static void test_place(void **state)
{
	char file[1000], at[CONFIG_PLACE_LEN];

	(void)state;
	assert_string_equal(config_place(NULL, 0, at), "");
	assert_string_equal(config_place("/etc/x", 7, at), "/etc/x:7: ");
	memset(file, 'x', sizeof(file) - 1);
	memcpy(file + sizeof(file) - 5, ".end", 5);
	config_place(file, UINT32_MAX, at);
	assert_int_equal(strlen(at), CONFIG_PLACE_LEN - 1);
	assert_memory_equal(at, "...x", 4);
	assert_string_equal(strchr(at + 3, '.'), ".end:4294967295: ");
}

/* A disk that fails is not a mistake in the file. */
static ssize_t read_then_fail(void *cookie, char *buf, size_t size)
{
	static const char text[] = "[forward a]\nlis";
	bool *failing = cookie;

	if (*failing || size < sizeof(text)) {
		errno = EIO;
		return -1;
	}
	*failing = true;
	memcpy(buf, text, sizeof(text) - 1);
	return sizeof(text) - 1;
}

static void test_read_error(void **state)
{
	bool failing = false;
	FILE *f = fopencookie(&failing, "r", (cookie_io_functions_t){ .read = read_then_fail });
	struct config_text text = { 0 };
	struct config c = { 0 };
	struct capture capture;
	char err[1024];
	int r;

	(void)state;
	assert_non_null(f);
	capture_begin(&capture, STDERR_FILENO);
	r = config_file_parse(f, "x.conf", &c, &text);
	capture_end(&capture, err, sizeof(err));
	fclose(f);
	config_text_close(&text);
	config_close(&c);
	assert_int_equal(r, -EIO);
	assert_string_equal(err, "culvert: x.conf: cannot be read: Input/output error\n");
}

static int check(char *err, size_t errlen)
{
	char *argv[] = { (char *)"check", rig_path, NULL };
	struct capture capture;
	int r;

	capture_begin(&capture, STDERR_FILENO);
	r = config_check(2, argv);
	capture_end(&capture, err, errlen);
	return r;
}

/* What run would refuse, with TEXT: a mistake whose message begins with file and line. */
static void check_refuses(const char *text, unsigned int line, const char *want)
{
	char err[1024], at[256];

	rig_write(text);
	assert_int_equal(check(err, sizeof(err)), 2);
	snprintf(at, sizeof(at), "culvert: %s:%u: %s", rig_path, line, want);
	if (strncmp(err, at, strlen(at)))
		fail_msg("%s instead of %s", err, at);
}

static void test_check_machine(void **state)
{
	static const char *const empty[] = {
		"", "[culvert]\nengine = copy\n", "# nothing\n", "# none\nbuffersize 65536\n",
	};
	struct capture capture;
	char err[1024], out[1024], want[512];
	int r;

	(void)state;
	check_refuses("[culvert]\nuser = nosuchuser\n" FORWARD, 2,
		      "no such account: nosuchuser");
	check_refuses("[culvert]\nuser = root\n" FORWARD, 2, "account root is root");
	check_refuses("[culvert]\n\nsession-log = /proc/none/dir/x\n" FORWARD, 3,
		      "session-log /proc/none/dir/x: No such file or directory: make its "
		      "directory first (install -d -o ");
	check_refuses("[culvert]\nsession-log = /proc\n" FORWARD, 2,
		      "session-log /proc: Is a directory");
	check_refuses("[culvert]\npid-file = /proc/none/p\n" FORWARD, 2,
		      "pid-file /proc/none/p: No such file or directory: make its directory first "
		      "(install -d /proc/none)");
	/* made by who starts it, or by itself */
	for (int i = 0; i < 2; i++) {
		rig_write(i ? "[culvert]\npid-file = /run/culvert/p\n"
			      "session-log = /var/log/culvert/s\n" FORWARD :
			      "[culvert]\npid-file = /run/none/p\ncontrol = /run/none/c\n"
			      "session-log = -\n" FORWARD);
		capture_begin(&capture, STDOUT_FILENO);
		r = check(err, sizeof(err));
		capture_end(&capture, out, sizeof(out));
		assert_string_equal(err, "");
		assert_int_equal(r, 0);
	}
	/* the forwards may be on the command line */
	for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
		rig_write(empty[i]);
		capture_begin(&capture, STDOUT_FILENO);
		r = check(err, sizeof(err));
		capture_end(&capture, out, sizeof(out));
		snprintf(want, sizeof(want), "culvert: %s: warning: no forward here: give LISTEN "
			 "UPSTREAM on the command line\n", rig_path);
		assert_string_equal(err, want);
		assert_int_equal(r, 0);
	}
}

/* Of the kind that Debian installs. */
static void test_check_rinetd_without_rule(void **state)
{
	char err[1024], want[1024];
	struct capture capture;
	struct config c;
	int r;

	(void)state;
	rig_write("# rules\nallow 10.*\n# 0.0.0.0 80 192.168.1.2 80\n\nlogfile /dev/null\n");
	capture_begin(&capture, STDOUT_FILENO);
	r = check(err, sizeof(err));
	capture_end(&capture, want, sizeof(want));
	assert_int_equal(r, 0);
	assert_non_null(strstr(want, ": 0 forwards of a rinetd.conf, no mistake\n"));
	snprintf(want, sizeof(want),
		 "culvert: %s:5: note: logfile: culvert writes a line of JSON for each session\n"
		 "culvert: %s:2: note: allow and deny are for the rules of this file, and it has "
		 "none\n"
		 "culvert: %s: warning: no forward here: give LISTEN UPSTREAM on the command line\n",
		 rig_path, rig_path, rig_path);
	assert_string_equal(err, want);
	/* and it can be run like any other file without a forward */
	assert_int_equal(rig_read(&c, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "nothing to forward: no forward in "));
	config_close(&c);
	assert_int_equal(rig_read(&c, WORDS("127.0.0.1:80", "127.0.0.1:81"), err, sizeof(err)), 0);
	assert_int_equal(c.n_forwards, 1);
	config_close(&c);
}

static void test_check(void **state)
{
	struct capture capture;
	char err[1024], out[1024];
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC), saved, r;

	(void)state;
	rig_write(FORWARD);
	capture_begin(&capture, STDOUT_FILENO);
	r = check(err, sizeof(err));
	capture_end(&capture, out, sizeof(out));
	assert_int_equal(r, 0);
	assert_string_equal(err, "");
	assert_non_null(strstr(out, ": 1 forward, no mistake\n"));

	assert_true(full >= 0);
	fflush(stdout);
	saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	dup2(full, STDOUT_FILENO);
	r = check(err, sizeof(err));
	__fpurge(stdout);
	clearerr(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	close(full);
	assert_int_equal(r, 1);
	assert_string_equal(err, "culvert: cannot write the result: No space left on device\n");

	rig_write("x");
	assert_int_equal(check(err, sizeof(err)), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_with_command_line),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_huge),
		cmocka_unit_test(test_many_forwards),
		cmocka_unit_test(test_place),
		cmocka_unit_test(test_read_error),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_check_machine),
		cmocka_unit_test(test_check_rinetd_without_rule),
	};

	return cmocka_run_group_tests(tests, rig_open, rig_close);
}
