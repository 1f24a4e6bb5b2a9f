// SPDX-License-Identifier: BSD-2-Clause
#include "config/config_control.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/config_file.h"

/* For inih, which goes on whatever is returned. */
static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	char **ret = arg;

	if (!*ret && value && *value && !strcmp(section, "culvert") && !strcmp(key, "control"))
		*ret = strdup(value);
	return 1;
}

int config_control(const char *path, char **ret)
{
	FILE *f = NULL;
	int r;

	*ret = NULL;
	r = config_file_open(path, &f);
	if (r)
		return r;
	ini_parse_file(f, on_key, ret); /* lines that are wrong are passed over */
	fclose(f);
	if (!*ret)
		*ret = strdup(CONFIG_CONTROL_DEFAULT);
	return *ret ? 0 : -ENOMEM;
}
