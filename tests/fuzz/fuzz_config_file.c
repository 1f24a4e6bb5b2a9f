// SPDX-License-Identifier: BSD-2-Clause
/*
 * The configuration file (user/config/config_file.c, option_value.c): any bytes.  A mistake is said in one
 * line that names the file and, but for what no line is to blame for, a line that it has.  What is
 * taken is within bounds, each forward is whole, and there is one for each of its headers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/file.h"
#include "fuzz.h"

#define PATH "fuzz.conf"

static unsigned long lines_of(const uint8_t *data, size_t size)
{
	unsigned long n = 1;

	for (size_t i = 0; i < size; i++)
		n += data[i] == '\n';
	return n;
}

static void check_mistake(int r, unsigned long lines)
{
	const char *text = said(), *at = strstr(text, PATH ":");
	size_t len = strlen(text);

	must(r == -EINVAL, "%d", r);
	must(len && strcspn(text, "\n") == len - 1, "not one line: %s", text);
	must(is_printable(text, true), "%s", text);
	must(at, "no file: %s", text);
	/* cppcheck-suppress nullPointerArithmeticRedundantCheck ; must() does not return */
	must(strtoul(at + strlen(PATH ":"), NULL, 10) >= 1 &&
	     strtoul(at + strlen(PATH ":"), NULL, 10) <= lines + 1, "line of %lu: %s", lines, text);
}

/*
 * Lines that inih takes for a section, as it sees them: behind a byte order mark and any white
 * space.  *RET_GLOBAL: how many of them are [culvert].
 */
static size_t count_headers(const uint8_t *data, size_t size, size_t *ret_global)
{
	size_t n = 0, at = size >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0;

	*ret_global = 0;
	while (at < size) {
		const uint8_t *line = data + at, *end = memchr(line, '\n', size - at);
		size_t len = end ? (size_t)(end - line) : size - at;

		at += len + 1;
		while (len && memchr(" \t\r\v\f", *line, 5)) {
			line++;
			len--;
		}
		n += len && *line == '[';
		*ret_global += len >= 9 && !memcmp(line, "[culvert]", 9);
	}
	return n;
}

/* No section is overlooked, and none is made up. */
static void check_sections(const uint8_t *data, size_t size, const struct config_text *text)
{
	size_t global, n = count_headers(data, size, &global);

	must(global <= 1, "[culvert] %zu times", global);
	must(n == text->n + global, "%zu headers, %zu forwards", n, text->n);
}

/* What it says is within bounds; what it does not say is untouched. */
static void check_own(const struct forward_text *t)
{
	const struct { const char *name; uint64_t n, least, most; } own[] = {
		{ "engine", t->own.engine, ENGINE_AUTO, ENGINE_COPY },
		{ "connect-timeout", t->own.connect_timeout_ms, 1, 24 * 3600 * 1000 },
		{ "copy-buffer", t->own.copy_buffer, 1 << 10, 16 << 20 },
		{ "accept-rate", t->own.accept_rate, 0, 1000000 },
		{ "bandwidth", t->own.bandwidth, 0, UINT64_C(1) << 37 },
		{ "bandwidth-per-client", t->own.bandwidth_per_client, 0, UINT64_C(1) << 37 },
		{ "idle-timeout", t->own.idle_timeout_ms, 0, 7 * 24 * 3600 * 1000 },
		{ "fin-timeout", t->own.fin_timeout_ms, 0, 7 * 24 * 3600 * 1000 },
		{ "resolve-interval", t->own.resolve_interval_ms, 100, 24 * 3600 * 1000 },
		{ "soft-limit", t->own.soft_limit, 4 << 10, 1 << 30 },
		{ "nodelay", t->own.nodelay, 0, 1 },
		{ "keepalive", t->own.keepalive_s, 0, 32767 },
		{ "max-sessions", t->own.max_sessions, 1, 1000000 },
		{ "max-sessions-per-client", t->own.max_sessions_per_client, 0, 1000000 },
		{ "proxy-protocol", t->own.proxy_protocol, 0, 5 },
		{ "proxy-timeout", t->own.proxy_timeout_ms, 1, 24 * 3600 * 1000 },
		{ "hard-limit", t->own.hard_limit, 4 << 10, 1 << 30 },
	};

	must(!t->own.acl.n == (!t->lines[option_number(option_find("allow", 5))] &&
			       !t->lines[option_number(option_find("deny", 4))]), "rules");
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		size_t at = option_number(option_find_key(own[i].name, true));
		bool said_so = t->lines[at];

		must(!said_so || t->lines[at] > t->line, "%s: line", own[i].name);
		must(said_so ? own[i].n >= own[i].least && own[i].n <= own[i].most : !own[i].n,
		     "%s: %llu", own[i].name, (unsigned long long)own[i].n);
	}
}

static void check_forwards(const struct config_text *text)
{
	for (size_t i = 0; i < text->n; i++) {
		const struct forward_text *t = &text->forwards[i];

		must(t->name && t->name[0] && t->listen && t->listen[0] && t->upstream &&
		     t->upstream[0], "a forward with holes");
		must(t->line < t->listen_line && t->line < t->upstream_line, "lines");
		check_own(t);
		for (size_t k = 0; k < i; k++)
			must(strcmp(text->forwards[k].name, t->name), "%s twice", t->name);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config_text text = { 0 };
	struct config c = { 0 };
	FILE *f;
	int r;

	if (!size)
		return 0;
	f = fmemopen((void *)data, size, "r");
	if (!f)
		abort();
	said_clear();
	r = config_file_parse(f, PATH, &c, &text);
	fclose(f);
	if (r) {
		check_mistake(r, lines_of(data, size));
	} else {
		must(!said()[0], "taken, but: %s", said());
		check_sections(data, size, &text);
		check_forwards(&text);
	}
	config_text_close(&text);
	config_close(&c);
	return 0;
}
