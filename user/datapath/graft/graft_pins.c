// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  Maps and links are pinned in a folder of a BPF file system, so the programs
 * go on when the daemon ends.  The next daemon loads its own programs, gives them the old maps, and
 * puts them into the links in place of the old programs.  A daemon locks its folder.  The folder's
 * name has the number of the layout: a daemon leaves other versions' pins alone, see
 * docs/operations.md.
 */
#include "datapath/graft/graft_pins.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "graft_contract.h"

SYSCALLS_ALLOWED(
	BPF_IF(PART_GRAFT, BPF_OBJ_PIN), BPF_IF(PART_GRAFT, BPF_OBJ_GET),
	SYSCALL_IF(PART_GRAFT, unlinkat), SYSCALL_IF(PART_GRAFT, close),
	SYSCALL_IF(PART_GRAFT, flock));

/* The maps that outlive the daemon. */
static const char *const pinned[] = { "grafts",     "udp_flows",   "tuples",
				      "interfaces", "graft_rings", NULL };

static const char *pins_path(const struct graft_pins *p, const char *name, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/%s", p->folder, name);
	return path;
}

/* Make the folder AT for UID alone. */
static int pins_make_folder(const char *at, uid_t uid)
{
	struct stat st;

	if ((mkdir(at, 0700) && errno != EEXIST) || lstat(at, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode)) /* a link may lead anywhere */
		return -ENOTDIR;
	if ((st.st_uid != uid && chown(at, uid, (gid_t)-1)) ||
	    (st.st_mode & 077 && chmod(at, 0700)))
		return -errno;
	return 0;
}

/* bpftool and tc mount the BPF file system if it is missing at its usual place: do the same. */
static int pins_mount(const char *top)
{
	static const char usual[] = "/sys/fs/bpf";
	struct statfs fs;

	if (strncmp(top, usual, strlen(usual)) != 0 || statfs(usual, &fs) ||
	    fs.f_type == BPF_FS_MAGIC)
		return 0;
	if (mount("bpf", usual, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700"))
		return -EMEDIUMTYPE;
	/* `ip netns exec` begins a mount namespace, which ends with the daemon */
	log_info("graft: mounted the BPF file system at %s: grafted sessions outlive the daemon as long "
		 "as its mount namespace exists",
		 usual);
	return 0;
}

int graft_pins_lock(const struct graft_pins *p)
{
	return p->folder && flock(p->fd, LOCK_EX | LOCK_NB) ? -errno : 0;
}

void graft_pins_unlock(const struct graft_pins *p)
{
	if (p->folder)
		flock(p->fd, LOCK_UN);
}

int graft_pins_open(struct graft_pins *p, const char *folder, uid_t uid, bool locks_later)
{
	struct stat st = { 0 };
	struct statfs fs;
	char *top;
	int r;

	*p = (struct graft_pins){ .uid = uid == geteuid() ? (uid_t)-1 : uid, .top = -1, .fd = -1 };
	if (!folder)
		return 0;
	p->folder = allocated(malloc(PATH_MAX));
	snprintf(p->folder, PATH_MAX, "%s_%d", folder, GRAFT_LAYOUT);
	top = allocated(strdup(folder));
	*strrchr(top, '/') = '\0';
	r = pins_mount(top) ?: pins_make_folder(top, uid);
	if (!r && (statfs(top, &fs) || fs.f_type != BPF_FS_MAGIC))
		r = -EMEDIUMTYPE;
	r = r ?: pins_make_folder(p->folder, uid);
	if (!r && ((p->top = open(top, O_DIRECTORY | O_PATH | O_CLOEXEC)) < 0 ||
		   (p->fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
		   fstat(p->fd, &st)))
		r = -errno;
	p->number = st.st_ino;
	if (!r && !locks_later)
		r = graft_pins_lock(p);
	free(top);
	if (r)
		graft_pins_close(p, false);
	return r;
}

/* Remove the folder NAME of TOP, and all that is in it, unless a daemon has locked it. */
static void pins_remove_folder(int top, const char *name)
{
	int fd = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *dir = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) ? NULL : fdopendir(fd);

	for (const struct dirent *e; dir && (e = readdir(dir));)
		unlinkat(fd, e->d_name, 0);
	if (dir && !unlinkat(top, name, AT_REMOVEDIR))
		log_info("graft: %s is removed", name);
	if (dir)
		closedir(dir);
	else if (fd >= 0)
		close(fd);
}

void graft_pins_remove_others(const struct graft_pins *p)
{
	const char *own = strrchr(p->folder, '/') + 1;
	int top = openat(p->top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = top < 0 ? NULL : fdopendir(top);
	size_t n = (size_t)(strrchr(own, '_') - own) + 1;

	for (const struct dirent *e; dir && (e = readdir(dir));)
		if (!strncmp(e->d_name, own, n) && strcmp(e->d_name, own) &&
		    strspn(e->d_name + n, "0123456789") == strlen(e->d_name + n))
			pins_remove_folder(top, e->d_name);
	if (dir)
		closedir(dir);
}

void graft_pins_close(struct graft_pins *p, bool remove)
{
	for (const char *const *name = pinned; remove && *name; name++)
		graft_pins_remove(p, *name);
	/* the folder stays if it has links of interfaces that an earlier daemon has lost */
	if (remove && p->folder && unlinkat(p->top, strrchr(p->folder, '/') + 1, AT_REMOVEDIR))
		log_warning("graft: %s is not removed: %s", p->folder, strerror(errno));
	if (p->top >= 0)
		close(p->top);
	if (p->fd >= 0)
		close(p->fd);
	free(p->folder);
	*p = (struct graft_pins){ .top = -1, .fd = -1 };
}

int graft_pins_get(const struct graft_pins *p, const char *name)
{
	char path[PATH_MAX];
	int fd;

	if (!p->folder)
		return -ENOENT;
	fd = bpf_obj_get(pins_path(p, name, path));
	return fd < 0 ? -errno : fd;
}

/* Pins belong to the account, which may start the next daemon. */
static int pins_own(const struct graft_pins *p, const char *name)
{
	return p->uid != (uid_t)-1 && fchownat(p->fd, name, p->uid, (gid_t)-1, 0) ? -errno : 0;
}

int graft_pins_put(const struct graft_pins *p, const char *name, int fd)
{
	char path[PATH_MAX];

	if (!p->folder)
		return 0;
	graft_pins_remove(p, name);
	return bpf_obj_pin(fd, pins_path(p, name, path)) ?: pins_own(p, name);
}

void graft_pins_remove(const struct graft_pins *p, const char *name)
{
	if (p->folder)
		unlinkat(p->fd, name, 0);
}

int graft_pins_choose(const struct graft_pins *p, const struct bpf_object *o)
{
	char path[PATH_MAX];
	bool whole = true;
	int r = 0;

	for (const char *const *name = pinned; p->folder && *name; name++)
		whole = whole && !faccessat(p->fd, *name, F_OK, 0);
	for (const char *const *name = pinned; p->folder && !r && *name; name++) {
		if (!whole)
			graft_pins_remove(p, *name);
		r = bpf_map__set_pin_path(bpf_object__find_map_by_name(o, *name),
					  pins_path(p, *name, path));
	}
	return r;
}

int graft_pins_own(const struct graft_pins *p)
{
	int r = 0;

	for (const char *const *name = pinned; p->folder && !r && *name; name++)
		r = pins_own(p, *name);
	return r;
}
