#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# The kernel's complaints since boot. A warning or an oops would have ended the guest already; this
# step finds complaints that are only printed.
pattern='WARNING: CPU|BUG:|Call Trace:|lockup - |blocked for more than|refcount_t:|Out of memory:'
complaints=$(dmesg | grep -E "$pattern")
[ -z "$complaints" ] && printf 'no complaint in %d lines\n' "$(dmesg | wc -l)" && exit 0
printf '%s\n' "$complaints"
exit 1
