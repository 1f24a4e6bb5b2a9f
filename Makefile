# SPDX-License-Identifier: BSD-2-Clause
#
#   make            the daemon, build/culvert, and the load generator, build/culvert-bench
#   make tests      every test program, below build/tests
#   make check      the unit tests (no root, no network)
#   make install    PREFIX, DESTDIR as usual
#   make clean
#
#   O=DIR           build somewhere else         SAN=address,undefined   user side with sanitizers
#   V=1             show the commands            WERROR=1                warnings are errors (CI)
#   PROFILE=1       frame pointers, for perf (scripts/profile)

VERSION := 0.1.0

CC      ?= gcc
CLANG   ?= clang
BPFTOOL ?= $(firstword $(shell command -v bpftool 2>/dev/null) /usr/sbin/bpftool)
PKG_CONFIG ?= pkg-config
O       ?= build
PREFIX  ?= /usr/local
Q       := $(if $(V),,@)
say      = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2))

LIBS     := libbpf json-c libcap libsystemd
CFLAGS   ?= -O2 -g
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wwrite-strings -Wformat=2 -Wvla $(if $(WERROR),-Werror)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
PROFFLAGS := $(if $(PROFILE),-fno-omit-frame-pointer -mno-omit-leaf-frame-pointer)
ALLFLAGS  = -std=gnu11 -D_GNU_SOURCE -DCULVERT_VERSION='"$(VERSION)"' $(WARN) $(CFLAGS) $(SANFLAGS) \
            $(PROFFLAGS) -pthread -Iinclude -Iuser -I$(O) $(shell $(PKG_CONFIG) --cflags $(LIBS))
LDLIBS    = $(shell $(PKG_CONFIG) --libs $(LIBS)) -lelf -lz
BPFFLAGS := -std=gnu11 -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Wno-unused-parameter \
            -Iinclude -Ivmlinux -I/usr/include/$(shell $(CC) -print-multiarch)
BPFFLAGS += $(if $(WERROR),-Werror)

USER_SRC := $(wildcard user/*.c)
USER_OBJ := $(USER_SRC:%.c=$(O)/%.o)
LIB_OBJ  := $(filter-out $(O)/user/main.o,$(USER_OBJ))
BENCH_OBJ := $(patsubst %.c,$(O)/%.o,$(filter-out user/bench/main.c,$(wildcard user/bench/*.c)))
BPF_SRC  := $(wildcard bpf/*.bpf.c)
KBPF_SRC := $(wildcard tests/kernel/*.bpf.c)
SKELS    := $(BPF_SRC:%.bpf.c=$(O)/%.skel.h)
KSKELS   := $(KBPF_SRC:%.bpf.c=$(O)/%.skel.h)

# A program is a file named test_*.c; every other file of its folder is linked into each of them.
unit_src   := $(wildcard tests/unit/test_*.c)
kernel_src := $(wildcard tests/kernel/test_*.c)
flow_src   := $(wildcard tests/flow/test_*.c)
UNIT   := $(unit_src:%.c=$(O)/%)
KERNEL := $(kernel_src:%.c=$(O)/%)
FLOW   := $(flow_src:%.c=$(O)/%)
kernel_lib := $(patsubst %.c,$(O)/%.o,$(filter-out $(kernel_src) $(KBPF_SRC),$(wildcard tests/kernel/*.c)))
flow_lib   := $(patsubst %.c,$(O)/%.o,$(filter-out $(flow_src),$(wildcard tests/flow/*.c)))

.PHONY: all tests check install uninstall clean
.DELETE_ON_ERROR:
.SECONDARY:

all: $(O)/culvert $(O)/culvert-bench
tests: all $(UNIT) $(KERNEL) $(FLOW)

$(O)/culvert: $(O)/user/main.o $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(O)/culvert-bench: $(O)/user/bench/main.o $(O)/libbench.a $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(O)/libculvert.a: $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(O)/libbench.a: $(BENCH_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(O)/%.o: %.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) -MMD -MP -c -o $@ $<

$(O)/%.bpf.o: %.bpf.c
	$(call say,BPF,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLANG) $(BPFFLAGS) -MMD -MP -c -o $@ $<

$(O)/%.skel.h: $(O)/%.bpf.o
	$(call say,SKEL,$@)
	$(Q)$(BPFTOOL) gen skeleton $< name $(subst -,_,$(basename $(basename $(@F)))) > $@

$(O)/user/kernel.o: $(SKELS)
$(kernel_src:%.c=$(O)/%.o) $(kernel_lib): $(KSKELS) $(SKELS)

$(UNIT): $(O)/%: $(O)/%.o $(O)/libbench.a $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(KERNEL): $(O)/%: $(O)/%.o $(kernel_lib)
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(FLOW): $(O)/%: $(O)/%.o $(flow_lib) $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

check: $(UNIT)
	$(Q)for t in $(UNIT); do $$t || exit 1; done

install: all
	install -d $(DESTDIR)$(PREFIX)/sbin
	install -m 755 $(O)/culvert $(DESTDIR)$(PREFIX)/sbin/culvert

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/sbin/culvert

clean:
	rm -rf $(O)

-include $(shell find $(O) -name '*.d' 2>/dev/null)
