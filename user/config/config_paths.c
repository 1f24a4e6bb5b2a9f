// SPDX-License-Identifier: BSD-2-Clause
#include "config/config_paths.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/log_file.h"

#define UNIX "unix:"

/* Behind slashes, and "." between them. */
static const char *skip_nothing(const char *path)
{
	while (path[0] == '/' && (path[1] == '/' || (path[1] == '.' && path[2] == '/')))
		path += path[1] == '/' ? 1 : 2;
	return path;
}

bool path_same(const char *a, const char *b)
{
	for (;; a++, b++) {
		a = skip_nothing(a);
		b = skip_nothing(b);
		if (*a != *b)
			return false;
		if (!*a)
			return true;
	}
}

/* An option that names a file. */
struct file {
	const char *name, *path;
};

static int check_files(const struct config *c, const struct file *a, const struct file *b)
{
	/* the place of the one that is said: `control` has a default */
	const struct file *at = config_option_line(c, b->name) ? b : a;
	char place[CONFIG_PLACE_LEN];

	if (!a->path || !b->path || !path_same(a->path, b->path))
		return 0;
	return log_complain(-EINVAL, "%s%s %.256s is that of %s as well: each needs its own",
			    config_option_place(c, at->name, place), at->name, at->path,
			    at == b ? a->name : b->name);
}

/* The listener of T, where it is a socket with the path PATH. */
static int check_listener(const struct forward_text *t, const char *path, const struct file *f)
{
	char place[CONFIG_PLACE_LEN];

	if (!f->path || !path_same(path, f->path))
		return 0;
	return log_complain(-EINVAL, "%s%s \"%.320s\": the path is that of %s as well: each needs "
			    "its own", config_place(t->file, t->listen_line, place),
			    t->file ? "listen" : "LISTEN", t->listen, f->name);
}

int config_check_paths(const struct config *c, const struct config_text *text)
{
	const struct file files[] = {
		{ "control", c->control },
		{ "pid-file", c->pid_file },
		{ "session-log", log_file_is_path(c->session_log) ? c->session_log : NULL },
	};
	const size_t n = sizeof(files) / sizeof(files[0]);
	int r = 0;

	for (size_t i = 0; !r && i < n * n; i++)
		if (i / n < i % n)
			r = check_files(c, &files[i / n], &files[i % n]);
	for (size_t i = 0; !r && i < text->n * n; i++) {
		const struct forward_text *t = &text->forwards[i / n];

		if (!strncmp(t->listen, UNIX, strlen(UNIX)))
			r = check_listener(t, t->listen + strlen(UNIX), &files[i % n]);
	}
	return r;
}
