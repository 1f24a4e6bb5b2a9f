// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the options of a command are the keys of the command table, "--forward NAME"
 * for the key "forward", and a few of the client's own.  The client builds the request from
 * the options, and checks the request with the same parser as the daemon.  So a request that the
 * daemon would refuse as wrong is not sent.  The daemon's answer is printed as it is (--json) or by
 * view.h.
 */
#include "cli/control_client.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "cli/view.h"
#include "config/config.h"
#include "config/file.h"
#include "daemon/control_socket.h"

#define PATIENCE_S 5         /* with a daemon that says nothing */
#define RELOAD_DEADLINE_S 60 /* a name server may have to answer */
#define RELOAD_POLL_MS 50

const struct request_key_def client_options[OWNS] = {
	[OWN_JSON] = { "json", .help = "print the daemon's answer as JSON, see culvert(8)" },
	[OWN_CONTROL] = { "control", "PATH",
			  .help = "control socket of the daemon (default " CONFIG_CONTROL_DEFAULT
				  ")" },
	[OWN_CONFIG] = { "config", "FILE",
			 .help = "ask the daemon at the `control` of this configuration file" },
	[OWN_HELP] = { "help", .help = "show this help; also -h" },
};

/* The first of client_options that C takes: the output of a stream is no answer. */
static int first_own(const struct command *c)
{
	enum command_id id = command_number(c);

	return id == COMMAND_EXPORT || id == COMMAND_IMPORT ? OWN_JSON + 1 : 0;
}

/* --- help --- */

void client_print_option(const struct request_key_def *def)
{
	char left[32];

	snprintf(left, sizeof(left), "--%s %s", request_key_option(def), def->metavar ?: "");
	printf("  %-24s%s\n", left, def->help);
}

static void client_help(const struct command *c)
{
	printf("Usage: culvert %s", c->name);
	for (const enum request_key *key = c->keys; *key; key++) {
		bool needed = c->required >> *key & 1;

		if (c->positional >> *key & 1)
			printf(needed ? " %s%s" : " [%s%s]", request_keys[*key].metavar,
			       *key == KEY_ID ? "..." : "");
	}
	printf(" [options]\n\nTo %s.  See culvert(8).\n\nOptions:\n", c->summary);
	for (const enum request_key *key = c->keys; *key; key++)
		client_print_option(&request_keys[*key]);
	for (int i = first_own(c); i < OWNS; i++)
		client_print_option(&client_options[i]);
}

/* --- the request --- */

/* Add TEXT, or NULL for a flag.  The parser of requests checks the value. */
static int add_key(struct json_object *request, enum request_key key, const char *text)
{
	const struct request_key_def *def = &request_keys[key];
	bool number = def->kind >= VALUE_WHOLE;
	struct json_object *value = def->kind == VALUE_FLAG ? json_object_new_boolean(true) :
				    number                  ? request_json(text) :
							      json_object_new_string(text);
	struct json_object *ids = json_object_object_get(request, def->name);
	char joined[1024];

	if (key == KEY_WORDS && ids) {
		snprintf(joined, sizeof(joined), "%s %s", json_object_get_string(ids), text);
		json_object_put(value);
		value = json_object_new_string(joined);
	}

	if (key != KEY_ID)
		return json_object_object_add(request, def->name, value);
	if (!ids) {
		ids = json_object_new_array();
		json_object_object_add(request, def->name, ids);
	}
	return json_object_array_add(ids, value);
}

static int complain_unknown(const struct command *c, const char *word)
{
	return log_complain(-EINVAL,
			    "\"%.256s\": unknown argument, or one that needs a value "
			    "(`culvert help %s` lists them)",
			    word, c->name);
}

/* An order may stand before its server, which cannot have such a name. */
static bool is_order(const char *word)
{
	const struct request_key_def *def = &request_keys[KEY_ORDER];
	size_t i = 0;

	while (i < def->n_choices && strcmp(def->choices[i], word) != 0)
		i++;
	return i < def->n_choices;
}

/* Take a word that is no option as the value of the next key that may be a word. */
static int add_word(const struct command *c, struct json_object *request, const char *word)
{
	for (const enum request_key *key = c->keys; *key; key++) {
		bool given = json_object_object_get_ex(request, request_keys[*key].name, NULL);

		if (!(c->positional >> *key & 1) || (*key == KEY_SERVER && is_order(word)) ||
		    (*key == KEY_WEIGHT && word[strspn(word, "0123456789")]))
			continue;
		if (*key == KEY_ID || *key == KEY_WORDS || !given)
			return add_key(request, *key, word);
	}
	return complain_unknown(c, word);
}

/* Values of struct option: a key of the table, or one of client_options, in their order. */
#define OWN_VALUES "jsch"

static struct option option_of(const struct request_key_def *def, int value)
{
	return (struct option){ request_key_option(def),
				def->metavar ? required_argument : no_argument, NULL, value };
}

static int take_words(const struct command *c, int argc, char **argv, struct client_words *w)
{
	struct option options[COMMAND_KEYS_MAX + OWNS + 1] = { 0 }, *next = options;
	int option, r = 0;

	for (const enum request_key *key = c->keys; *key; key++)
		*next++ = option_of(&request_keys[*key], (int)*key);
	for (int i = first_own(c); i < OWNS; i++)
		*next++ = option_of(&client_options[i], OWN_VALUES[i]);
	optind = 0; /* begin anew */
	opterr = 0;
	while (!r && (option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
		const char *own = strchr(OWN_VALUES, option);

		if (option == '?')
			r = complain_unknown(c, argv[optind - 1]);
		else if (own)
			w->own[own - OWN_VALUES] = optarg ?: "";
		else
			r = add_key(w->request, (enum request_key)option, optarg);
	}
	while (!r && optind < argc)
		r = add_word(c, w->request, argv[optind++]);
	return r;
}

/* The message of an error of the daemon, or of the parser of requests. */
static const char *error_of(struct json_object *answer)
{
	struct json_object *text = NULL;

	json_pointer_get(answer, "/error/message", &text);
	return json_object_is_type(text, json_type_string) ? json_object_get_string(text) : "?";
}

int client_words_parse(const struct command *c, int argc, char **argv, struct client_words *ret)
{
	struct json_object *wrong;
	struct request req;
	int r;

	*ret = (struct client_words){ .request = json_object_new_object() };
	json_object_object_add(ret->request, "command", json_object_new_string(c->name));
	r = take_words(c, argc, argv, ret);
	if (r || ret->own[OWN_HELP])
		return r;
	ret->line = allocated((void *)json_object_to_json_string_ext(
		ret->request, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
	if (!ret->own[OWN_CONTROL] && ret->own[OWN_CONFIG])
		r = config_file_control(ret->own[OWN_CONFIG], &ret->named);
	ret->control = ret->own[OWN_CONTROL] ?: ret->named ?: CONFIG_CONTROL_DEFAULT;
	if (r)
		return r;
	if (strlen(ret->line) >= CONTROL_REQUEST_MAX - 1)
		return log_complain(-EINVAL, "%s: too much for one request", c->name);
	/* the daemon would refuse the same */
	wrong = request_parse(ret->line, &req);
	if (wrong)
		r = log_complain(-EINVAL, "%s", error_of(wrong));
	request_close(&req);
	json_object_put(wrong);
	return r;
}

void client_words_close(struct client_words *w)
{
	json_object_put(w->request);
	free(w->named);
	*w = (struct client_words){ .control = NULL };
}

/* --- conversation --- */

static int complain_unreachable(const char *path, int err)
{
	bool denied = err == EACCES || err == EPERM; /* there may well be a daemon */
	const char *why = err == EAGAIN ? strerror(ETIMEDOUT) :
			  err           ? strerror(err) :
					  "its answer is incomplete";

	return log_complain(
		denied ? EXIT_CODE_FAILURE : EXIT_CODE_NO_DAEMON,
		"%s: cannot reach the daemon: %s (%s)", path, why,
		denied ? "try again as root or as the user the daemon runs as" :
			 "is `culvert run` running, perhaps with another --control?  See its log");
}

/* Send LINE.  Returns the socket; errno says whether that was possible. */
static int begin_talk(const char *control, const char *line)
{
	struct timeval patience = { .tv_sec = PATIENCE_S };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	char text[CONTROL_REQUEST_MAX + 1];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t len = (size_t)snprintf(text, sizeof(text), "%s\n", line);

	/* bounds each read(2) and send(2), and connect(2) too, where the backlog is full */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", control);
	/* EPIPE: the daemon has refused and closed already, but its reason can still be read */
	if (!connect(fd, (struct sockaddr *)&un, sizeof(un)) &&
	    (send(fd, text, len, MSG_NOSIGNAL) >= 0 || errno == EPIPE))
		errno = 0;
	return fd;
}

/* Complain if ANSWER of CONTROL is an error.  NULL: errno says why there is no answer. */
static int check_answer(const char *control, struct json_object *answer)
{
	if (!json_object_is_type(answer, json_type_object))
		return complain_unreachable(control, errno);
	if (json_object_is_type(json_object_object_get(answer, "error"), json_type_object))
		return log_complain(EXIT_CODE_FAILURE, "the daemon says: %s", error_of(answer));
	return EXIT_CODE_OK;
}

int client_ask(const char *control, const char *line, struct json_object **ret)
{
	int fd = begin_talk(control, line), r;

	*ret = errno ? NULL : json_object_from_fd(fd);
	r = check_answer(control, *ret);
	close(fd);
	return r;
}

/*
 * The daemon answers a reload at once, with the number of the reload, and goes on serving others.
 * Ask until the reload is done.  ANSWER becomes its result.
 */
static int await_reload(const char *control, struct json_object **answer)
{
	int64_t number = json_object_get_int64(json_object_object_get(*answer, "number"));
	uint64_t end = clock_ms() + RELOAD_DEADLINE_S * 1000;
	char line[80];
	int r = EXIT_CODE_OK;

	snprintf(line, sizeof(line), "{\"command\":\"reload\",\"number\":%" PRId64 "}", number);
	while (!r && number > 0) {
		struct json_object *o, *reload;

		r = client_ask(control, line, &o);
		reload = json_object_object_get(o, "reload");
		if (json_object_get_int64(json_object_object_get(reload, "finished")) >= number) {
			json_object_put(*answer);
			*answer = json_object_get(reload);
			number = 0;
		} else if (!r && clock_ms() > end) {
			r = log_complain(EXIT_CODE_FAILURE,
					 "the reload is not done after %d s; `culvert status` "
					 "shows its result",
					 RELOAD_DEADLINE_S);
		} else if (!r) {
			poll(NULL, 0, RELOAD_POLL_MS);
		}
		json_object_put(o);
	}
	return r;
}

static const char *plain(struct json_object *o)
{
	return json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN |
							 JSON_C_TO_STRING_NOSLASHESCAPE);
}

/* ANSWER NULL: it is printed already. */
static int print_answer(struct json_object *answer, bool json)
{
	struct json_object *error = json_object_object_get(answer, "error");
	struct json_object *log = json_object_object_get(answer, "session_log_error");
	int r = EXIT_CODE_OK;

	/* a reload has failed because of its file; with --json the answer is printed as well */
	if (json_object_get_string_len(error))
		r = log_complain(EXIT_CODE_FAILURE, "nothing has changed: %s",
				 json_object_get_string(error));
	else if (json_object_get_string_len(log))
		r = log_complain(EXIT_CODE_FAILURE,
				 "the forwards are as the file says, but the session log is not "
				 "opened anew: %s",
				 json_object_get_string(log));
	if (answer && json)
		puts(plain(answer));
	else if (answer && !r)
		view_print(answer, stdout);
	if (fflush(stdout) != 0 || ferror(stdout))
		r = log_complain(EXIT_CODE_FAILURE, "cannot write the answer: %s", strerror(errno));
	return r;
}

/* --- sessions, of which there may be any number: they are printed as they come --- */

#define LIST_HEAD "{\"sessions\":" /* a tab follows here, and behind each piece: JSON allows it */

/*
 * Print the piece TEXT of N bytes.  It begins with "[", or with "," behind another piece (MORE),
 * and ends with a tab.  False: TEXT is no piece.
 */
static bool print_piece(char *text, ssize_t n, bool more, bool json)
{
	struct json_object *answer, *rows;

	if (*text != (more ? ',' : '['))
		return false;
	text[0] = '[';
	text[n - 1] = ']';
	rows = json_tokener_parse(text);
	answer = json_object_new_object();
	json_object_object_add(answer, "sessions", rows);
	if (rows && json)
		printf("%s%.*s", more ? "," : LIST_HEAD "[", (int)strlen(plain(rows)) - 2,
		       plain(rows) + 1);
	else if (rows)
		view_print(answer, stdout);
	json_object_put(answer);
	return rows;
}

static int run_sessions(const struct client_words *words)
{
	bool json = words->own[OWN_JSON], listed, more = false;
	int fd = begin_talk(words->control, words->line), r;
	FILE *in = errno ? NULL : allocated(fdopen(fd, "r"));
	struct json_object *rest = NULL;
	char *text = NULL;
	size_t room = 0;
	ssize_t n = in ? getdelim(&text, &room, '\t', in) : 0;

	listed = n > 0 && !strcmp(text, LIST_HEAD "\t");
	while (listed && (n = getdelim(&text, &room, '\t', in)) > 0 && text[n - 1] == '\t') {
		if (n > 1 && !print_piece(text, n, more, json))
			break;
		more = more || n > 1;
		errno = 0; /* stdout may have set it */
	}
	if (listed && more && n > 1 && *text == ']')
		memcpy(text, "{ ", 2); /* replaces "],": the rest becomes an object */
	else if (listed)
		n = 0;
	if (n > 0)
		rest = json_tokener_parse(text);
	r = check_answer(words->control, rest);
	if (!r && listed && json)
		printf("]%s%s\n", json_object_object_length(rest) ? "," : "", plain(rest) + 1);
	r = r ?: print_answer(listed && json ? NULL : rest, json);
	json_object_put(rest);
	free(text);
	if (in)
		fclose(in);
	else
		close(fd);
	return r;
}

/* --- streams --- */

/* One line of JSON.  NULL: none has come. */
static struct json_object *read_line(int fd)
{
	char line[CONTROL_REQUEST_MAX];
	size_t n = 0;

	while (n < sizeof(line) - 1 && recv(fd, line + n, 1, 0) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
	return n ? request_json(line) : NULL;
}

/* Copy bytes from FROM to TO.  0: FROM has ended; -1: TO takes no more. */
static ssize_t pass_on(int from, int to)
{
	char buf[65536];
	ssize_t n = read(from, buf, sizeof(buf)), at = 0, done = 1;

	for (; at < n && done > 0; at += done)
		done = write(to, buf + at, (size_t)(n - at));
	return done <= 0 ? -1 : at;
}

/*
 * False: stdin has ended without a byte, as in a unit that starts again and again while the other
 * relay is away.
 */
static bool anything_comes(void)
{
	struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
	int n = 1;

	return poll(&p, 1, -1) < 0 || ioctl(STDIN_FILENO, FIONREAD, &n) || n;
}

/*
 * Export: after the answer, the daemon's bytes go to stdout.  Import: bytes of stdin go to the
 * daemon, until it sends an error, or closes the connection without one because it has all.
 */
static int run_stream(const struct client_words *words, bool import)
{
	const struct timeval none = { .tv_sec = 0 };
	struct pollfd p[] = { { .events = POLLIN }, { .fd = STDIN_FILENO, .events = POLLIN } };
	struct json_object *said;
	int fd, r = EXIT_CODE_OK;
	ssize_t n = 1;

	if (import && !anything_comes())
		return log_complain(EXIT_CODE_FAILURE, "nothing has come from the other relay");
	p[0].fd = fd = begin_talk(words->control, words->line);
	said = errno ? NULL : read_line(fd);
	if (!said) {
		close(fd);
		return complain_unreachable(words->control, errno);
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
	signal(SIGPIPE, SIG_IGN); /* write(2) finds a reader that has gone */
	if (!json_object_object_get(said, "error")) {
		while (!import && n > 0)
			n = pass_on(fd, STDOUT_FILENO);
		while (import && (poll(p, 2, -1) < 0 || !p[0].revents)) {
			n = pass_on(STDIN_FILENO, fd);
			if (n > 0)
				continue;
			shutdown(fd, SHUT_WR);
			p[1].fd = -1;
		}
		json_object_put(said);
		said = import ? read_line(fd) : NULL;
	}
	if (said)
		r = log_complain(EXIT_CODE_FAILURE, "the daemon says: %s", error_of(said));
	else if (n < 0 && !import)
		r = log_complain(EXIT_CODE_FAILURE, "the reader of the output has ended");
	else if (n < 0 || p[1].fd >= 0)
		r = log_complain(EXIT_CODE_NO_DAEMON, "the daemon has closed the stream");
	json_object_put(said);
	close(fd);
	return r;
}

int client_run(int argc, char **argv)
{
	const struct command *c = command_find(argv[0]);
	enum command_id id = command_number(c);
	struct json_object *answer = NULL;
	struct client_words words;
	int r = client_words_parse(c, argc, argv, &words);

	if (r) {
		r = EXIT_CODE_USAGE;
	} else if (words.own[OWN_HELP]) {
		client_help(c);
	} else if (c->in_pieces) {
		r = run_sessions(&words);
	} else if (id == COMMAND_EXPORT || id == COMMAND_IMPORT) {
		r = run_stream(&words, id == COMMAND_IMPORT);
	} else {
		r = client_ask(words.control, words.line, &answer);
		if (!r && id == COMMAND_RELOAD && !json_object_object_get(words.request, "number"))
			r = await_reload(words.control, &answer);
		r = r ?: print_answer(answer, words.own[OWN_JSON]);
	}
	json_object_put(answer);
	client_words_close(&words);
	return r;
}
