/* SPDX-License-Identifier: BSD-2-Clause */
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "leaks.h"

static unsigned int map_id(pid_t pid, const char *fd)
{
	char path[80], line[128];
	unsigned int id = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%.16s", (int)pid, fd);
	f = fopen(path, "re");
	while (f && !id && fgets(line, sizeof(line), f))
		if (sscanf(line, "map_id: %u", &id) != 1)
			id = 0;
	if (f)
		fclose(f);
	return id;
}

static bool of_sessions(const struct bpf_map_info *info)
{
	return info->type == BPF_MAP_TYPE_SOCKMAP || info->type == BPF_MAP_TYPE_SOCKHASH ||
	       (info->type == BPF_MAP_TYPE_HASH && !strcmp(info->name, "slots"));
}

/* A sockmap lists every index; what is in use is what can be looked up. */
static int64_t count_entries(int fd)
{
	char key[8], next[8], value[64];
	int64_t n = 0;
	void *at = NULL;

	while (!bpf_map_get_next_key(fd, at, next)) {
		memcpy(key, next, sizeof(key));
		at = key;
		n += !bpf_map_lookup_elem(fd, key, value);
	}
	return n;
}

static int64_t count_map(unsigned int id)
{
	struct bpf_map_info info = { 0 };
	__u32 len = sizeof(info);
	int fd = bpf_map_get_fd_by_id(id);
	int64_t n = 0;

	if (fd < 0)
		return -errno;
	if (bpf_obj_get_info_by_fd(fd, &info, &len))
		n = -errno;
	else if (of_sessions(&info))
		n = count_entries(fd);
	close(fd);
	return n;
}

int64_t leaks_map_entries(pid_t pid)
{
	char path[64];
	struct dirent *e;
	int64_t sum = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo", (int)pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while (sum >= 0 && (e = readdir(dir))) {
		unsigned int id = e->d_name[0] == '.' ? 0 : map_id(pid, e->d_name);
		int64_t n = id ? count_map(id) : 0;

		sum = n < 0 ? n : sum + n;
	}
	closedir(dir);
	return sum;
}
