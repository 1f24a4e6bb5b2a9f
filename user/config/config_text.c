// SPDX-License-Identifier: BSD-2-Clause
#include "config/config_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored: it is in t->forwards, and config_text_close() frees it */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

struct forward_text *config_text_add(struct config_text *t)
{
	struct forward_text *more = array_grow(t->forwards, t->n, sizeof(*more));

	if (!more)
		return NULL;
	t->forwards = more;
	memset(&more[t->n], 0, sizeof(*more));
	return &more[t->n++];
}

void config_text_close(struct config_text *t)
{
	for (size_t i = 0; i < t->n; i++) {
		acl_close(&t->forwards[i].own.acl);
		free(t->forwards[i].said.lines);
	}
	free(t->forwards);
	free(t->said.lines);
	free(t->notes.lines);
	*t = (struct config_text){ 0 };
}

static int lines_add(struct config_lines *l, const struct option_def *o, const char *value,
		     unsigned int line)
{
	struct config_line *more = realloc(l->lines, (l->n + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	l->lines = more;
	more[l->n++] = (struct config_line){ .option = o, .value = value, .line = line };
	return 0;
}

int config_text_take(struct config *c, struct config_text *text, struct forward_text *t,
		     const struct option_def *o, const char *value, unsigned int line, char *buf)
{
	unsigned int *given = &(t ? t->lines : text->lines)[option_number(o)];
	const char *kept = config_keep(c, value);
	int r;

	if (*given && !option_is_list(o)) {
		snprintf(buf, OPTION_WRONG_LEN, "given twice, first in line %u", *given);
		return -EINVAL;
	}
	*given = line;
	r = !kept ? -ENOMEM : t ? option_store_own(&t->own, o, kept) : option_store(c, o, kept);
	r = r ?: lines_add(t ? &t->said : &text->said, o, kept, line);
	if (!r || r == -ENOMEM)
		return r;
	option_wrong(o, r, value, buf);
	return -EINVAL;
}

int config_text_note(struct config *c, struct config_text *text, unsigned int line,
		     const char *note)
{
	const char *kept = config_keep(c, note);

	return kept ? lines_add(&text->notes, NULL, kept, line) : -ENOMEM;
}

void config_text_say_notes(const struct config_text *text, const char *file)
{
	char at[CONFIG_PLACE_LEN];

	for (size_t i = 0; i < text->notes.n; i++) {
		const struct config_line *l = &text->notes.lines[i];

		log_complain(0, "%snote: %s", config_place(file, l->line, at), l->value);
	}
}

void config_text_say_empty(const char *file)
{
	log_complain(0, "%s: warning: no forward here: give LISTEN UPSTREAM on the command line",
		     file);
}

const char *config_place(const char *file, unsigned int line, char *buf)
{
	const size_t room = CONFIG_PLACE_LEN - sizeof("...:4294967295: ");
	size_t len = line ? strlen(file) : 0;

	buf[0] = '\0';
	if (line)
		snprintf(buf, CONFIG_PLACE_LEN, "%s%s:%u: ", len > room ? "..." : "",
			 len > room ? file + len - room : file, line);
	return buf;
}

unsigned int config_option_line(const struct config *c, const char *name)
{
	return c->lines[option_number(option_find(name, strlen(name)))];
}

unsigned int forward_says(const struct forward_text *t, const char *name)
{
	return t->lines[option_number(option_find_key(name, true))];
}

const char *config_option_place(const struct config *c, const char *name, char *buf)
{
	unsigned int line = config_option_line(c, name);

	config_place(c->file, line, buf);
	if (!line && c->file)
		snprintf(buf, CONFIG_PLACE_LEN, "%.*s: ", CONFIG_PLACE_LEN - 3, c->file);
	return buf;
}
