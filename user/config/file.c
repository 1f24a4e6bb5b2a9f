// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration file:
 *
 *	[culvert]            options that the command line has as well, without "--"
 *	[forward NAME]       listen = ADDRESS, upstream = ADDRESS, and options for it alone
 *
 * ; or # begins a comment at the beginning of a line, and after a blank, "=" or ":".  A colon may
 * stand for "=".
 */
#include "config/file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/text.h"
#include "base/tls_hello.h"

#define BLANKS " \t"
#define BOM "\xef\xbb\xbf" /* which editors put before UTF-8 */

/* --- the reader --- */

const char *config_here(const struct config_reader *r)
{
	return config_keep(r->c, "%.256s:%u: ", r->c->file, r->line);
}

char *config_next_line(struct config_reader *r)
{
	char *line = strsep(&r->rest, "\n");
	size_t len = line ? strlen(line) : 0;

	if (!line)
		return NULL;
	r->line++;
	r->mistaken = false;
	if (len && line[len - 1] == '\r')
		line[len - 1] = '\0';
	for (const char *at = line; *at; at++)
		if (((unsigned char)*at < 0x20 && *at != '\t') || *at == 0x7f)
			config_mistake(r, "a control character");
	return line;
}

void config_begin_forward(struct config_reader *r, const char *name)
{
	for (size_t i = 0; i < r->c->n_forwards; i++)
		if (!strcmp(r->c->forwards[i].name, name))
			config_mistake(r, "[forward %s]: the name is taken: " AT, name,
				       AT_PLACE(r->c->forwards[i].place));
	if (!text_is_utf8(name))
		config_mistake(r, "[forward %s]: " NOT_UTF8, name);
	r->forward = config_add_forward(r->c);
	r->forward->name = config_keep(r->c, "%s", name);
	r->forward->place = config_here(r);
	r->forward->mistaken = r->mistaken;
}

void config_take(struct config_reader *r, struct forward_conf *fc, const struct option_def *o,
		 const char *key, const char *value)
{
	struct config_lines *said = fc ? &fc->said : &r->c->said;
	const struct config_line *before = option_line(said, o->name);

	if (before && !o->list)
		config_mistake(r, "%s: given twice: " AT, key, AT_PLACE(before->place));
	if (!r->mistaken)
		config_lines_add(said, (struct config_line){ o, key, config_keep(r->c, "%s", value),
							     config_here(r) });
}

/* --- sections --- */

/* TEXT without the blanks around it. */
static char *trim(char *text)
{
	size_t len;

	text += strspn(text, BLANKS);
	for (len = strlen(text); len && strchr(BLANKS, text[len - 1]); len--)
		text[len - 1] = '\0';
	return text;
}

static char *without_comment(char *line)
{
	for (char *at = line; (at = strpbrk(at, ";#")); at++)
		if (at == line || strchr(BLANKS "=:", at[-1])) {
			*at = '\0';
			break;
		}
	return trim(line);
}

/*
 * Begin the section of LINE, "[sni FORWARD NAME...]".  The section is called FORWARD/NAME, by its
 * first NAME.  Returns SCOPE_SNI; 0: there is no such section.
 */
static enum option_scope begin_sni(struct config_reader *r, char *line)
{
	char *rest = line + strlen("[sni"), *end = strchr(rest, ']');
	char known[TLS_NAME_MAX + 1], *of, *name;
	const char *called;
	size_t parent = 0;

	if (end)
		*end = '\0';
	rest = trim(rest);
	of = strsep(&rest, BLANKS);
	if (!end || end[1] || !rest) {
		config_mistake(r, "expected [sni FORWARD NAME...], and nothing behind it");
		return 0;
	}
	while (parent < r->c->n_forwards && strcmp(r->c->forwards[parent].name, of) != 0)
		parent++;
	if (parent == r->c->n_forwards || r->c->forwards[parent].sni) {
		config_mistake(r, "[sni %.64s ...]: no [forward %.64s] stands above", of, of);
		return 0;
	}
	rest = trim(rest);
	for (char *c = rest; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	called = config_keep(r->c, "%s/%.*s", of, (int)strcspn(rest, BLANKS), rest);
	for (size_t i = 0; i < r->c->n_forwards; i++) /* the same name, for other protocols */
		if (!strcmp(r->c->forwards[i].name, called))
			called = config_keep(r->c, "%s+", called);
	config_begin_forward(r, called);
	r->forward->sni = config_keep(r->c, "%s", rest);
	r->forward->of = parent;
	r->c->forwards[parent].hellos = true;
	while ((name = strsep(&rest, BLANKS))) {
		const char *host = name + 2 * !strncmp(name, "*.", 2);

		if (*name && strcmp(name, SNI_NOT_TLS) && !tls_name(host, strlen(host), known))
			config_mistake(
				r, "\"%.64s\": expected a host name, *. and one, or " SNI_NOT_TLS,
				name);
	}
	r->forward->mistaken = r->mistaken;
	return SCOPE_SNI;
}

/* LINE begins with "[".  Returns the section's scope; 0: a mistake, so its keys are skipped. */
static enum option_scope begin_section(struct config_reader *r, char *line)
{
	char name[sizeof(((struct endpoint *)0)->text)]; /* as long as a listener's text */
	int len = 0;

	if (!strcmp(line, "[culvert]"))
		return SCOPE_CULVERT;
	if (!strncmp(line, "[sni ", 5))
		return begin_sni(r, line);
	sscanf(line, "[forward%*[ ]%287[^] \t]]%n", name, &len);
	if (!len || line[len]) {
		config_mistake(r,
			       "\"%.64s\": expected [culvert], [sni FORWARD NAME...] or [forward "
			       "NAME], where NAME is a word of at most 287 bytes, and nothing "
			       "behind it",
			       line);
		return 0;
	}
	config_begin_forward(r, name);
	return SCOPE_FORWARD;
}

/* SCOPE: of the section that LINE is in.  INDENTED: it began with a blank. */
static void take_key(struct config_reader *r, enum option_scope scope, char *line, bool indented)
{
	const char *more = !indented || strchr(line, '=') ?
				   "" :
				   ": a line cannot be continued on the next one";
	const char *key = trim(strsep(&line, "=:")); /* LINE is the value now, if there is one */
	const struct option_def *o = option_find(key, scope);

	if (!strncmp(key, "include", 7) && strchr(BLANKS, key[7]))
		config_mistake(r, CONFIG_NO_INCLUDE);
	else if (!scope && r->error)
		return; /* a line outside of sections follows from an earlier mistake */
	else if (!line)
		config_mistake(r, "neither [SECTION] nor KEY = VALUE%s", more);
	else if (o)
		config_take(r, scope & SCOPE_OWN ? r->forward : NULL, o, o->name, trim(line));
	else
		config_mistake(r, "%s: %s%s%s", key,
			       !scope                 ? "before the first section" :
			       scope == SCOPE_SNI     ? "no key of [sni FORWARD NAME...]" :
			       scope == SCOPE_FORWARD ? "unknown key of [forward NAME]" :
							"unknown key of [culvert]",
			       option_hint(r->c, key, scope), more);
	if (scope & SCOPE_OWN)
		r->forward->mistaken |= r->mistaken;
}

void config_read_sections(struct config_reader *r)
{
	enum option_scope scope = 0;
	char *line;

	while ((line = config_next_line(r))) {
		bool indented = strspn(line, BLANKS);

		line = without_comment(line);
		if (*line == '[')
			scope = begin_section(r, line);
		else if (*line)
			take_key(r, scope, line, indented);
	}
	for (size_t i = 0; i < r->c->n_forwards; i++) {
		const struct forward_conf *fc = &r->c->forwards[i];
		bool listens = option_line(&fc->said, "listen");

		if (fc->mistaken || (fc->sni && option_line(&fc->said, "upstream")))
			continue;
		if ((!listens && !fc->sni) || (!fc->hellos && !option_line(&fc->said, "upstream")))
			config_mistake_at(r, fc->place, "[%s %s]: %s is missing",
					  fc->sni ? "sni" : "forward", fc->name,
					  listens || fc->sni ? "upstream" : "listen");
	}
}

/* --- the file --- */

/* Root's daemon obeys the file, so no other account may be able to write the file. */
static int check_owner(const struct stat *st, const char *path)
{
	bool own = st->st_uid == 0 || st->st_uid == geteuid();

	if (own && (!(st->st_mode & (S_IWGRP | S_IWOTH)) ||
		    (S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX)))
		return 0;
	return log_complain(-EPERM,
			    "%s can be written by others (uid %u, mode %04o): chown root, "
			    "chmod go-w",
			    path, (unsigned int)st->st_uid, (unsigned int)st->st_mode & 07777);
}

/* Symbolic links are followed first: the checks are of the real file, and its directory. */
int config_file_open(const char *path)
{
	char *real = realpath(path, NULL);
	/* O_NONBLOCK: do not wait for the writer of a FIFO */
	int fd = real ? open(real, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK) : -1;
	struct stat st, dir;
	int r;

	if (fd < 0 || fstat(fd, &st) || stat(dirname(real), &dir))
		r = log_complain(-errno, "%s: %s (uid %u)", path, strerror(errno),
				 (unsigned int)geteuid());
	else if (!S_ISREG(st.st_mode))
		r = log_complain(-EINVAL, "%s: not a regular file", path);
	else
		r = check_owner(&st, path) ?: check_owner(&dir, real);
	free(real);
	if (r && fd >= 0)
		close(fd);
	return r ?: fd;
}

void config_reader_open(struct config_reader *r, int fd, struct config *c)
{
	int own = fd < 0 ? config_file_open(c->file) : -1, from = fd < 0 ? own : fd;
	ssize_t n = 0;
	size_t len = 0;

	*r = (struct config_reader){ .c = c, .error = from < 0 ? from : 0 };
	r->text = allocated(malloc(CONFIG_FILE_MAX + 2)); /* one byte too many, and a NUL */
	while (!r->error && (n = read(from, r->text + len, CONFIG_FILE_MAX + 1 - len)) > 0)
		len += (size_t)n;
	if (n < 0)
		r->error = log_complain(-errno, "%s: cannot be read", c->file);
	if (len > CONFIG_FILE_MAX)
		r->error = log_complain(-EINVAL, "%s: the file has more than %d bytes", c->file,
					CONFIG_FILE_MAX);
	if (own >= 0)
		close(own);
	/* make NULs \1, which config_next_line() refuses, naming the line */
	for (char *at = r->text; (at = memchr(at, '\0', len - (size_t)(at - r->text)));)
		*at = '\1';
	r->text[len] = '\0';
	r->rest = r->text + (strncmp(r->text, BOM, strlen(BOM)) ? 0 : strlen(BOM));
}

int config_file_control(const char *path, char **ret)
{
	struct config c = { .file = path };
	struct config_reader r;
	bool global = false;
	char *line;

	*ret = NULL;
	config_reader_open(&r, -1, &c);
	while (!*ret && (line = config_next_line(&r))) {
		line = without_comment(line);
		if (*line == '[')
			global = !strcmp(line, "[culvert]");
		else if (global && !strcmp(trim(strsep(&line, "=:")), "control") && line)
			*ret = allocated(strdup(trim(line)));
	}
	free(r.text);
	config_close(&c);
	return r.error;
}
