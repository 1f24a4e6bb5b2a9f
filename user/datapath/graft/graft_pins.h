/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct bpf_object;

/*
 * A folder on a BPF file system, where maps and links of the packet programs outlive the daemon.
 * Without one nothing is found there, and whatever is to be pinned or removed is no error.
 */
struct graft_pins {
	char *folder; /* NULL: there is none */
	uid_t uid;    /* to be the owner of what is pinned; -1: we are */
	int top;      /* the folder that it is in, for when there is no root any more; or -1 */
	int fd;       /* the folder, which is locked; or -1 */
};

/*
 * Make the folder FOLDER_LAYOUT, and the one that it is in, for UID, who alone may use what is in
 * them; and mount the BPF file system where it is missing.  NULL: none is wanted.  -EWOULDBLOCK:
 * another daemon uses it; -EMEDIUMTYPE: no BPF file system is there; -errno.  Then there is none.
 */
int graft_pins_open(struct graft_pins *p, const char *folder, uid_t uid);
/* REMOVE: the maps too, and the folder, if nothing else is in it. */
void graft_pins_close(struct graft_pins *p, bool remove);

/* A descriptor, or -errno. */
int graft_pins_get(const struct graft_pins *p, const char *name);
/* Pin FD, instead of what was left under that name.  -errno. */
int graft_pins_put(const struct graft_pins *p, const char *name, int fd);
void graft_pins_remove(const struct graft_pins *p, const char *name);

/*
 * Before O is loaded, which then uses the maps that were left, of the same size; or pins its own,
 * if one of them is missing.
 */
int graft_pins_choose(const struct graft_pins *p, const struct bpf_object *o);
/* Once it is loaded: give its maps to UID. */
int graft_pins_own(const struct graft_pins *p);
