// SPDX-License-Identifier: BSD-2-Clause
#include "config/config_reader.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/log.h"

#define BOM "\xef\xbb\xbf" /* which editors put before UTF-8 */

__attribute__((format(printf, 3, 0)))
static void say_mistake(struct config_reader *r, unsigned int line, const char *fmt, va_list ap)
{
	char text[OPTION_WRONG_LEN + 64], at[CONFIG_PLACE_LEN];

	if (r->error)
		return;
	vsnprintf(text, sizeof(text), fmt, ap);
	r->error = log_complain(-EINVAL, "%s%s", config_place(r->path, line, at), text);
}

void config_mistake(struct config_reader *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say_mistake(r, r->line, fmt, ap);
	va_end(ap);
}

void config_mistake_at(struct config_reader *r, unsigned int line, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say_mistake(r, line, fmt, ap);
	va_end(ap);
}

void config_no_memory(struct config_reader *r)
{
	if (!r->error)
		r->error = log_complain(-ENOMEM, "out of memory");
}

/* --- lines --- */

/* The bytes of the next line and its end, up to ROOM: how many. */
static size_t read_bytes(struct config_reader *r, char *buf, size_t room)
{
	size_t n = 0;
	int ch = 0;

	while (n < room && ch != '\n' && (ch = getc(r->f)) != EOF) {
		if (!ch)
			config_mistake(r, "a NUL byte");
		buf[n++] = (char)ch;
	}
	if (ch == EOF && ferror(r->f) && !r->error)
		r->error = log_complain(-EIO, "%s: cannot be read: %s", r->path, strerror(errno));
	if (n == room && ch != '\n')
		config_mistake(r, "the line has more than %zu bytes", room - 1);
	r->bytes += n;
	if (r->bytes > CONFIG_FILE_MAX)
		config_mistake(r, "the file has more than %d bytes", CONFIG_FILE_MAX);
	return n;
}

static bool has_control_character(const char *line)
{
	for (const char *c = line; *c; c++)
		if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
			return true;
	return false;
}

bool config_next_line(struct config_reader *r, char *buf, size_t size)
{
	size_t n;

	if (r->error)
		return false;
	r->line++;
	n = read_bytes(r, buf, size - 1);
	if (!n || r->error)
		return false;
	while (n && strchr("\r\n", buf[n - 1]))
		n--;
	buf[n] = '\0';
	if (r->line == 1 && !strncmp(buf, BOM, strlen(BOM)))
		memmove(buf, buf + strlen(BOM), n + 1 - strlen(BOM));
	if (has_control_character(buf))
		config_mistake(r, "a control character");
	if (!strncmp(buf, BOM, strlen(BOM)))
		config_mistake(r, "a byte order mark that is not the file's first character");
	return !r->error;
}

/* --- what they say --- */

struct forward_text *config_find_forward(const struct config_text *text, const char *name)
{
	for (size_t i = 0; i < text->n; i++)
		if (text->forwards[i].name && !strcmp(text->forwards[i].name, name))
			return &text->forwards[i];
	return NULL;
}

struct forward_text *config_add_forward(struct config_reader *r, const char *name)
{
	const char *kept = config_keep(r->c, name);
	struct forward_text *t = kept ? config_text_add(r->text) : NULL;

	if (!t) {
		config_no_memory(r);
		return NULL;
	}
	t->name = kept;
	t->file = r->path;
	t->line = r->line;
	return t;
}

void config_take(struct config_reader *r, unsigned int line, struct forward_text *t,
		 const struct option_def *o, const char *key, const char *value)
{
	char wrong[OPTION_WRONG_LEN];
	int error = config_text_take(r->c, r->text, t, o, value, line, wrong);

	if (error == -ENOMEM)
		config_no_memory(r);
	else if (error)
		config_mistake_at(r, line, "%s: %s", key, wrong);
}
