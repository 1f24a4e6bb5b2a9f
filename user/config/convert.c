// SPDX-License-Identifier: BSD-2-Clause
#include "config/convert.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "config/foreign.h"

#define BOM "\xef\xbb\xbf"

bool convert_is(const char *text)
{
	text += strncmp(text, BOM, strlen(BOM)) ? 0 : strlen(BOM);
	return haproxy_is(text) || nginx_is(text);
}

int convert_text(FILE *to, const char *file, char *text)
{
	const char *wrong;
	struct foreign f;
	char name[180];
	bool haproxy;
	int r;

	text += strncmp(text, BOM, strlen(BOM)) ? 0 : strlen(BOM);
	haproxy = haproxy_is(text);
	foreign_open(&f, log_escape(file, name, sizeof(name)), strlen(text));
	wrong = haproxy ? haproxy_convert(&f, text) : nginx_convert(&f, text);
	r = wrong ? log_complain(-EINVAL, "%s: %s", name, wrong) : foreign_try(&f);
	if (r >= 0) {
		fprintf(to, "; %s, as `culvert convert` reads it: %s\n\n", name,
			haproxy ? "of HAProxy" : "of nginx");
		foreign_write(&f, to);
		r = r ? f.lost : log_complain(-EINVAL, "%s: nothing to convert", name);
	}
	foreign_close(&f);
	return r;
}
