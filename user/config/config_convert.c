// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: whatever form a file has, its reader keeps what it says as keys and values
 * (config_text.h), in order.  Written out these are a file with sections.  Some texts, such as a
 * name of 200 characters, fit into a rinetd.conf and not into a line of ours: inih has room for so
 * much.  They are refused where they stand.  What has been written is read again before anybody
 * sees it, whatever else might be wrong with it.
 */
#include "config/config_convert.h"

#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_codes.h"
#include "base/log.h"
#include "config/config_file.h"

#define COMMENT_LEN 180

/* As one line that is short enough to be read again. */
static void write_comment(FILE *to, const char *comment)
{
	char text[COMMENT_LEN];

	fprintf(to, "; %s\n", log_escape(comment, text, sizeof(text)));
}

static void write_lines(FILE *to, const struct config_lines *said)
{
	for (size_t i = 0; i < said->n; i++)
		fprintf(to, "%s = %s\n", said->lines[i].option->name, said->lines[i].value);
}

static void write_notes(FILE *to, const struct config_lines *notes)
{
	char comment[2 * COMMENT_LEN];

	for (size_t i = 0; i < notes->n; i++) {
		snprintf(comment, sizeof(comment), "line %u: %s", notes->lines[i].line,
			 notes->lines[i].value);
		write_comment(to, comment);
	}
}

void config_convert_write(FILE *to, const char *file, const struct config_text *text)
{
	char comment[2 * COMMENT_LEN];

	snprintf(comment, sizeof(comment), "%.140s, as `culvert convert` reads it%s", file,
		 text->is_rinetd ? ": a rinetd.conf" : "");
	write_comment(to, comment);
	write_notes(to, &text->notes);
	if (text->said.n) {
		fputs("\n[culvert]\n", to);
		write_lines(to, &text->said);
	}
	for (size_t i = 0; i < text->n; i++) {
		const struct forward_text *t = &text->forwards[i];

		fprintf(to, "\n[forward %s]\nlisten = %s\nupstream = %s\n", t->name, t->listen,
			t->upstream);
		write_lines(to, &t->said);
	}
}

/* LINE of FILE says that KEY is VALUE: does a line of ours hold it? */
static int check_line(const char *file, unsigned int line, const char *key, const char *value)
{
	size_t len = strlen(key) + strlen(" = ") + strlen(value);
	char at[CONFIG_PLACE_LEN];

	if (len < INI_MAX_LINE)
		return 0;
	return log_complain(-EINVAL, "%s\"%s = ...\" would be a line of %zu bytes, and one in a "
			    "file with sections has at most %d: run culvert with this file as it "
			    "is", config_place(file, line, at), key, len, INI_MAX_LINE - 1);
}

static int check_lines(const char *file, const struct config_lines *said)
{
	int r = 0;

	for (size_t i = 0; !r && i < said->n; i++)
		r = check_line(file, said->lines[i].line, said->lines[i].option->name,
			       said->lines[i].value);
	return r;
}

static int check_all_lines(const char *file, const struct config_text *text)
{
	int r = check_lines(file, &text->said);

	for (size_t i = 0; !r && i < text->n; i++) {
		const struct forward_text *t = &text->forwards[i];

		r = check_line(file, t->listen_line ?: t->line, "listen", t->listen);
		r = r ?: check_line(file, t->upstream_line ?: t->line, "upstream", t->upstream);
		r = r ?: check_lines(file, &t->said);
	}
	return r;
}

/* Can it be read again?  Says what is wrong if not. */
static int check_written(char *written, size_t len)
{
	struct config_text text = { 0 };
	struct config c = { 0 };
	FILE *f = fmemopen(written, len, "r");
	int r = f ? config_file_parse(f, "(converted)", &c, &text) :
		    log_complain(-ENOMEM, "out of memory");

	if (f)
		fclose(f);
	config_text_close(&text);
	config_close(&c);
	return r;
}

static int write_all(const char *file, const struct config_text *text)
{
	char *written = NULL;
	size_t len = 0;
	FILE *to = open_memstream(&written, &len);
	bool is_whole = false;
	int r;

	if (to) {
		config_convert_write(to, file, text);
		is_whole = !ferror(to);
		is_whole = !fclose(to) && is_whole;
	}
	r = is_whole ? check_written(written, len) : log_complain(-ENOMEM, "out of memory");
	r = config_exit_code(r);
	if (!r && (fwrite(written, 1, len, stdout) != len || fflush(stdout)))
		r = log_complain(EXIT_CODE_FAILURE, "cannot write the result: %s",
				 strerror(errno));
	free(written);
	return r;
}

static int convert(const char *file, const struct config_text *text)
{
	int r = check_all_lines(file, text);

	if (r)
		return config_exit_code(r);
	if (!text->n)
		config_text_say_empty(file);
	return write_all(file, text);
}

int config_convert(int argc, char **argv)
{
	struct config_text text = { .may_be_empty = true }; /* as for `culvert check` */
	struct config c;
	int r;

	if (argc != 2 || argv[1][0] == '-') {
		log_complain(0, "expected: culvert convert FILE");
		return EXIT_CODE_USAGE;
	}
	r = config_parse_file(argv[1], &c, &text);
	r = r ? config_exit_code(r) : convert(argv[1], &text);
	config_text_close(&text);
	config_close(&c);
	return r;
}

void config_convert_help(void)
{
	puts("Usage: culvert convert FILE\n"
	     "\n"
	     "Read a configuration file, which may be a rinetd.conf, as\n"
	     "`culvert run --config FILE` would, and print what it says as a file with sections.\n"
	     "Its comments are lost; what is worth knowing about the conversion is in new ones.\n"
	     "\n"
	     "Exit code: as of `culvert check`.");
}
