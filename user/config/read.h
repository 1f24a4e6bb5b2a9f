/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "config/config.h"

/* The command line of `culvert run`, with the file that it names, becomes a struct config. */

/*
 * Fill RET from the arguments of `culvert run` (ARGV[0] is "run"), and from FD, the file that
 * --config names; -1: that file is opened.  Where both say something, the arguments count.  Strings
 * point into ARGV, or are kept.  Host names are not looked up: they have no address yet, see
 * names.h.
 *
 * Prints a line to stderr for each mistake ("culvert: --soft-limit: ...", "culvert: FILE:LINE:
 * ..."), and returns -EINVAL then, or -errno of open(2).  RET may always be given to
 * config_close().
 */
int config_read(int argc, char **argv, int fd, struct config *ret);
/* As config_read(), but RET may have no forward. */
int config_read_any(int argc, char **argv, int fd, struct config *ret);
/* As config_read_any(), but the file has TEXT, which is that of an earlier configuration. */
int config_read_text(int argc, char **argv, const char *text, struct config *ret);

/* Store values of FC, of C, that follow from its other settings. */
void config_settle(const struct config *c, struct forward_conf *fc);

/* The exit code for R of config_read(): only a temporary failure is worth another try. */
int config_exit_code(int r);

/* Print the help of `culvert run`. */
void config_help(void);
