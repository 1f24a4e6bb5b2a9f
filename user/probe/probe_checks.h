/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_CHECKS_H
#define CULVERT_PROBE_CHECKS_H

#include "probe/probe_rig.h"

/*
 * The checks of `culvert probe`, whose table in probe_list.c says what each is about.  They
 * return 0 or -errno; p->detail then says what was seen, or what failed.  The caller sets the
 * deadline before, and closes the rig after, each of them.
 */
/* probe_checks.c: entering the kernel and staying there, and the books */
int probe_check_load(struct probe *p);
int probe_check_loopback(struct probe *p);
int probe_check_insert(struct probe *p);
int probe_check_insert_after_fin(struct probe *p);
int probe_check_counters(struct probe *p);
int probe_check_events(struct probe *p);
int probe_check_redirect(struct probe *p);
int probe_check_early_bytes(struct probe *p);
int probe_check_fin(struct probe *p);
int probe_check_accounting(struct probe *p);
int probe_check_backlog(struct probe *p);
int probe_check_unread(struct probe *p);
int probe_check_wake_ups(struct probe *p);

/* probe_checks_leave.c: limits, and leaving */
int probe_check_receive_buffer(struct probe *p);
int probe_check_hard_limit(struct probe *p);
int probe_check_gate(struct probe *p);
int probe_check_read_ahead(struct probe *p);
int probe_check_leave(struct probe *p);
int probe_check_unprivileged(struct probe *p);

/* probe_checks_splice.c */
int probe_check_splice(struct probe *p);
int probe_check_splice_stall(struct probe *p);
int probe_check_splice_urgent(struct probe *p);

#endif
