// SPDX-License-Identifier: BSD-2-Clause
#include "probe.h"
int probe_run(int argc, char **argv){(void)argc;(void)argv;return 1;}
void probe_help(void){}
