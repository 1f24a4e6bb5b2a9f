/* SPDX-License-Identifier: BSD-2-Clause */
/* The client of the control socket: its words, what it asks, and what a daemon may answer. */

#include <errno.h>
#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "unit.h"
#include "base/exit_codes.h"
#include "cli/control_client.h"
#include "cli/view.h"
#include "config_rig.h"

#define OUT_MAX 16384
#define PATIENCE_MS 10000

static char out[OUT_MAX], err[OUT_MAX]; /* of the last run */

static int run_words(const char *const *words)
{
	struct capture stdout_capture, stderr_capture;
	char *argv[12];
	int argc = 0, code;

	for (; words[argc]; argc++)
		argv[argc] = (char *)words[argc];
	argv[argc] = NULL;
	capture_begin(&stdout_capture, STDOUT_FILENO);
	capture_begin(&stderr_capture, STDERR_FILENO);
	code = client_run(argc, argv);
	capture_end(&stderr_capture, err, OUT_MAX);
	capture_end(&stdout_capture, out, OUT_MAX);
	return code;
}

#define RUN(...) run_words((const char *const[]){ __VA_ARGS__, NULL })

/* Nothing on stdout, and one line on stderr that has TEXT in it. */
static void expect_complaint(const char *text)
{
	assert_string_equal(out, "");
	if (!strstr(err, text) || strncmp(err, "culvert: ", 9) != 0)
		fail_msg("\"%s\" lacks \"%s\"", err, text);
	assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
}

/* --- words --- */

TEST(test_requests)
{
	static const struct {
		const char *words[8];
		const char *request;
	} cases[] = {
		{ { "sessions", "--forward", "a \"b\"", "--client=10.0.0.0/8" },
		  "{\"command\":\"sessions\",\"forward\":\"a \\\"b\\\"\","
		  "\"client\":\"10.0.0.0/8\"}" },
		{ { "kill", "17", "--id=18", "9223372036854775807" },
		  "{\"command\":\"kill\",\"id\":[18,17,9223372036854775807]}" },
		{ { "engine", "--forward=-x", "copy" },
		  "{\"command\":\"engine\",\"forward\":\"-x\",\"engine\":\"copy\"}" },
		{ { "engine", "--", "--x", "copy" },
		  "{\"command\":\"engine\",\"forward\":\"--x\",\"engine\":\"copy\"}" },
		{ { "drain", "db", "--undo" },
		  "{\"command\":\"drain\",\"undo\":true,\"forward\":\"db\"}" },
		{ { "drain", "db", "--drain-timeout=0.5" },
		  "{\"command\":\"drain\",\"deadline\":0.5,\"forward\":\"db\"}" },
	};

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

TEST(test_wrong_words)
{
	static const struct {
		const char *words[5];
		const char *complaint;
	} cases[] = {
		{ { "sessions", "--bogus=1" }, "\"--bogus=1\": unknown argument, or one" },
		{ { "sessions", "a\x1b\n" }, "\"a??\": unknown argument" },
		{ { "sessions", "--control" }, "needs a value" },
		{ { "kill" }, "kill: needs an id, a filter or all" },
		{ { "kill", "17x" }, "kill: id: expected a whole number" },
		{ { "sessions", "--client", "10.0.0.1/8" }, "client: expected addresses" },
		{ { "engine", "a", "copy", "x" }, "\"x\": unknown argument" },
		{ { "drain", "a", "--drain-timeout", "soon" }, "drain: deadline: expected seconds" },
	};
	struct client_words words;
	char *argv[1001] = { (char *)"kill" };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(run_words(cases[i].words), EXIT_CODE_USAGE);
		expect_complaint(cases[i].complaint);
	}
	for (int i = 1; i <= 1000; i++) /* more than fit into a request */
		argv[i] = (char *)"1234567";
	assert_int_equal(client_words_parse(command_find("kill"), 1001, argv, &words), -EINVAL);
	client_words_close(&words);
}

TEST(test_help)
{
	char usage[64];

	for (size_t i = 0; i < COMMANDS; i++) {
		snprintf(usage, sizeof(usage), "Usage: culvert %s ", commands[i].name);
		assert_int_equal(RUN(commands[i].name, i % 2 ? "--help" : "-h"), EXIT_CODE_OK);
		assert_non_null(strstr(out, usage));
		assert_non_null(strstr(out, "--control PATH"));
	}
	RUN("engine", "--help");
	assert_non_null(strstr(out, "Usage: culvert engine NAME [ENGINE] [options]"));
}

/* The socket is where the configuration file says. */
TEST(test_config)
{
	static const struct {
		const char *text, *control;
	} cases[] = {
		{ "[culvert]\ncontrol = /run/other/c.sock\n", "/run/other/c.sock" },
		{ "[culvert]\r\nengine=copy\r\ncontrol=/a ; and why\r\n", "/a" },
		{ "0.0.0.0 80 10.0.0.1 80 [src=10.0.0.2]\nallow *\n", CONFIG_CONTROL_DEFAULT },
	};
	char *argv[] = { (char *)"status", (char *)"--config", rig_path, NULL };
	struct client_words words;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		rig_write(cases[i].text);
		argv[1] = (char *)(i % 2 ? "-c" : "--config");
		assert_int_equal(client_words_parse(command_find("status"), 3, argv, &words), 0);
		assert_string_equal(words.control, cases[i].control);
		client_words_close(&words);
	}
	assert_int_equal(RUN("status", "--config=/proc/nonexistent/x"), EXIT_CODE_USAGE);
	expect_complaint("culvert: /proc/nonexistent/x: No such file or directory");
	assert_int_equal(RUN("status", "--config=/proc/n/x", "--control=/proc/n/x"),
			 EXIT_CODE_NO_DAEMON); /* which counts */
}

/* --- a daemon --- */

/* Takes the request of one client and sends its answer. */
struct daemon {
	char path[96];
	const char *answer;
	char request[128];
	int listener;
	pthread_t thread;
};

static void *serve(void *arg)
{
	struct daemon *d = arg;
	int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return NULL;
	(void)!recv(fd, d->request, sizeof(d->request) - 1, 0);
	(void)!send(fd, d->answer, strlen(d->answer), MSG_NOSIGNAL);
	close(fd);
	return NULL;
}

static void daemon_start(struct daemon *d, const char *answer)
{
	struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
	struct sockaddr_un un = { .sun_family = AF_UNIX };

	*d = (struct daemon){ .answer = answer };
	snprintf(d->path, sizeof(d->path), "%s/control.sock", rig_dir);
	memcpy(un.sun_path, d->path, sizeof(d->path));
	d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(d->listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	assert_int_equal(bind(d->listener, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_int_equal(listen(d->listener, 1), 0);
	assert_int_equal(pthread_create(&d->thread, NULL, serve, d), 0);
}

/* The exit code of the command NAME with a daemon that sends ANSWER; JSON: with --json. */
static int ask(const char *name, bool json, const char *answer)
{
	char request[64];
	struct daemon d;
	int code;

	daemon_start(&d, answer);
	code = RUN(name, "--control", d.path, json ? "--json" : NULL);
	pthread_join(d.thread, NULL);
	close(d.listener);
	unlink(d.path);
	snprintf(request, sizeof(request), "{\"command\":\"%s\"}\n", name);
	assert_string_equal(d.request, request);
	return code;
}

static const char sessions_answer[] =
	"{\"sessions\":["
	"{\"id\":17,\"forward\":\"db\",\"client\":\"10.0.1.2:41234\","
	"\"upstream\":\"10.0.2.2:9001\",\"worker\":0,\"state\":\"open\",\"age_ms\":5300,"
	"\"standby\":\"yes\",\"not_grafted\":\"far\","
	"\"flows\":["
	"{\"direction\":\"client-to-upstream\",\"carrier\":\"sockmap\",\"phase\":\"kernel\","
	"\"reason\":\"conversation\",\"bytes\":1229,\"kernel_bytes\":1000,\"handovers\":1,"
	"\"backlog_max\":0,\"eof\":false},"
	"{\"direction\":\"upstream-to-client\",\"carrier\":\"splice\",\"phase\":\"user\","
	"\"reason\":\"slow target\",\"bytes\":5368709120,\"kernel_bytes\":1000,\"handovers\":12,"
	"\"backlog_max\":1572864,\"eof\":true}]},"
	"{\"id\":1018,\"client\":\"unix:(unnamed)\",\"upstream\":\"[::1]:80\","
	"\"state\":\"dead\",\"age_ms\":130000,\"flows\":[]}]}\n";

static const char sessions_text[] =
	"ID  FORWARD  CLIENT          UPSTREAM       SERVER NAME   AGE  STATE  DIRECTION           "
	"CARRIER  PHASE     BYTES  HANDOVERS  BACKLOG MAX  STANDBY  REASON        NOT GRAFTED\n"
	"17  db       10.0.1.2:41234  10.0.2.2:9001  -            5.3s  open   client-to-upstream  "
	"sockmap  kernel  1.2 KiB          1          0 B  yes      conversation  far\n"
	"17  db       10.0.1.2:41234  10.0.2.2:9001  -            5.3s  open   upstream-to-client  "
	"splice   user      5 GiB         12      1.5 MiB  yes      slow target   far\n";

TEST(test_answers)
{
	assert_int_equal(ask("sessions", false, sessions_answer), EXIT_CODE_OK);
	assert_string_equal(out, sessions_text);
	assert_string_equal(err, "");
	assert_int_equal(ask("sessions", false,
			     "{\"sessions\":[{\"age_ms\":0,\"state\":\"open\",\"standby\":\"held\","
			     "\"flows\":[{}]}]}"),
			 0);
	assert_non_null(strstr(out, " -    open  "));
	assert_int_equal(ask("status", false,
			     "{\"relays\":[{\"name\":\"a\",\"in_sync\":true,\"heard_ms\":90}]}"),
			 0);
	assert_string_equal(out, "NAME  IN SYNC  HEARD\na     true      0.0s\n");
	assert_int_equal(RUN("export", "--json"), EXIT_CODE_USAGE);
	assert_int_equal(ask("sessions", false, "{\"sessions\":[]}"), 0);
	assert_string_equal(out, "no sessions\n");
	assert_int_equal(ask("sessions", true, sessions_answer), 0);
	assert_string_equal(out, sessions_answer);
	assert_int_equal(ask("status", true,
			     "{ \"a\":\"/\\u001b\x1b\xc3\xa9\", "
			     "\"b\":18446744073709551615}\n"),
			 0);
	assert_string_equal(out, "{\"a\":\"/\\u001b\\u001b\xc3\xa9\","
				 "\"b\":18446744073709551615}\n");
}

/* A list of any length comes in pieces, of which some are empty. */
TEST(test_pieces)
{
	static const char pieces[] = "{\"sessions\":\t\t[{\"id\":17,\"flows\":[{}]}\t"
				     ",{\"id\":18,\"flows\":[{}]}\t\t],\"workers_silent\":1}\n";

	assert_int_equal(ask("sessions", false, pieces), EXIT_CODE_OK);
	assert_non_null(strstr(out, "\n17  -"));
	assert_non_null(strstr(out, "\n18  -"));
	assert_non_null(strstr(out, "\nworkers_silent           1\n"));
	assert_int_equal(ask("sessions", true, pieces), EXIT_CODE_OK);
	assert_string_equal(out, "{\"sessions\":[{\"id\":17,\"flows\":[{}]},"
				 "{\"id\":18,\"flows\":[{}]}],\"workers_silent\":1}\n");
	assert_int_equal(ask("sessions", false, "{\"sessions\":\t\t[\t],\"workers_silent\":0}\n"),
			 EXIT_CODE_OK);
	assert_string_equal(out, "no sessions\n");
	assert_int_equal(ask("sessions", false, "{\"sessions\":\t[{}\t"), EXIT_CODE_NO_DAEMON);
	assert_int_equal(ask("sessions", true, "{\"sessions\":\t[\t]"), EXIT_CODE_NO_DAEMON);
	assert_non_null(strstr(err, "incomplete"));
}

/* The daemon answers, but not well. */
TEST(test_bad_answers)
{
	static const struct {
		const char *answer, *complaint;
		int code;
	} cases[] = {
		{ "", "incomplete", EXIT_CODE_NO_DAEMON },
		{ "hello\n", "incomplete", EXIT_CODE_NO_DAEMON },
		{ "[]\n", "incomplete", EXIT_CODE_NO_DAEMON },
		{ "{\"sessions\":[", "incomplete", EXIT_CODE_NO_DAEMON },
		{ "{\"error\":{\"code\":\"x\",\"message\":\"b\\u001b\"}}\n", "says: b?\n",
		  EXIT_CODE_FAILURE },
		{ "{\"error\":{\"message\":{}}}\n", "says: ?\n", EXIT_CODE_FAILURE },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(ask("sessions", false, cases[i].answer), cases[i].code);
		expect_complaint(cases[i].complaint);
		/* a reload that is refused is not waited for */
		assert_int_equal(ask("reload", false, cases[i].answer), cases[i].code);
		expect_complaint(cases[i].complaint);
	}
}

/* A reload that could not open the session log is no success for whoever has rotated that. */
TEST(test_session_log_error)
{
	assert_int_equal(ask("reload", false, "{\"session_log_error\":\"\"}"), EXIT_CODE_OK);
	assert_int_equal(ask("reload", false, "{\"session_log_error\":\"denied\"}"),
			 EXIT_CODE_FAILURE);
	expect_complaint("the session log is not opened anew: denied");
}

TEST(test_no_daemon)
{
	bool root = geteuid() == 0;
	struct daemon d;
	int code;

	assert_int_equal(RUN("status", "--control=/proc/nonexistent/x"), EXIT_CODE_NO_DAEMON);
	expect_complaint("/proc/nonexistent/x: cannot reach the daemon: No such file or directory "
			 "(is `culvert run` running");
	daemon_start(&d, "{}");
	chmod(d.path, 0);
	if (root) /* who may connect to any socket */
		assert_int_equal(seteuid(65534), 0);
	code = RUN("status", "--control", d.path);
	if (root)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(code, EXIT_CODE_FAILURE); /* there is a daemon */
	expect_complaint("try again as root");
	chmod(d.path, 0600);
	RUN("status", "--control", d.path);
	pthread_join(d.thread, NULL);
	close(d.listener); /* the socket is there, but nobody listens any more */
	assert_int_equal(RUN("status", "--control", d.path), EXIT_CODE_NO_DAEMON);
	expect_complaint(strerror(ECONNREFUSED));
	unlink(d.path);
}

/* --- views --- */

static void expect_view(const char *answer, const char *text)
{
	struct json_object *object = json_tokener_parse(answer);
	FILE *file = fmemopen(out, OUT_MAX, "w");

	assert_non_null(file);
	view_print(object, file);
	fclose(file);
	json_object_put(object);
	assert_string_equal(out, text);
}

TEST(test_view)
{
	expect_view(
		"{\"version\":\"0.1\",\"uptime_ms\":93784000,\"workers_silent\":0,"
		"\"forwards\":[{\"upstream\":\"db:54\",\"addresses\":[\"[::1]:54\"],"
		"\"lookup\":{\"lookups\":9,\"error\":\"no\\u001b\"}},"
		"{\"name\":\"web\",\"servers\":[{\"server\":\"a:1\",\"live\":7}]}],"
		"\"errors\":{\"connect-refused\":0,\"x\\u001b\":1},"
		"\"kernel\":{\"available\":false,\"reason\":\"\","
		"\"features\":[{\"name\":\"a\",\"available\":true,\"reason\":\"b\"}]},"
		"\"session_log\":null,\"resources\":{\"kernel_memory\":3145728}}",
		"version                  0.1\n"
		"uptime_ms                1d02h\n"
		"\n"
		"NAME  LISTEN  UPSTREAM  ENGINE  SET UP HINDRANCE  STATE  LIVE  MAX SESSIONS  ACCEPTED  DENIED"
		"  BYTES TO UPSTREAM  BYTES TO CLIENT\n"
		"-     -       db:54     -       -                 -      -     -             -         -     "
		"  -                  -\n"
		"web   -       -         -       -                 -      -     -             -         -     "
		"  -                  -\n"
		"\n"
		"UPSTREAM  AGE  LOOKUPS  FAILURES  ADDRESSES       ERROR\n"
		"db:54     -          9  -         [ \"[::1]:54\" ]  no?\n"
		"\n"
		"NAME  SERVER  STATE  WEIGHT  BACKUP  LIVE  SESSIONS  FAILURES  LAST ERROR"
		"  CHECK  AGENT\n"
		"web   a:1     -      -       -          7  -         -         -           -      -\n"
		"\nerrors\n  x?                       1\n"
		"\nkernel\n  available                false\n"
		"  NAME  AVAILABLE  REASON\n  a     true       b\n"
		"\nresources\n  kernel_memory            3 MiB\n");
	expect_view(
		"{\"forwards\":[{\"lookup\":{},\"upstream\":\"dns:53/udp\",\"protocol\":\"udp\"},"
		"{\"upstream\":\"a:53\",\"protocol\":\"udp\"},"
		"{\"lookup\":{},\"upstream\":\"dns:53\",\"protocol\":\"tcp\"}]}",
		"NAME  LISTEN  UPSTREAM    ENGINE  SET UP HINDRANCE  STATE  LIVE  MAX SESSIONS  ACCEPTED  DENIED"
		"  BYTES TO UPSTREAM  BYTES TO CLIENT\n"
		"-     -       dns:53/udp  -       -                 -      -     -             -         -     "
		"  -                  -\n"
		"-     -       a:53/udp    -       -                 -      -     -             -         -     "
		"  -                  -\n"
		"-     -       dns:53      -       -                 -      -     -             -         -     "
		"  -                  -\n"
		"\n"
		"UPSTREAM    AGE  LOOKUPS  FAILURES  ADDRESSES  ERROR\n"
		"dns:53/udp  -    -        -         -          -\n"
		"dns:53      -    -        -         -          -\n");
	expect_view("{\"killed\":0}", "killed                   0\n");
}

/* Lines are bounded, whatever the daemon sends; fuzz_view has the rest. */
TEST(test_long_value)
{
	static char long_name[20000];

	snprintf(long_name, sizeof(long_name), "{\"x\":\"%015000d\"}", 0);
	assert_int_equal(ask("status", false, long_name), 0);
	assert_non_null(strstr(out, "000..."));
	assert_true(strlen(out) < 400);
}

UNIT_MAIN(rig_open, rig_close)
