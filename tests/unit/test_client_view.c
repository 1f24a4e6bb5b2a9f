/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/client_view.h"
#include "cli/table.h"

#define OUT_MAX 16384

typedef int view_fn(struct json_object *answer, FILE *out);

/* What FN makes of the JSON text ANSWER. */
static int view(view_fn *fn, const char *answer, char out[OUT_MAX])
{
	struct json_object *object = json_tokener_parse(answer);
	FILE *file = fmemopen(out, OUT_MAX, "w");
	int r;

	out[0] = '\0';
	assert_non_null(file);
	r = fn(object, file);
	fclose(file);
	json_object_put(object);
	return r;
}

static void expect(view_fn *fn, const char *answer, const char *text)
{
	char out[OUT_MAX];

	assert_int_equal(view(fn, answer, out), 0);
	assert_string_equal(out, text);
}

static const char sessions_answer[] =
	"{\"sessions\":["
	"{\"id\":17,\"forward\":\"db\",\"client\":\"10.0.1.2:41234\","
	"\"upstream\":\"10.0.2.2:9001\",\"worker\":0,\"state\":\"open\",\"age_ms\":5300,"
	"\"flows\":["
	"{\"direction\":\"client-to-upstream\",\"carrier\":\"sockmap\",\"phase\":\"kernel\","
	"\"reason\":\"conversation\",\"bytes\":1234,\"kernel_bytes\":1000,\"handovers\":1,"
	"\"backlog_max\":0,\"eof\":false},"
	"{\"direction\":\"upstream-to-client\",\"carrier\":\"splice\",\"phase\":\"user\","
	"\"reason\":\"slow target\",\"bytes\":5368709120,\"kernel_bytes\":1000,\"handovers\":12,"
	"\"backlog_max\":1572864,\"eof\":true}]},"
	"{\"id\":1018,\"client\":\"unix:(unnamed)\",\"upstream\":\"[::1]:80\","
	"\"state\":\"dead\",\"age_ms\":130000,\"flows\":[]}]}\n";

static const char sessions_text[] =
	"  ID  FORWARD  CLIENT          UPSTREAM          AGE    BYTES  HAND-OVERS  MAX BACKLOG  "
	"STATE\n"
	"  17  db       10.0.1.2:41234  10.0.2.2:9001    5.3s                                    "
	"open\n"
	"               -> sockmap      (conversation)         1.2 KiB           1          0 B  "
	"kernel\n"
	"               <- splice       (slow target)            5 GiB          12      1.5 MiB  "
	"user, eof\n"
	"1018  ?        unix:(unnamed)  [::1]:80        2m10s                                    "
	"dead\n";

static void test_sessions(void **state)
{
	(void)state;
	expect(client_view_sessions, sessions_answer, sessions_text);
	expect(client_view_sessions, "{\"sessions\":[]}", "No sessions.\n");
	expect(client_view_sessions,
	       "{\"sessions\":[{\"id\":1,\"client\":\"203.0.113.7:5\",\"via\":\"10.0.0.1:6\","
	       "\"upstream\":\"u\",\"age_ms\":1,\"state\":\"header\"}]}",
	       "ID  FORWARD  CLIENT                        UPSTREAM  AGE  BYTES  HAND-OVERS  "
	       "MAX BACKLOG  STATE\n"
	       " 1  ?        203.0.113.7:5 via 10.0.0.1:6  u         1ms                     "
	       "             header\n");
}

static void test_ages(void **state)
{
	static const struct {
		const char *ms;
		const char *text;
	} ages[] = {
		{ "0", " 0ms\n" },
		{ "999", " 999ms\n" },
		{ "1000", " 1.0s\n" },
		{ "59999", " 59.9s\n" },
		{ "60000", " 1m00s\n" },
		{ "3599999", " 59m59s\n" },
		{ "3600000", " 1h00m\n" },
		{ "86399999", " 23h59m\n" },
		{ "86400000", " 1d00h\n" },
		{ "183600000", " 2d03h\n" },
	};
	char out[OUT_MAX], answer[256];

	(void)state;
	for (size_t i = 0; i < sizeof(ages) / sizeof(ages[0]); i++) {
		snprintf(answer, sizeof(answer), "{\"sessions\":[{\"age_ms\":%s,\"state\":\"\"}]}",
			 ages[i].ms);
		assert_int_equal(view(client_view_sessions, answer, out), 0);
		assert_non_null(strstr(out, ages[i].text));
	}
}

static void test_sessions_untrusted(void **state)
{
	(void)state;
	expect(client_view_sessions, "{\"sessions\":[null,7,\"x\",[],{}]}",
	       "ID  FORWARD  CLIENT  UPSTREAM  AGE  BYTES  HAND-OVERS  MAX BACKLOG  STATE\n"
	       " ?  ?        ?       ?           ?                                  ?\n"
	       " ?  ?        ?       ?           ?                                  ?\n"
	       " ?  ?        ?       ?           ?                                  ?\n"
	       " ?  ?        ?       ?           ?                                  ?\n"
	       " ?  ?        ?       ?           ?                                  ?\n");
	expect(client_view_sessions,
	       "{\"sessions\":[{\"id\":-1,\"client\":5,\"upstream\":null,\"age_ms\":\"5\","
	       "\"state\":[],\"flows\":[null,{\"direction\":\"up\",\"carrier\":{},\"reason\":1,"
	       "\"bytes\":1.5,\"handovers\":true,\"backlog_max\":-9,\"phase\":0,\"eof\":\"yes\"}]},"
	       "{\"id\":1844674407370955161,\"flows\":{}}]}",
	       "                 ID  FORWARD  CLIENT  UPSTREAM  AGE  BYTES  HAND-OVERS  "
	       "MAX BACKLOG  STATE\n"
	       "                  ?  ?        ?       ?           ?                     "
	       "             ?\n"
	       "                              ? ?     (?)                ?           ?  "
	       "          ?  ?\n"
	       "                              ? ?     (?)                ?           ?  "
	       "          ?  ?\n"
	       "1844674407370955161  ?        ?       ?           ?                     "
	       "             ?\n");
	expect(client_view_sessions,
	       "{\"sessions\":[{\"id\":1,\"forward\":\"\\u0007\","
	       "\"client\":\"\\u001b[2J\\n\x1b]0;\","
	       "\"upstream\":\"\\u009b\xff\",\"age_ms\":1,\"state\":\"\\u0000hidden\"}]}",
	       "ID  FORWARD  CLIENT            UPSTREAM      AGE  BYTES  HAND-OVERS  MAX BACKLOG  "
	       "STATE\n"
	       " 1  \\x07     \\x1b[2J\\n\\x1b]0;  \\xc2\\x9b\\xff  1ms\n");
}

static void test_long_strings(void **state)
{
	static char answer[100000];
	char out[OUT_MAX], *name;

	(void)state;
	strcpy(answer, "{\"sessions\":[{\"client\":\"");
	name = answer + strlen(answer);
	memset(name, 'x', 90000);
	strcpy(name + 90000, "\",\"flows\":[{\"carrier\":\"");
	name += strlen(name);
	memset(name, 'y', 5000);
	strcpy(name + 5000, "\"}]}]}");
	assert_int_equal(view(client_view_sessions, answer, out), 0);
	assert_non_null(strstr(out, "xxx..."));
	assert_true(strlen(out) < 2000);
}

static const char status_answer[] =
	"{\"version\":\"0.1.0\",\"pid\":4711,\"uptime_ms\":93784000,\"engine\":\"auto\","
	"\"workers\":2,\"workers_active\":1,\"max_sessions\":16384,\"forwards\":["
	"{\"name\":\"db\",\"listen\":\"0.0.0.0:9000\",\"upstream\":\"10.0.2.2:9001\",\"live\":1,"
	"\"accepted\":10,\"finished\":9,\"bytes_to_upstream\":1,\"bytes_to_client\":3145728},"
	"{\"name\":\"unix:/run/x\",\"listen\":\"unix:/run/x\",\"upstream\":\"host:80\",\"live\":0,"
	"\"accepted\":0,\"finished\":0,\"bytes_to_upstream\":0,\"bytes_to_client\":0}],"
	"\"carriers\":[{\"carrier\":\"copy\",\"flows\":1,\"bytes\":10},"
	"{\"carrier\":\"sockmap\",\"flows\":12,\"bytes\":1048576}],"
	"\"handovers\":{\"to_sockmap\":1,\"to_splice\":0,\"to_copy\":22,\"failed\":0},"
	"\"errors\":{\"connect-refused\":0,\"connect-timeout\":3,\"x\\u001b\":1},"
	"\"kernel\":{\"available\":false,\"reason\":\"needs CAP_BPF\",\"events_lost\":3,"
	"\"features\":[{\"name\":\"sockmap\",\"available\":true,\"reason\":\"\"},"
	"{\"name\":\"ringbuf\",\"available\":false,\"reason\":\"EPERM\"},\"plain\",7]},"
	"\"session_log\":{\"path\":\"/x/log\",\"lines\":5,\"lost\":2,\"errors\":1,"
	"\"last_error\":\"no room\\u001b\"},"
	"\"resources\":{\"sessions\":1,\"slots_used\":2,\"slots_total\":32768,"
	"\"kernel_memory\":1048576,\"kernel_memory_limit\":536870912,\"pipes\":0,"
	"\"pipes_idle\":0,\"buffers\":0,\"fds\":20}}\n";

static void test_status(void **state)
{
	(void)state;
	expect(client_view_status, status_answer,
	       "culvert 0.1.0, pid 4711, up 1d02h\n"
	       "engine auto, workers 1 of 2, at most 16384 sessions\n"
	       "\n"
	       "Forwards\n"
	       "  NAME         LISTEN        UPSTREAM       LIVE  ACCEPTED  FINISHED"
	       "  TO UPSTREAM  TO CLIENT\n"
	       "  db           0.0.0.0:9000  10.0.2.2:9001     1        10         9"
	       "          1 B      3 MiB\n"
	       "  unix:/run/x  unix:/run/x   host:80           0         0         0"
	       "          0 B        0 B\n"
	       "\n"
	       "Carriers\n"
	       "  CARRIER  FLOWS  BYTES\n"
	       "  copy         1   10 B\n"
	       "  sockmap     12  1 MiB\n"
	       "\n"
	       "Hand-overs\n"
	       "  TO SOCKMAP  TO SPLICE  TO COPY  FAILED\n"
	       "           1          0       22       0\n"
	       "\n"
	       "Errors\n"
	       "  CAUSE            COUNT\n"
	       "  connect-timeout      3\n"
	       "  x\\x1b                1\n"
	       "\n"
	       "Kernel\n"
	       "  available: no (needs CAP_BPF)\n"
	       "  events lost: 3\n"
	       "  sockmap: yes\n"
	       "  ringbuf: no (EPERM)\n"
	       "  plain\n"
	       "  ?\n"
	       "\n"
	       "Session log\n"
	       "  FILE    LINES  LOST  ERRORS  LAST ERROR\n"
	       "  /x/log      5     2       1  no room\\x1b\n"
	       "\n"
	       "Resources\n"
	       "  SESSIONS  SLOTS USED  SLOTS  KERNEL MEMORY  AT MOST"
	       "  PIPES  PIPES IDLE  BUFFERS  DESCRIPTORS\n"
	       "         1           2  32768          1 MiB  512 MiB"
	       "      0           0        0           20\n");
}

/* Shown only if there are any. */
static void test_names(void **state)
{
	static const char answer[] =
		"{\"forwards\":["
		"{\"name\":\"n\",\"upstream\":\"1.2.3.4:5\",\"addresses\":[\"1.2.3.4:5\"],"
		"\"lookup\":null},"
		"{\"name\":\"db\",\"upstream\":\"db:5432\",\"addresses\":[\"10.0.0.1:5432\","
		"\"[::1]:5432\"],\"lookup\":{\"interval_ms\":30000,\"age_ms\":5300,\"lookups\":9,"
		"\"failures\":2,\"error\":\"no\\u001b\"}},"
		"{\"name\":\"x\",\"upstream\":\"x:1\",\"addresses\":[],"
		"\"lookup\":{\"interval_ms\":30000,\"age_ms\":1000,\"lookups\":1,"
		"\"failures\":1,\"error\":\"gone\"}}]}\n";
	static char out[OUT_MAX];

	(void)state;
	assert_int_equal(view(client_view_status, answer, out), 0);
	assert_non_null(strstr(out,
			       "\nNames\n"
			       "  NAME      AGE  LOOK-UPS  FAILED  ADDRESSES"
			       "                  ERROR\n"
			       "  db:5432  5.3s         9       2  10.0.0.1:5432, [::1]:5432"
			       "  no\\x1b\n"
			       "  x:1      1.0s         1       1  none"
			       "                       gone\n"));
}

static void test_status_untrusted(void **state)
{
	static const char nothing[] = "culvert ?, pid ?, up ?\n"
				      "engine ?, workers ? of ?, at most ? sessions\n"
				      "\nForwards\n  ?\n"
				      "\nCarriers\n  ?\n"
				      "\nHand-overs\n  ?\n"
				      "\nErrors\n  ?\n"
				      "\nKernel\n  available: ?\n"
				      "\nResources\n  ?\n";

	(void)state;
	expect(client_view_status, "{\"forwards\":\"x\"}", nothing);
	/* as with --brief */
	expect(client_view_status, "{}",
	       "culvert ?, pid ?, up ?\n"
	       "engine ?, workers ? of ?, at most ? sessions\n"
	       "\nCarriers\n  ?\n"
	       "\nHand-overs\n  ?\n"
	       "\nErrors\n  ?\n"
	       "\nKernel\n  available: ?\n"
	       "\nResources\n  ?\n");
	expect(client_view_status,
	       "{\"version\":{},\"pid\":-1,\"uptime_ms\":null,\"engine\":1,\"workers\":[],"
	       "\"max_sessions\":\"x\",\"forwards\":1,\"carriers\":\"x\",\"handovers\":null,"
	       "\"errors\":7,\"kernel\":[],\"session_log\":null,\"resources\":true}",
	       nothing);
	expect(client_view_status,
	       "{\"version\":\"\\u001b[m\",\"pid\":1,\"uptime_ms\":1,\"engine\":\"x\","
	       "\"workers\":1,\"workers_active\":1,\"max_sessions\":1,\"forwards\":[],"
	       "\"carriers\":[1],\"handovers\":[],"
	       "\"errors\":{\"a\":0,\"b\":0},\"kernel\":{\"available\":1,\"reason\":2,"
	       "\"features\":[{}]},\"resources\":{\"fds\":\"x\"}}",
	       "culvert \\x1b[m, pid 1, up 1ms\n"
	       "engine x, workers 1 of 1, at most 1 sessions\n"
	       "\nForwards\n"
	       "  NAME  LISTEN  UPSTREAM  LIVE  ACCEPTED  FINISHED  TO UPSTREAM  TO CLIENT\n"
	       "\nCarriers\n"
	       "  CARRIER  FLOWS  BYTES\n"
	       "  ?            ?      ?\n"
	       "\nHand-overs\n"
	       "  TO SOCKMAP  TO SPLICE  TO COPY  FAILED\n"
	       "\nErrors\n"
	       "  none\n"
	       "\nKernel\n"
	       "  available: ?\n"
	       "  ?: ?\n"
	       "\nResources\n"
	       "  SESSIONS  SLOTS USED  SLOTS  KERNEL MEMORY  AT MOST"
	       "  PIPES  PIPES IDLE  BUFFERS  DESCRIPTORS\n"
	       "         ?           ?      ?              ?        ?"
	       "      ?           ?        ?            ?\n");
}

static void test_forwards(void **state)
{
	(void)state;
	expect(client_view_forwards,
	       "{\"forwards\":[{\"name\":\"db\",\"listen\":\":5432\","
	       "\"upstream\":\"db.example:5432\",\"engine\":\"copy\","
	       "\"engine_configured\":\"auto\",\"state\":\"active\",\"live\":3,"
	       "\"accepted\":10,\"denied\":1,\"bytes_to_upstream\":1,\"bytes_to_client\":3145728,"
	       "\"max_sessions\":100,\"max_sessions_per_client\":50},"
	       "{\"name\":\"web\\u001b\",\"engine\":\"splice\",\"engine_configured\":\"splice\","
	       "\"live\":-1,\"state\":7}]}",
	       "NAME     LISTEN  UPSTREAM         ENGINE       STATE   LIVE  ACCEPTED  DENIED"
	       "  TO UPSTREAM  TO CLIENT  AT MOST  A CLIENT\n"
	       "db       :5432   db.example:5432  copy (auto)  active     3        10       1"
	       "          1 B      3 MiB      100        50\n"
	       "web\\x1b  ?       ?                splice       ?          ?         ?       ?"
	       "            ?          ?        ?         ?\n");
	expect(client_view_forwards, "{\"forwards\":[]}",
	       "NAME  LISTEN  UPSTREAM  ENGINE  STATE  LIVE  ACCEPTED  DENIED  TO UPSTREAM"
	       "  TO CLIENT  AT MOST  A CLIENT\n");
}

static void test_changes(void **state)
{
	(void)state;
	expect(client_view_kill, "{\"killed\":0}", "0 sessions reset\n");
	expect(client_view_kill, "{\"killed\":1}", "1 session reset\n");
	expect(client_view_kill, "{\"killed\":-1}", "? sessions reset\n");
	expect(client_view_engine,
	       "{\"forward\":\"d\\u001bb\",\"engine\":\"copy\",\"engine_configured\":\"auto\","
	       "\"live\":3,\"flows_moving\":1}",
	       "d\\x1bb: engine copy, configured auto, sessions 3, flows still moving 1\n");
	expect(client_view_engine, "{\"engine\":\"copy\"}",
	       "?: engine copy, configured ?, sessions ?, flows still moving ?\n");
	expect(client_view_drain, "{\"forward\":\"db\",\"state\":\"draining\",\"live\":3}",
	       "db: draining, sessions 3\n");
	expect(client_view_log_level, "{\"level\":\"debug\"}", "debug\n");
	expect(client_view_reload,
	       "{\"finished\":2,\"added\":1,\"changed\":0,\"removed\":3,\"kept\":4}",
	       "forwards: 1 added, 0 changed, 3 removed, 4 as before\n");
}

static void test_other_answers(void **state)
{
	static const char *const answers[] = { "[]", "1", "null", "\"x\"" };
	char out[OUT_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		assert_int_equal(view(client_view_sessions, answers[i], out), -EINVAL);
		assert_string_equal(out, "");
		assert_int_equal(view(client_view_status, answers[i], out), -EINVAL);
		assert_string_equal(out, "");
	}
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		assert_int_equal(view(client_view_forwards, answers[i], out), -EINVAL);
		assert_int_equal(view(client_view_kill, answers[i], out), -EINVAL);
		assert_int_equal(view(client_view_engine, answers[i], out), -EINVAL);
		assert_int_equal(view(client_view_drain, answers[i], out), -EINVAL);
		assert_int_equal(view(client_view_log_level, answers[i], out), -EINVAL);
	}
	assert_int_equal(view(client_view_kill, "{\"killed\":\"1\"}", out), -EINVAL);
	assert_int_equal(view(client_view_sessions, "{}", out), -EINVAL);
	assert_int_equal(view(client_view_sessions, "{\"sessions\":{}}", out), -EINVAL);
}

static void test_table(void **state)
{
	static const struct table_column columns[] = {
		{ "A", false },
		{ "BB", true },
		{ "C", false },
	};
	static const char *const rows[][3] = {
		{ "1", "2", "3" },
		{ NULL, "100", "" },
		{ "long one", NULL, "z\n" },
		{ NULL, NULL, NULL },
	};
	struct table *t = table_new(columns, 3);
	char out[OUT_MAX];
	FILE *file = fmemopen(out, sizeof(out), "w");

	(void)state;
	assert_non_null(t);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		table_add(t, rows[i]);
	assert_int_equal(table_print(t, file, 1), 0);
	fclose(file);
	table_free(t);
	assert_string_equal(out, " A          BB  C\n"
				 " 1           2  3\n"
				 "           100\n"
				 " long one       z\\n\n"
				 "\n");

	table_add(NULL, rows[0]);
	assert_int_equal(table_print(NULL, stdout, 0), -ENOMEM);
	table_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sessions),
		cmocka_unit_test(test_ages),
		cmocka_unit_test(test_sessions_untrusted),
		cmocka_unit_test(test_long_strings),
		cmocka_unit_test(test_status),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_status_untrusted),
		cmocka_unit_test(test_forwards),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_other_answers),
		cmocka_unit_test(test_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
