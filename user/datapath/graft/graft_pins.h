/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct bpf_object;

/*
 * A folder on a BPF file system, where maps and links of the packet programs outlive the daemon.
 * Without a folder nothing is found, and it is no error to pin or to remove.
 */
struct graft_pins {
	char *folder; /* NULL: there is none */
	uid_t uid;    /* the owner of the pins; -1: this process's account */
	int top;      /* the parent folder, for the time without root; or -1 */
	int fd;       /* the folder, which is locked; or -1 */
	ino_t number; /* of the folder */
};

/*
 * Make the folder FOLDER_LAYOUT and its parent, for UID alone, and mount the BPF file system where
 * it is missing.  FOLDER may be NULL: none.  LOCKS_LATER: the caller calls graft_pins_lock().
 * -EWOULDBLOCK: another daemon uses the folder; -EMEDIUMTYPE: no BPF file system is there; -errno.
 * Then there is no folder.
 */
int graft_pins_open(struct graft_pins *p, const char *folder, uid_t uid, bool locks_later);
/* Remove the folders of other layouts that no daemon uses: nobody has their sessions any more. */
void graft_pins_remove_others(const struct graft_pins *p);
/* -EWOULDBLOCK; -errno. */
int graft_pins_lock(const struct graft_pins *p);
void graft_pins_unlock(const struct graft_pins *p);
/* Unlock the folder.  REMOVE: remove the pins of the maps, and then the folder, if it is empty. */
void graft_pins_close(struct graft_pins *p, bool remove);

/* A descriptor, or -errno. */
int graft_pins_get(const struct graft_pins *p, const char *name);
/* Pin FD, in place of an old pin of that name.  -errno. */
int graft_pins_put(const struct graft_pins *p, const char *name, int fd);
void graft_pins_remove(const struct graft_pins *p, const char *name);

/*
 * Before O is loaded: let O use the maps that an earlier daemon has left, of the same size.  If one
 * is missing, O pins maps of its own.
 */
int graft_pins_choose(const struct graft_pins *p, const struct bpf_object *o);
/* After the load: give the maps to UID. */
int graft_pins_own(const struct graft_pins *p);
