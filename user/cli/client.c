/* SPDX-License-Identifier: BSD-2-Clause */
#include "cli/client.h"

#include <errno.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdbool.h>
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
#include "cli/client_view.h"
#include "cli/client_words.h"
#include "base/command.h"
#include "daemon/control_client.h"

#define ANSWER_FIRST 65536u
#define ANSWER_MAX (64u << 20) /* more than 100,000 sessions */
#define DEADLINE_S 5           /* for the whole conversation */
#define RELOAD_DEADLINE_S 60   /* a name server may have to answer */
#define RELOAD_POLL_MS 20      /* and longer each time, up to: */
#define RELOAD_POLL_MAX_MS 320

/* By enum command_id. */
static client_view_fn *const views[COMMANDS] = {
	[COMMAND_SESSIONS] = client_view_sessions,
	[COMMAND_STATUS] = client_view_status,
	[COMMAND_FORWARDS] = client_view_forwards,
	[COMMAND_KILL] = client_view_kill,
	[COMMAND_ENGINE] = client_view_engine,
	[COMMAND_DRAIN] = client_view_drain,
	[COMMAND_RELOAD] = client_view_reload,
	[COMMAND_LOG_LEVEL] = client_view_log_level,
};

/* Connect to PATH and send LINE; returns the socket, or -errno. */
static int send_request(const char *path, const char *line)
{
	struct timeval patience = { .tv_sec = DEADLINE_S };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	char text[CONTROL_REQUEST_MAX + 1];
	int fd, n, r;

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* Bounds send() and, on a unix socket whose backlog is full, connect() too. */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));

	memcpy(un.sun_path, path, strlen(path) + 1);
	n = snprintf(text, sizeof(text), "%s\n", line);
	r = connect(fd, (struct sockaddr *)&un, sizeof(un));
	if (r < 0 || send(fd, text, (size_t)n, MSG_NOSIGNAL) < 0) {
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
		close(fd);
		return r;
	}
	return fd;
}

/* One recv(), not later than END; returns the number of bytes, 0 at the end of file, or -errno. */
static ssize_t receive(int fd, char *buf, size_t size, uint64_t end)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	uint64_t now;
	ssize_t n;

	for (;;) {
		n = recv(fd, buf, size, MSG_DONTWAIT);
		if (n >= 0)
			return n;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		now = clock_ms();
		if (now >= end)
			return -ETIMEDOUT;
		poll(&pfd, 1, (int)(end - now));
	}
}

static int grow(char **buf, size_t *size)
{
	size_t more_size = *size ? 2 * *size : ANSWER_FIRST;
	char *more;

	if (more_size > ANSWER_MAX)
		return -EFBIG;
	more = realloc(*buf, more_size);
	if (!more)
		return -ENOMEM;
	*buf = more;
	*size = more_size;
	return 0;
}

/*
 * Read one line, or up to the end of file, into a string that the caller frees.  -EFBIG: longer
 * than ANSWER_MAX; -ENODATA: nothing came.
 */
static int read_answer(int fd, uint64_t end, char **ret, size_t *ret_len)
{
	size_t len = 0, size = 0;
	char *buf = NULL;
	ssize_t n;
	int r;

	do {
		if (size - len < 2) {
			r = grow(&buf, &size);
			if (r < 0)
				goto fail;
		}
		n = receive(fd, buf + len, size - len - 1, end);
		if (n < 0) {
			r = (int)n;
			goto fail;
		}
		len += (size_t)n;
	} while (n > 0 && !memchr(buf + len - n, '\n', (size_t)n));

	if (len == 0) {
		r = -ENODATA;
		goto fail;
	}
	buf[len] = '\0';
	*ret = buf;
	*ret_len = len;
	return 0;
fail:
	free(buf);
	return r;
}

/* The length of the UTF-8 character (RFC 3629) at P, which ends in NUL; 0: there is none. */
static size_t utf8_length(const unsigned char *p)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t c = p[0] & (0x7fU >> n);

	if (n == 1)
		return 1;
	if (p[0] < 0xc0 || p[0] >= 0xf8)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : n;
}

/*
 * The JSON as json-c writes it, which escapes C0 control characters.  DEL and the C1 control
 * characters (two bytes in UTF-8) mean something to terminals too, and so may bytes that are no
 * UTF-8: a lone 0x9b begins a control sequence on some.  All these stand only within strings.
 */
static int print_json(struct json_object *answer, FILE *out)
{
	size_t len;
	const char *text = json_line(answer, JSON_C_TO_STRING_NOSLASHESCAPE, &len);

	if (!text)
		return -ENOMEM;
	for (const unsigned char *p = (const unsigned char *)text; *p;) {
		size_t n = utf8_length(p);

		if (!n)
			fputs("\\ufffd", out);
		else if (*p == 0x7f)
			fputs("\\u007f", out);
		else if (p[0] == 0xc2 && p[1] <= 0x9f)
			fprintf(out, "\\u00%02x", p[1]);
		else
			fwrite(p, 1, n, out);
		p += n ?: 1;
	}
	fputc('\n', out);
	return 0;
}

static struct json_object *parse_answer(const char *text, size_t len)
{
	struct json_tokener *tok = json_tokener_new();
	struct json_object *answer = NULL;

	if (!tok)
		return NULL;
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT);
	/* With the NUL: it says that a number is complete. */
	answer = json_tokener_parse_ex(tok, text, (int)len + 1);
	json_tokener_free(tok);
	if (!json_object_is_type(answer, json_type_object)) {
		json_object_put(answer);
		return NULL;
	}
	return answer;
}

/* Daemons of version 0.1.0 said it in a string. */
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
	r = words->json ? print_json(answer, stdout) : views[command_number(c)](answer, stdout);
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

/* Send LINE and understand what comes back.  Else the exit code, after a message. */
static int ask(const char *control, const char *line, struct json_object **ret)
{
	size_t len = 0;
	char *text = NULL;
	uint64_t end = clock_ms() + DEADLINE_S * 1000;
	int fd = send_request(control, line), r;
	bool whole;

	if (fd < 0)
		return complain_unreachable(control, fd);
	r = read_answer(fd, end, &text, &len);
	close(fd);
	if (r == -EFBIG)
		return log_complain(EXIT_CODE_FAILURE,
				    "%s: the daemon's answer is longer than %u MiB", control,
				    ANSWER_MAX >> 20);
	if (r == -ENOMEM)
		return log_complain(EXIT_CODE_FAILURE, "out of memory");
	if (r < 0)
		return complain_unreachable(control, r);

	*ret = parse_answer(text, len);
	whole = text[len - 1] == '\n';
	free(text);
	if (!*ret)
		return log_complain(EXIT_CODE_FAILURE, "%s: the answer is %s", control,
				    whole ? "not JSON from a culvert daemon" :
				    "cut off: it was not taken in time, or the daemon has ended");
	return EXIT_CODE_OK;
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

/* What is wrong with the file is what its caller wants to know. */
static int reload_failed(struct json_object *reload)
{
	struct json_object *error = NULL;

	if (!json_object_object_get_ex(reload, "error", &error) ||
	    !*json_object_get_string(error))
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
		client_words_help(c);
	else
		r = converse(c, &words);
	client_words_close(&words);
	return r;
}
