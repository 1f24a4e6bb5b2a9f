/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation: the options of a command are the keys of the command table, "--forward NAME"
 * for the key "forward", and a few of the client's own.  The request is made of them and parsed
 * with the daemon's own parser, so what the daemon would refuse as wrong is refused without it.
 * The daemon's answer is printed as it is (--json) or by view.h.
 */
#include "cli/client.h"

#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/size.h"
#include "cli/view.h"
#include "config/config.h"
#include "config/file.h"
#include "daemon/control.h"

#define ANSWER_FIRST 65536u
#define ANSWER_MAX (64u << 20) /* more than 100,000 sessions */
#define PATIENCE_S 5           /* with a daemon that says nothing */
#define RELOAD_DEADLINE_S 60   /* a name server may have to answer */
#define RELOAD_POLL_MS 20      /* and longer each time, up to: */
#define RELOAD_POLL_MAX_MS 320

enum own { OWN_JSON, OWN_CONTROL, OWN_CONFIG, OWN_HELP, OWNS };

static const struct {
	const char *name, *metavar, *help;
} own_options[OWNS] = {
	[OWN_JSON] = { "json", NULL, "print the daemon's answer as JSON, see culvert(8)" },
	[OWN_CONTROL] = { "control", "PATH",
			  "control socket of the daemon (default " CONFIG_CONTROL_DEFAULT ")" },
	[OWN_CONFIG] = { "config", "FILE",
			 "ask the daemon of this configuration file: where its `control` says" },
	[OWN_HELP] = { "help", NULL, "show this help; also -h" },
};

/* --- help --- */

static void print_option(const char *name, const char *metavar, const char *help)
{
	char left[32];

	snprintf(left, sizeof(left), "--%s %s", name, metavar ? metavar : "");
	printf("  %-24s%s\n", left, help);
}

static void print_usage(const struct command *c)
{
	printf("Usage: culvert %s", c->name);
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];
		bool needed = c->required >> c->keys[i] & 1;

		if (!(c->positional >> c->keys[i] & 1))
			continue;
		printf(needed ? " %s%s" : " [%s%s]", key->metavar,
		       key->type == TYPE_IDS ? "..." : "");
	}
	printf(" [options]\n\n%s\n\nOptions:\n", c->about);
}

void client_help(const struct command *c)
{
	print_usage(c);
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];

		print_option(command_key_option(key), key->metavar, key->help);
	}
	for (size_t i = 0; i < OWNS; i++)
		print_option(own_options[i].name, own_options[i].metavar, own_options[i].help);
}

/* --- the request --- */

static int add_id(const struct command *c, struct json_object *request, const char *text)
{
	struct json_object *list = NULL;
	uint64_t id;

	if (count_parse(text, &id) || id > INT64_MAX)
		return log_complain(-EINVAL, "%s: \"%.256s\": expected the number of a session",
				    c->name, text);
	if (!json_object_object_get_ex(request, "id", NULL))
		json_add(request, "id", json_object_new_array());
	json_object_object_get_ex(request, "id", &list); /* NULL: there was no memory */
	json_append(list, json_object_new_int64((int64_t)id));
	return 0;
}

static int add_seconds(const struct command *c, struct json_object *request, const char *key,
		       const char *text)
{
	uint64_t ms;

	if (seconds_parse(text, &ms) || ms > INT32_MAX)
		return log_complain(-EINVAL, "%s: %s: \"%.256s\": expected seconds", c->name, key,
				    text);
	json_add(request, key, ms % 1000 ? json_object_new_double((double)ms / 1000)
					 : json_object_new_int64((int64_t)(ms / 1000)));
	return 0;
}

/* TEXT: NULL for a flag. */
static int add_key(const struct command *c, struct json_object *request, enum command_key key,
		   const char *text)
{
	const struct command_key_def *def = &command_keys[key];

	if (def->type == TYPE_IDS)
		return add_id(c, request, text);
	if (text && json_object_object_get_ex(request, def->name, NULL))
		return log_complain(-EINVAL, "%s: %s: given twice", c->name, def->name);
	if (def->type == TYPE_SECONDS)
		return add_seconds(c, request, def->name, text);
	if (text)
		json_add_text(request, def->name, text);
	else
		json_add_bool(request, def->name, true);
	return 0;
}

static int complain_unknown(const struct command *c, const char *word)
{
	return log_complain(-EINVAL, "\"%.256s\": unknown argument (`culvert help %s` lists them)",
			    word, c->name);
}

/* Take a word that is no option as the value of the next key that may be a word. */
static int add_word(const struct command *c, struct json_object *request, const char *word)
{
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *def = &command_keys[c->keys[i]];

		if (c->positional >> c->keys[i] & 1 &&
		    (def->type == TYPE_IDS || !json_object_object_get_ex(request, def->name, NULL)))
			return add_key(c, request, c->keys[i], word);
	}
	return complain_unknown(c, word);
}

/* --- words --- */

#define VALUE_KEY 256 /* of struct option, where it is a key of the table */
#define VALUE_OWN 512

static void make_options(const struct command *c, struct option *options)
{
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];
		int has_value = key->metavar ? required_argument : no_argument;
		int value = VALUE_KEY + (int)c->keys[i];

		*options++ = (struct option){ key->name, has_value, NULL, value };
		if (key->option)
			*options++ = (struct option){ key->option, has_value, NULL, value };
	}
	for (int i = 0; i < OWNS; i++)
		*options++ = (struct option){
			own_options[i].name,
			own_options[i].metavar ? required_argument : no_argument, NULL,
			VALUE_OWN + i };
	*options = (struct option){ 0 };
}

/* OPTION is what getopt(3) says of WORD. */
static int take_option(const struct command *c, int option, const char *word,
		       struct client_words *w)
{
	if (option == 1)
		return add_word(c, w->request, optarg);
	if (option == '?')
		return complain_unknown(c, word);
	/* "--control", "--control=", "--control --json" */
	if (option == ':' ||
	    (optarg && (!*optarg || (!strchr(word, '=') && !strncmp(optarg, "--", 2)))))
		return log_complain(-EINVAL, "%s: needs a value", word);
	if (option < VALUE_OWN && option >= VALUE_KEY)
		return add_key(c, w->request, (enum command_key)(option - VALUE_KEY), optarg);
	if (option == VALUE_OWN + OWN_CONTROL)
		w->control = optarg;
	else if (option == VALUE_OWN + OWN_JSON)
		w->json = true;
	else if (option == 'h' || option == VALUE_OWN + OWN_HELP)
		w->help = true;
	else
		w->config = optarg;
	return 0;
}

static int take_words(const struct command *c, int argc, char **argv, struct client_words *w)
{
	struct option options[2 * COMMAND_KEYS_MAX + OWNS + 1];
	int option, at = 1, r = 0;

	make_options(c, options);
	optind = 0; /* begin anew */
	opterr = 0;
	while (!r && (option = getopt_long(argc, argv, "-:c:h", options, NULL)) != -1) {
		r = take_option(c, option, argv[at], w);
		at = optind;
	}
	while (!r && optind < argc) /* behind "--" */
		r = add_word(c, w->request, argv[optind++]);
	return r;
}

/* For inih, which goes on whatever is returned. */
static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	char **ret = arg;

	if (!*ret && value && *value && !strcmp(section, "culvert") && !strcmp(key, "control"))
		*ret = strdup(value);
	return 1;
}

/*
 * Where the daemon of the configuration file PATH listens.  Lines that are wrong are passed over:
 * the daemon is running, and its reload says what is wrong.
 */
static int control_of(const char *path, char **ret)
{
	FILE *f = NULL;
	int r = config_file_open(path, &f);

	if (r)
		return r;
	ini_parse_file(f, on_key, ret);
	fclose(f);
	if (!*ret)
		*ret = strdup(CONFIG_CONTROL_DEFAULT);
	return *ret ? 0 : -ENOMEM;
}

/* The socket to ask at.  --control counts more than --config. */
static int find_control(struct client_words *w)
{
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path);
	int r = !w->control && w->config ? control_of(w->config, &w->named) : 0;

	if (r)
		return r;
	w->control = w->control ?: w->named ?: CONFIG_CONTROL_DEFAULT;
	if (strlen(w->control) < room)
		return 0;
	return log_complain(-EINVAL, "%s: \"%.256s\" is too long, expected at most %zu bytes",
			    w->named ? w->config : "--control", w->control, room - 1);
}

/* Refuse what the daemon would refuse. */
static int check_request(const struct command *c, const char *line)
{
	struct command_request req;
	struct command_refusal why;

	if (!line) /* a request that lacks a filter would ask for something else */
		return -ENOMEM;
	if (strlen(line) >= CONTROL_REQUEST_MAX - 1)
		return log_complain(-EINVAL, "%s: too much for one request", c->name);
	if (!command_parse(line, strlen(line), &req, &why))
		return log_complain(-EINVAL, "%s", why.message);
	command_close(&req);
	return 0;
}

int client_words_parse(const struct command *c, int argc, char **argv, struct client_words *ret)
{
	size_t len;
	int r;

	json_begin();
	*ret = (struct client_words){ .request = json_object_new_object() };
	json_add_text(ret->request, "command", c->name);
	r = take_words(c, argc, argv, ret);
	if (r || ret->help)
		return r;
	r = find_control(ret);
	if (r)
		return r;
	ret->line = json_line(ret->request, JSON_C_TO_STRING_NOSLASHESCAPE, &len);
	return check_request(c, ret->line);
}

void client_words_close(struct client_words *w)
{
	json_object_put(w->request);
	free(w->named);
	*w = (struct client_words){ .control = NULL };
}

/* --- conversation --- */

/* Connect to PATH and send LINE; returns the socket, or -errno. */
static int send_request(const char *path, const char *line)
{
	struct timeval patience = { .tv_sec = PATIENCE_S };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	char text[CONTROL_REQUEST_MAX + 1];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), n, r = 0;

	if (fd < 0)
		return -errno;
	/* bounds each recv() and send(), and connect() too, where the backlog is full */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	memcpy(un.sun_path, path, strlen(path) + 1);
	n = snprintf(text, sizeof(text), "%s\n", line);
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)))
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
	else if (send(fd, text, (size_t)n, MSG_NOSIGNAL) < 0 && errno != EPIPE) /* says why not */
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
	if (!r)
		return fd;
	close(fd);
	return r;
}

/*
 * Read one line, or up to the end of file, into a string that the caller frees in any case.
 * -EFBIG: longer than ANSWER_MAX; -ENODATA: nothing came.
 */
static int read_answer(int fd, char **ret, size_t *ret_len)
{
	size_t len = 0, size = 0;
	ssize_t n;

	do {
		if (size - len < 2) {
			char *more = size < ANSWER_MAX ? realloc(*ret, size += size ?: ANSWER_FIRST)
						       : NULL;

			if (!more)
				return size < ANSWER_MAX ? -ENOMEM : -EFBIG;
			*ret = more;
		}
		n = recv(fd, *ret + len, size - len - 1, 0);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? -ETIMEDOUT : -errno;
		len += (size_t)n;
		(*ret)[len] = '\0';
	} while (n > 0 && !memchr(*ret + len - n, '\n', (size_t)n));
	*ret_len = len;
	return len ? 0 : -ENODATA;
}

/*
 * The JSON as json-c writes it, which escapes the control characters below the blank.  DEL and the
 * C1 control characters, two bytes in UTF-8, mean something to terminals too.
 */
static int print_json(struct json_object *answer, FILE *out)
{
	size_t len;
	const char *text = json_line(answer, JSON_C_TO_STRING_NOSLASHESCAPE, &len);

	if (!text)
		return -ENOMEM;
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		if (*p == 0x7f)
			fputs("\\u007f", out);
		else if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
			fprintf(out, "\\u00%02x", *++p);
		else
			fputc(*p, out);
	}
	fputc('\n', out);
	return 0;
}

/* Print the message of an error; daemons of version 0.1.0 sent a string. */
static int print_error(struct json_object *error)
{
	struct json_object *message = error;

	if (json_object_is_type(error, json_type_object) &&
	    !json_object_object_get_ex(error, "message", &message))
		message = NULL;
	return log_complain(EXIT_CODE_FAILURE, "the daemon says: %s",
			    json_object_is_type(message, json_type_string) ?
				    json_object_get_string(message) : "?");
}

static int print_answer(const struct command *c, const struct client_words *words,
			struct json_object *answer)
{
	struct json_object *error;
	int r;

	if (json_object_object_get_ex(answer, "error", &error) &&
	    !json_object_object_get_ex(answer, "finished", NULL)) /* a reload says "" there */
		return print_error(error);
	r = words->json ? print_json(answer, stdout) : view_print(command_number(c), answer, stdout);
	if (r == -EINVAL)
		return log_complain(EXIT_CODE_FAILURE, "%s: this is no answer to %s",
				    words->control, c->name);
	if (r < 0)
		return log_complain(EXIT_CODE_FAILURE, "%s", strerror(-r));
	if (fflush(stdout) != 0 || ferror(stdout))
		return log_complain(EXIT_CODE_FAILURE, "cannot write the answer: %s",
				    strerror(errno));
	return EXIT_CODE_OK;
}

static int complain_unreachable(const char *path, int err)
{
	const char *hint = "is `culvert run` running, perhaps with another --control?";

	/* there may well be one, but not for this account */
	if (err == -EACCES || err == -EPERM)
		return log_complain(EXIT_CODE_FAILURE, "%s: cannot reach the daemon: %s (try again "
				    "as root or as the user the daemon runs as)", path,
				    strerror(-err));
	if (err == -ETIMEDOUT)
		hint = "the daemon is stopped or overloaded; look at its process and its log; a "
		       "change that it has not begun by now will not be made";
	else if (err == -ENODATA || err == -ECONNRESET || err == -EPIPE)
		return log_complain(EXIT_CODE_NO_DAEMON,
				    "%s: closed without an answer (see the daemon's log)", path);
	return log_complain(EXIT_CODE_NO_DAEMON, "%s: cannot reach the daemon: %s (%s)", path,
			    strerror(-err), hint);
}

/* Send LINE and parse the answer.  Else the exit code, after a message. */
static int ask(const char *control, const char *line, struct json_object **ret)
{
	size_t len = 0;
	char *text = NULL;
	int fd = send_request(control, line), r = fd < 0 ? fd : read_answer(fd, &text, &len);
	bool whole = !r && text[len - 1] == '\n';

	if (fd >= 0)
		close(fd);
	*ret = r ? NULL : json_tokener_parse(text);
	free(text);
	if (r == -EFBIG)
		return log_complain(EXIT_CODE_FAILURE,
				    "%s: the daemon's answer is longer than %u MiB", control,
				    ANSWER_MAX >> 20);
	if (r)
		return complain_unreachable(control, r);
	if (json_object_is_type(*ret, json_type_object))
		return EXIT_CODE_OK;
	json_object_put(*ret);
	*ret = NULL;
	return log_complain(EXIT_CODE_FAILURE, "%s: the answer is %s", control,
			    whole ? "not JSON from a culvert daemon" :
				    "cut off: it was not taken in time, or the daemon has ended");
}

static int64_t number_in(struct json_object *o, const char *key)
{
	struct json_object *n = NULL;

	json_object_object_get_ex(o, key, &n);
	return json_object_get_int64(n);
}

/*
 * A reload is answered at once, with its number, because the daemon serves others meanwhile: wait
 * until its status says that it is done.  ANSWER becomes what the status says of it.
 */
static int await_reload(const char *control, struct json_object **answer)
{
	int64_t number = number_in(*answer, "number");
	uint64_t end = clock_ms() + RELOAD_DEADLINE_S * 1000;

	for (int wait = RELOAD_POLL_MS; clock_ms() < end;) {
		struct json_object *status = NULL, *reload = NULL;
		int r = ask(control, "{\"command\":\"status\",\"brief\":true}", &status);

		if (r)
			return r;
		json_object_object_get_ex(status, "reload", &reload);
		if (number_in(reload, "finished") >= number) {
			json_object_put(*answer);
			*answer = json_object_get(reload);
			json_object_put(status);
			return EXIT_CODE_OK;
		}
		json_object_put(status);
		poll(NULL, 0, wait);
		wait = wait < RELOAD_POLL_MAX_MS ? 2 * wait : wait;
	}
	return log_complain(EXIT_CODE_FAILURE, "the reload is not done after %d s; `culvert "
			    "status` will say what has become of it", RELOAD_DEADLINE_S);
}

/* Complain of a reload that was refused: what is wrong with the file. */
static int reload_failed(struct json_object *reload)
{
	struct json_object *error = NULL;

	if (!json_object_object_get_ex(reload, "error", &error) ||
	    !json_object_get_string_len(error))
		return EXIT_CODE_OK;
	return log_complain(EXIT_CODE_FAILURE, "nothing has changed: %s",
			    json_object_get_string(error));
}

static int converse(const struct command *c, const struct client_words *words)
{
	bool reload = command_number(c) == COMMAND_RELOAD;
	struct json_object *answer = NULL;
	int r = ask(words->control, words->line, &answer), failed = 0;

	if (r)
		return r;
	if (reload && !json_object_object_get_ex(answer, "error", NULL))
		r = await_reload(words->control, &answer);
	if (!r && reload && json_object_object_get_ex(answer, "finished", NULL))
		failed = reload_failed(answer);
	if (!r && (!failed || words->json)) /* programs find in it why */
		r = print_answer(c, words, answer);
	json_object_put(answer);
	return r ?: failed;
}

int client_run(int argc, char **argv)
{
	const struct command *c = command_find(argv[0]);
	struct client_words words;
	int r = client_words_parse(c, argc, argv, &words);

	if (r == -ENOMEM)
		r = log_complain(EXIT_CODE_FAILURE, "out of memory");
	else if (r)
		r = EXIT_CODE_USAGE;
	else if (words.help)
		client_help(c);
	else
		r = converse(c, &words);
	client_words_close(&words);
	return r;
}
