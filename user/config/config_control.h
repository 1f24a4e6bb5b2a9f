/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_CONTROL_H
#define CULVERT_CONFIG_CONTROL_H

/*
 * Where a daemon with the configuration file PATH listens for control requests: at the `control`
 * that it says, or at the default.  Whatever else may be wrong with the file is not said here: its
 * daemon will, when it is asked.  RET is to be freed.  A file that config_file_open() refuses is
 * said on stderr, and gives its -errno; -ENOMEM.
 */
int config_control(const char *path, char **ret);

#endif
