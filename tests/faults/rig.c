/* SPDX-License-Identifier: BSD-2-Clause */
/* A daemon that serves the lanes, and the question whether it is as it was before. */
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../flow/env.h"
#include "lanes.h"
#include "rig.h"

#define IDLE_MS 12000
/* How long the first look-up of a name may take while nothing is disturbed yet. */
#define NAMES_MS 30000

int rig_errors(struct rig *rig, int64_t *ret)
{
	struct json_object *o = NULL, *errors;
	int r = daemon_query(rig->d, "status", 5000, &o);

	*ret = 0;
	errors = r ? NULL : json_at(o, "errors");
	if (errors) {
		json_object_object_foreach(errors, key, value) {
			(void)key;
			*ret += json_object_get_int64(value);
		}
		rig->pid = json_int(o, "pid");
	}
	json_object_put(o);
	return r;
}

/* In a directory of root's, or the daemon would not believe it. */
static int write_configuration(char *path, size_t len)
{
	FILE *f;

	snprintf(path, len, "%s/sessions.log", env_dir());
	unlink(path); /* of the daemon before */
	snprintf(path, len, "%s/lanes.conf", env_dir());
	if (chown(env_dir(), 0, 0))
		return -errno;
	f = fopen(path, "we");
	if (!f)
		return -errno;
	fprintf(f, "[culvert]\nsession-log = %s/sessions.log\n", env_dir());
	lanes_configuration(f);
	/* refused: all that checks do happens in each batch, and no lane sees them */
	fprintf(f, "[forward checked]\nlisten = 127.0.0.1:9300\nupstream = 127.0.0.1:9301\n"
		   "check = 0.01\n");
	return fclose(f) ? -errno : 0;
}

static bool are_known(struct json_object *forwards)
{
	size_t n = json_object_array_length(forwards);

	for (size_t i = 0; i < n; i++) {
		struct json_object *f = json_object_array_get_idx(forwards, i);

		if (!json_object_array_length(json_at(f, "addresses")))
			return false;
	}
	return n > 0;
}

/*
 * "culvert: ready" does not wait for names.  A fault that is made before the first look-up has
 * ended strikes that, too: its packets get lost, and sessions wait until it is begun again.  (To
 * attach the program that disturbs packets is enough: while lo changes its qdiscs, what is sent is
 * dropped.)
 */
static int await_names(struct rig *rig)
{
	int64_t deadline = now_ms() + NAMES_MS;

	while (now_ms() < deadline) {
		struct json_object *o = NULL;
		int r = daemon_query(rig->d, "status", 5000, &o);
		bool known = !r && are_known(json_at(o, "forwards"));

		json_object_put(o);
		if (r || known)
			return r;
		poll(NULL, 0, 5);
	}
	return -ETIMEDOUT;
}

int rig_start(struct rig *rig, const char *culvert, const char *engine, const char *const *options)
{
	const char *args[21] = { "--workers",    "2",    "--soft-limit",      "100K",
				 "--hard-limit", "200K", "--connect-timeout", "10",
				 "--config" };
	struct daemon_conf conf = { .culvert = culvert, .engine = engine, .args = args };
	char why[1000] = "", path[128];
	int64_t errors;
	int n = 9, r = write_configuration(path, sizeof(path));

	if (r) {
		fprintf(stderr, "FAIL: %s: %s\n", path, strerror(-r));
		return r;
	}
	args[n++] = path;
	while (options && *options && n < 20)
		args[n++] = *options++;
	r = daemon_start(&conf, &rig->d, why, sizeof(why));
	if (!r) {
		r = rig_errors(rig, &errors) ?: await_names(rig);
		if (r)
			snprintf(why, sizeof(why), "status, or the addresses of a name: %s",
				 strerror(-r));
	}
	if (r) {
		fprintf(stderr, "%s: engine %s: %s\n", r == -ENOTSUP ? "skip" : "FAIL", engine,
			why);
		rig_kill(rig);
	}
	return r;
}

void rig_show_warnings(struct rig *rig)
{
	char *log = rig->d ? daemon_stderr(rig->d) : NULL, *rest;

	for (char *line = log ? strtok_r(log, "\n", &rest) : NULL; line;
	     line = strtok_r(NULL, "\n", &rest))
		if (!strstr(line, " info: "))
			printf("     | %s\n", line);
	free(log);
}

void rig_show_broken_sessions(void)
{
	char path[128], *line = NULL;
	size_t size = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/sessions.log", env_dir());
	f = fopen(path, "re");
	while (f && getline(&line, &size, f) > 0)
		if (!strstr(line, "\"end\":\"finished\""))
			fprintf(stderr, "     | %s", line);
	free(line);
	if (f)
		fclose(f);
}

void rig_kill(struct rig *rig)
{
	if (rig->d)
		daemon_kill(rig->d);
	rig->d = NULL;
}

static bool is_idle(struct rig *rig, char *why, size_t len)
{
	int64_t deadline = now_ms() + IDLE_MS;
	int r;

	do {
		lanes_drain();
		if (daemon_check(rig->d, why, len))
			return false;
		r = daemon_wait_idle(rig->d, 300, why, len);
	} while (r && now_ms() < deadline);
	return !r;
}

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

/*
 * Count the entries of the daemon's maps that sessions use, from outside: the status cannot know of
 * one that the daemon has forgotten.  0 if the process has no such map.
 */
static int64_t map_entries(pid_t pid)
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

bool rig_clean(struct rig *rig, char *why, size_t len)
{
	struct batch batch;
	int64_t entries;

	if (!is_idle(rig, why, len))
		return false;
	entries = map_entries((pid_t)rig->pid);
	for (int i = 0; entries > 0 && i < 8; i++) {
		lanes_run(NULL, NULL, &batch);
		if (!is_idle(rig, why, len))
			return false;
		entries = map_entries((pid_t)rig->pid);
	}
	if (entries)
		snprintf(why, len, "leak: %lld entries in the maps", (long long)entries);
	return entries == 0;
}
