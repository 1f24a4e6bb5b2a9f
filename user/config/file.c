// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration file:
 *
 *	[culvert]            options that the command line has as well, without "--"
 *	[forward NAME]       listen = ADDRESS, upstream = ADDRESS, and options for it alone
 *
 * ; or # begins a comment at the beginning of a line, and after a blank, "=" or ":".  A colon may
 * stand for "=".
 *
 * `include = PATTERN` in [culvert] puts other files there.  The daemon cannot open files when it
 * reloads, so config_file_open() makes one text of all.  A line that begins with MARK says which file
 * and line come next, one with WRONG why a file is left out; no file can have such lines.
 */
#include "config/file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/text.h"
#include "base/tls_hello.h"

#define BLANKS " \t"
#define MARK "\2"
#define WRONG "\3"
#define WHY_LEN 1024
#define BOM "\xef\xbb\xbf" /* which editors put before UTF-8 */

/* --- the reader --- */

const char *config_here(const struct config_reader *r)
{
	return config_keep(r->c, "%.256s:%u: ", r->file, r->line);
}

/* True: LINE says which line comes next. */
static bool take_mark(struct config_reader *r, const char *line)
{
	int skip = 0;

	if (sscanf(line, MARK "%u %n", &r->line, &skip) != 1 || !skip)
		return false;
	r->file = config_keep(r->c, "%s", line + skip);
	r->includes = strcmp(r->file, r->c->file);
	return true;
}

char *config_next_line(struct config_reader *r)
{
	char *line;
	size_t len;

	do
		line = strsep(&r->rest, "\n");
	while (line && take_mark(r, line));
	if (!line)
		return NULL;
	len = strlen(line);
	r->line++;
	r->mistaken = false;
	if (*line == *WRONG && !r->c->is_rinetd)
		return line;
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

	if (!strcmp(key, "include") && line && scope == SCOPE_CULVERT && !r->includes)
		return; /* config_file_open() has put the files behind this line */
	if (!strcmp(key, "include") && line)
		config_mistake(r, "include: belongs to [culvert] of the first file");
	else if (!scope && r->astray)
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

/* Complain about forwards without a listener or an upstream. */
static void find_missing(struct config_reader *r)
{
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

void config_read_sections(struct config_reader *r)
{
	enum option_scope scope = 0;
	bool included = false;
	char *line;

	while ((line = config_next_line(r))) {
		bool indented = strspn(line, BLANKS);

		if (r->includes && r->line == 1) {
			scope = 0;
			r->astray = false;
		} else if (included && !r->includes) /* the first file goes on */
			scope = SCOPE_CULVERT;
		included = r->includes;

		if (*line == *WRONG) {
			if (scope == SCOPE_CULVERT) /* elsewhere `include` is the mistake */
				config_mistake(r, "include: %s", line + 1);
			continue;
		}
		line = without_comment(line);
		if (*line == '[')
			scope = begin_section(r, line);
		else if (*line)
			take_key(r, scope, line, indented);
		r->astray |= !scope && r->mistaken;
	}
	find_missing(r);
}

/* --- the file --- */

/* Write to WHY what is wrong.  The value is CODE. */
__attribute__((format(printf, 3, 4))) static int fault(char why[WHY_LEN], int code, const char *fmt,
						       ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, WHY_LEN, fmt, ap);
	va_end(ap);
	return code;
}

/* Root's daemon obeys the file, so no other account may be able to write the file. */
static int check_owner(const struct stat *st, const char *path, char why[WHY_LEN])
{
	bool own = st->st_uid == 0 || st->st_uid == geteuid();

	if (own && (!(st->st_mode & (S_IWGRP | S_IWOTH)) ||
		    (S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX)))
		return 0;
	return fault(why, -EPERM,
		     "%s can be written by others (uid %u, mode %04o): chown root, chmod go-w",
		     path, (unsigned int)st->st_uid, (unsigned int)st->st_mode & 07777);
}

/* Symbolic links are followed first: the checks are of the real file, and its directory. */
static int file_open_one(const char *path, char why[WHY_LEN])
{
	char *real = realpath(path, NULL);
	/* O_NONBLOCK: do not wait for the writer of a FIFO */
	int fd = real ? open(real, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK) : -1;
	struct stat st, dir;
	int r;

	if (fd < 0 || fstat(fd, &st) || stat(dirname(real), &dir))
		r = fault(why, -errno, "%s: %s (uid %u)", path, strerror(errno),
			  (unsigned int)geteuid());
	else if (!S_ISREG(st.st_mode))
		r = fault(why, -EINVAL, "%s: not a regular file", path);
	else
		r = check_owner(&st, path, why) ?: check_owner(&dir, real, why);
	free(real);
	if (r && fd >= 0)
		close(fd);
	return r ?: fd;
}

/* The text of FD, which the caller frees.  NULL: it cannot be read, or is too large. */
static char *file_read(int fd, size_t *ret_len)
{
	char *text = allocated(malloc(CONFIG_FILE_MAX + 2)); /* one byte too many, and a NUL */
	size_t len = 0;
	ssize_t n;

	while ((n = read(fd, text + len, CONFIG_FILE_MAX + 1 - len)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	*ret_len = len;
	if (n >= 0 && len <= CONFIG_FILE_MAX)
		return text;
	free(text);
	return NULL;
}

/* Leave MARK and WRONG to include_write(). */
static void disarm(char *text, size_t len)
{
	for (char *end = text + len; text < end; text++)
		if (*text == *MARK || *text == *WRONG)
			*text = '\1'; /* which config_next_line() refuses */
}

/* Nobody else may put PATH, which may be a link, where it is. */
static int include_check(const char *path, char why[WHY_LEN])
{
	char *copy = allocated(strdup(path));
	struct stat st = { 0 }, dir = { 0 };
	int r = 0;

	for (const char *at = path; *at && !r; at++)
		if ((unsigned char)*at < ' ')
			r = fault(why, -EINVAL, "a control character in a file name");
	if (!r && (lstat(path, &st) || stat(dirname(copy), &dir)))
		r = fault(why, -errno, "%s: %s", path, strerror(errno));
	if (!r && S_ISLNK(st.st_mode) && st.st_uid && st.st_uid != geteuid())
		r = fault(why, -EPERM, "%s: a link of uid %u", path, (unsigned int)st.st_uid);
	r = r ?: check_owner(&dir, copy, why);
	free(copy);
	return r;
}

/* Write the file PATH to TO.  0 or -errno. */
static int include_one(FILE *to, const char *path, char why[WHY_LEN])
{
	int r = include_check(path, why), fd = r ? r : file_open_one(path, why);
	size_t len = 0;
	char *text = fd < 0 ? NULL : file_read(fd, &len);

	if (fd < 0)
		return fd;
	close(fd);
	if (!text)
		return fault(why, -EINVAL, "%s: cannot be read, or has more than %d bytes", path,
			     CONFIG_FILE_MAX);
	disarm(text, len);
	fprintf(to, MARK "0 %s\n", path);
	fwrite(text, 1, len, to);
	fputc('\n', to);
	free(text);
	return 0;
}

/* No file fits PATH: that is fine if the folder before its first wildcard can be read. */
static int include_none(FILE *to, char *path, char why[WHY_LEN])
{
	char *wildcard = strpbrk(path, "*?[");
	int fd;

	if (!wildcard)
		return include_one(to, path, why); /* which says why */
	while (wildcard > path + 1 && wildcard[-1] != '/')
		wildcard--;
	*wildcard = '\0';
	fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	if (fd < 0)
		return fault(why, -errno, "%s: %s", path, strerror(errno));
	close(fd);
	return 0;
}

/* Write the files of PATTERN, which line NUMBER of the file FIRST includes, to TO. */
static void include_all(FILE *to, const char *first, unsigned int number, const char *pattern)
{
	char *copy = allocated(strdup(first)), *path, why[WHY_LEN], escaped[WHY_LEN];
	bool whole = *pattern == '/';
	glob_t found = { 0 };
	size_t i = 0;
	int r = asprintf(&path, "%s%s%s", whole ? "" : dirname(copy), whole ? "" : "/", pattern);

	path = allocated(r < 0 ? NULL : path);
	r = glob(path, 0, NULL, &found);
	do {
		if (r == GLOB_NOMATCH)
			r = include_none(to, path, why);
		else if (r)
			r = fault(why, -EIO, "%s: cannot be read", path);
		else
			r = include_one(to, found.gl_pathv[i], why);
		if (r) /* a name may have a newline */
			fprintf(to, MARK "%u %s\n" WRONG "%s\n", number - 1, first,
				log_escape(why, escaped, sizeof(escaped)));
		r = 0;
	} while (++i < found.gl_pathc);
	globfree(&found);
	free(path);
	free(copy);
}

/* The files that LINE, of the file FIRST, includes; NULL: it includes none.  Changes LINE. */
static const char *include_pattern(char *line)
{
	char *key;

	line[strcspn(line, "\r")] = '\0';
	line = without_comment(line);
	key = trim(strsep(&line, "=:"));
	return line && !strcmp(key, "include") ? trim(line) : NULL;
}

/* Write TEXT, LEN bytes of the file FIRST, with all that it includes to FD.  0 or -errno. */
static int include_write(int fd, const char *first, char *text, size_t len)
{
	char *out = NULL;
	size_t written = 0;
	FILE *to = open_memstream(&out, &written);
	unsigned int number = 0;
	const char *pattern;
	int r = to ? 0 : -ENOMEM;

	disarm(text, len);
	for (char *line; !r && (line = strsep(&text, "\n"));) {
		number++;
		fprintf(to, "%s\n", line);
		pattern = include_pattern(line);
		if (pattern) {
			include_all(to, first, number, pattern);
			fprintf(to, MARK "%u %s\n", number, first);
		}
	}
	if (to && fclose(to) && !r)
		r = -ENOMEM;
	if (!r && write(fd, out, written) != (ssize_t)written)
		r = -ENOSPC;
	free(out);
	return r;
}

int config_file_open(const char *path)
{
	char why[WHY_LEN], *text;
	int fd = file_open_one(path, why), all, r;
	size_t len = 0;

	if (fd < 0)
		return log_complain(fd, "%s", why);
	text = file_read(fd, &len);
	lseek(fd, 0, SEEK_SET);
	/* most files include none, and are read as they are; the reader complains of bad ones */
	if (!text || strlen(text) < len ||
	    (!strstr(text, "include") && !strpbrk(text, MARK WRONG))) {
		free(text);
		return fd;
	}
	all = memfd_create("culvert.conf", MFD_CLOEXEC);
	r = all < 0 ? -errno : include_write(all, path, text, len);
	free(text);
	close(fd);
	if (!r)
		lseek(all, 0, SEEK_SET);
	else if (all >= 0)
		close(all);
	return r ?: all;
}

void config_reader_open(struct config_reader *r, int fd, struct config *c)
{
	int own = fd < 0 ? config_file_open(c->file) : -1, from = fd < 0 ? own : fd;
	ssize_t n = 0;
	size_t len = 0;

	*r = (struct config_reader){ .c = c, .file = c->file, .error = from < 0 ? from : 0 };
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
	c->text = allocated(strdup(r->text));
	config_reader_begin(r);
}

void config_reader_begin(struct config_reader *r)
{
	r->rest = r->text + (strncmp(r->text, BOM, strlen(BOM)) ? 0 : strlen(BOM));
}

int config_file_control(const char *path, char **ret)
{
	struct config c = { .file = path };
	struct config_reader r;
	bool global = false;
	char *line, *text;

	*ret = NULL;
	config_reader_open(&r, -1, &c);
	text = r.text;
	while (!*ret && (line = config_next_line(&r))) {
		line = without_comment(line);
		if (*line == '[')
			global = !strcmp(line, "[culvert]");
		else if (global && !strcmp(trim(strsep(&line, "=:")), "control") && line)
			*ret = allocated(strdup(trim(line)));
	}
	free(text);
	config_close(&c);
	return r.error;
}
