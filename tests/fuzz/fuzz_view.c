// SPDX-License-Identifier: BSD-2-Clause
/*
 * The client's commands (user/cli/control_client.c, view.c) with a daemon that answers anything:
 * whoever owns the socket must not reach the terminal behind the tables.
 *
 * The first byte says which command; the rest is the answer.  With a bit of it, words that end in
 * NUL come first, as further arguments; an empty one ends them.  The client is whole; only the
 * calls that would need a daemon are replaced.
 */
#include <errno.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "cli/control_client.h"
#include "fuzz.h"

static struct input answer;

/* --- the daemon: these take the place of the C library's --- */

/* A file that holds the answer. */
int socket(int domain, int type, int protocol)
{
	int fd = memfd_create("answer", MFD_CLOEXEC);

	(void)type;
	(void)protocol;
	must(domain == AF_UNIX, "family %d", domain);
	must(write(fd, answer.at, answer.left) == (ssize_t)answer.left, "no answer");
	answer.left = 0;
	must(!lseek(fd, 0, SEEK_SET), "no seek");
	return fd;
}

int connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	(void)fd;
	must(sa->sa_family == AF_UNIX && len <= sizeof(struct sockaddr_storage), "to %d",
	     sa->sa_family);
	return 0;
}

ssize_t send(int fd, const void *data, size_t n, int flags)
{
	(void)fd;
	must(n && ((const char *)data)[n - 1] == '\n', "a request without an end");
	must(flags & MSG_NOSIGNAL, "SIGPIPE");
	return (ssize_t)n;
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	if (n == 1 && fds->fd == STDIN_FILENO) /* import: something comes */
		return 1;
	must(timeout > 0 && !n && !fds, "waits %d ms", timeout);
	return 0;
}

/* --- what is on the terminal --- */

/*
 * One line, which is the object that the daemon has sent: for programs, which want no DEL escaped.
 */
static void check_json(const char *out, size_t len)
{
	struct json_object *o;
	char *line;

	must(len > 2 && out[len - 1] == '\n', "no line: %s", out);
	for (size_t i = 0; i < len - 1; i++)
		must((unsigned char)out[i] >= 0x20, "%s", out);
	line = strndup(out, len - 1);
	o = json_tokener_parse(line);
	must(json_object_is_type(o, json_type_object), "no object: %s", out);
	json_object_put(o);
	free(line);
}

#define LIST "{\"sessions\":["
#define TITLES "ID  FORWARD  "

static void check(int r, bool json)
{
	size_t len;
	const char *out = stdout_end(&len), *end = strchr(said(), '\n');

	must(strlen(out) == len, "a NUL on stdout");
	must(r >= EXIT_CODE_OK && r <= EXIT_CODE_NO_DAEMON && r != EXIT_CODE_UNSUPPORTED, "exit %d",
	     r);
	if (r != EXIT_CODE_OK) {
		if (r == EXIT_CODE_NO_DAEMON && (!strncmp(out, LIST, strlen(LIST)) ||
						 strstr(out, TITLES) || strstr(out, "no sessions")))
			must(is_printable(out, true), "%s", out); /* a list that is cut */
		else if (json && len)
			check_json(out, len); /* why not */
		else
			must(!len, "exit %d, and printed %s", r, out);
		must(end && !end[1] && is_printable(said(), true), "%s", said());
		return;
	}
	must(!said()[0], "%s", said());
	if (json)
		check_json(out, len);
	else
		must((!len || out[len - 1] == '\n') && is_printable(out, true), "%s", out);
}

#define WORDS_MAX 8

/* The command, perhaps --json, and what the input has for it. */
static int take_arguments(uint8_t mode, char *words[WORDS_MAX + 3])
{
	int n = 0;

	words[n++] = strdup(commands[mode & 128 ? (mode >> 2 & 15) % COMMANDS :
				     mode & 1   ? COMMAND_SESSIONS :
						  COMMAND_STATUS]
				    .name);
	if (mode & 2)
		words[n++] = strdup("--json");
	for (int i = 0; mode & 64 && i < WORDS_MAX; i++) {
		words[n] = input_text(&answer);
		if (!words[n][0])
			break;
		n++;
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *words[WORDS_MAX + 3] = { NULL };
	bool json = false, help = false;
	uint8_t mode;
	int argc, r;

	answer = (struct input){ data, size };
	mode = input_byte(&answer);
	argc = take_arguments(mode, words);
	for (int i = 1; i < argc; i++) {
		json = json || !strncmp(words[i], "--j", 3); /* getopt(3) takes beginnings */
		help = help || !strncmp(words[i], "--h", 3) || !strncmp(words[i], "-h", 2);
	}
	said_clear();
	stdout_begin();
	r = client_run(argc, words);
	check(r, json && !help);
	for (size_t i = 0; i < WORDS_MAX + 3; i++)
		free(words[i]);
	return 0;
}
