# SPDX-License-Identifier: BSD-2-Clause
#
#   make            the daemon, build/culvert, and the load generator, build/culvert-bench
#   make tests      every test program, below build/tests, and what scripts/lab needs
#   make check      the unit tests (no root, no network), and the static analysis
#   make unit       the unit tests alone; make unit-tests builds them; make unit-threads, those with threads
#   make analyze    the static analysis alone: clang-tidy, cppcheck, shellcheck
#   make fuzz       the fuzzers, FUZZ_SECONDS each (scripts/fuzz; package libclang-rt-14-dev)
#   make man        the manual pages, below build/man; make completions, those of shells
#   make deb        a Debian package, in build/ (scripts/deps build package)
#   make install    PREFIX, DESTDIR as usual (and MANDIR, DOCDIR, UNITDIR); make uninstall
#   make clean
#
#   O=DIR           build somewhere else         SAN=address,undefined   user side with sanitizers
#   V=1             show the commands            WERROR=1                warnings are errors (CI)
#   PROFILE=1       frame pointers, for perf (scripts/profile)

# The newest version in the change log.
VERSION := $(shell sed -n 's/^\#\# \[\([0-9.]*\)\].*/\1/p;T;q' docs/CHANGELOG.md)

CC      ?= gcc
CLANG   ?= clang
BPFTOOL ?= $(firstword $(shell command -v bpftool 2>/dev/null) /usr/sbin/bpftool)
PKG_CONFIG ?= pkg-config
O       ?= build
PREFIX  ?= /usr/local
UNITDIR ?= $(PREFIX)/lib/systemd/system
MANDIR  ?= $(PREFIX)/share/man
DOCDIR  ?= $(PREFIX)/share/doc/culvert
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
FUZZ_SECONDS ?= 60
Q       := $(if $(V),,@)
say      = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2))

LIBS     := libbpf json-c libcap libseccomp libsystemd libcares libmnl
# Asked once, not for each file.
LIBS_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(LIBS))
LDLIBS   := $(shell $(PKG_CONFIG) --libs $(LIBS)) -lelf -lz -lm
LDLIBS_TOP := $(shell $(PKG_CONFIG) --libs ncursesw) # of programs with all commands
MULTIARCH := $(shell $(CC) -print-multiarch)
CFLAGS   ?= -O2 -g
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wwrite-strings -Wformat=2 -Wvla $(if $(WERROR),-Werror)
# clang before 20 reports a null pointer plus 0, the end of an empty array; C2y (N3322) allows it
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined \
            $(if $(findstring clang,$(CC)),-fno-sanitize=pointer-overflow) \
            -DBUILT_WITH_SANITIZER='"$(SAN)"' \
            $(if $(findstring thread,$(SAN)),-DBUILT_WITH_TSAN=1))
PROFFLAGS := $(if $(PROFILE),-fno-omit-frame-pointer -mno-omit-leaf-frame-pointer)
ALLFLAGS  = -std=gnu11 -D_GNU_SOURCE $(WARN) $(CPPFLAGS) $(CFLAGS) $(SANFLAGS) \
            $(PROFFLAGS) -pthread -Iinclude -Iuser -I$(O) $(LIBS_CFLAGS)
BPFFLAGS := -std=gnu11 -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Wno-unused-parameter \
            -Iinclude -Ivmlinux -I/usr/include/$(MULTIARCH)
BPFFLAGS += $(if $(WERROR),-Werror)

USER_SRC := $(filter-out user/bench/% user/man/%,$(wildcard user/*.c user/*/*.c user/*/*/*.c))
USER_OBJ := $(USER_SRC:%.c=$(O)/%.o)
LIB_OBJ  := $(filter-out $(O)/user/main.o,$(USER_OBJ))
BENCH_OBJ := $(patsubst %.c,$(O)/%.o,$(filter-out user/bench/main.c,$(wildcard user/bench/*.c)))
BPF_SRC  := $(wildcard bpf/*.bpf.c)
KBPF_SRC := $(wildcard tests/kernel/*.bpf.c)
FBPF_SRC := $(wildcard tests/faults/*.bpf.c)
SKELS    := $(BPF_SRC:%.bpf.c=$(O)/%.skel.h)
KSKELS   := $(KBPF_SRC:%.bpf.c=$(O)/%.skel.h)
FSKELS   := $(FBPF_SRC:%.bpf.c=$(O)/%.skel.h)

# A program is a file named test_*.c; every other file of its folder is linked into each of them.
unit_src   := $(wildcard tests/unit/test_*.c)
kernel_src := $(wildcard tests/kernel/test_*.c)
flow_src   := $(wildcard tests/flow/test_*.c)
fuzz_src   := $(wildcard tests/fuzz/fuzz_*.c)
UNIT   := $(unit_src:%.c=$(O)/%)
KERNEL := $(kernel_src:%.c=$(O)/%)
FLOW   := $(flow_src:%.c=$(O)/%)
FUZZ   := $(fuzz_src:tests/fuzz/%.c=$(O)/%)
faults_src := $(wildcard tests/faults/test_*.c)
FAULT_TESTS := $(faults_src:%.c=$(O)/%)
FAULTS := $(FAULT_TESTS) $(O)/tests/faults/libculvert_faults.so
faults_lib := $(patsubst %.c,$(O)/%.o,$(filter-out $(faults_src) $(FBPF_SRC) tests/faults/interpose.c,$(wildcard tests/faults/*.c)))
kernel_lib := $(patsubst %.c,$(O)/%.o,$(filter-out $(kernel_src) $(KBPF_SRC),$(wildcard tests/kernel/*.c)))
fuzz_lib   := $(patsubst %.c,$(O)/%.o,$(filter-out $(fuzz_src),$(wildcard tests/fuzz/*.c)))
# A program by itself, where liblwip-dev is.
lwip_src   := tests/flow/lwip_end.c
LWIP_DIR   := /usr/include/lwip
LWIP_END   := $(if $(wildcard $(LWIP_DIR)/lwipopts.h),$(O)/lwip-end)
flow_lib   := $(patsubst %.c,$(O)/%.o,$(filter-out $(flow_src) $(lwip_src) %.bpf.c,$(wildcard tests/flow/*.c)))

# Fuzz targets are for clang alone (libFuzzer), so gcc does not see them.
c_src := $(filter-out %.bpf.c tests/fuzz/% $(if $(LWIP_END),,$(lwip_src)),$(wildcard user/*.c user/*/*.c user/*/*/*.c tests/*/*.c))
TIDYFLAGS = -std=gnu11 -D_GNU_SOURCE -Iinclude -Iuser -isystem $(O) $(LIBS_CFLAGS)

.PHONY: FORCE all man completions deb tests unit-tests check unit unit-threads analyze headers objects tidy fuzz fuzz-build fuzz-programs install uninstall clean
.DELETE_ON_ERROR:

all: $(O)/culvert $(O)/culvert-bench
tests: all man unit-tests $(KERNEL) $(FLOW) $(FAULTS) $(O)/lab-delay $(LWIP_END)
unit-tests: $(UNIT)

$(O)/culvert: $(O)/user/main.o $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(LDLIBS_TOP)

$(O)/culvert-bench: $(O)/user/bench/main.o $(O)/libbench.a $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The paths of scripts/lab, which needs none of our libraries.
$(O)/lab-delay: scripts/lib/delay.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE $(WARN) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< -lm

# The ends that are lwIP, for tests/flow/foreign_stacks.py.
$(lwip_src:%.c=$(O)/%.o) $(lwip_src:%.c=$(O)/%.tidy): LIBS_CFLAGS += -isystem $(LWIP_DIR)
$(O)/lwip-end: $(lwip_src:%.c=$(O)/%.o)
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $< -llwip

# Written only if they change, so that a new commit compiles user/main.c alone.
$(O)/version.h: define = CULVERT_VERSION "$(VERSION)"
$(O)/commit.h: define = CULVERT_COMMIT "$(shell scripts/commit)"
$(O)/version.h $(O)/commit.h: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '#define $(define)' | cmp -s - $@ || echo '#define $(define)' >$@
$(O)/user/main.o: $(O)/version.h $(O)/commit.h
$(O)/user/daemon/control_views.o $(O)/user/bench/options.o $(O)/user/man/main.o: $(O)/version.h

# page.html as a text in C, and the hashes by which a browser knows its script and its style.
page_hash = { echo; sed -n '/^<$(1)>$$/,/^<\/$(1)>$$/ { //!p }' $<; } | sha256sum | cut -c -64 | \
            tr a-f A-F | basenc --base16 -d | basenc --base64
$(O)/page.h: user/daemon/page.html
	$(call say,PAGE,$@)
	$(Q)mkdir -p $(@D)
	$(Q){ echo "#define PAGE_SCRIPT_HASH \"$$($(call page_hash,script))\""; \
		echo "#define PAGE_STYLE_HASH \"$$($(call page_hash,style))\""; \
		echo '#define PAGE_HTML \'; sed 's/[\"]/\\&/g; s/.*/"&\\n" \\/' $<; echo; } >$@
$(O)/user/daemon/metrics_page.o: $(O)/page.h

# The tables of options in the manual pages, and in completions, are those of the program.
man: $(O)/man/culvert.8 $(O)/man/culvert.conf.5
completions: $(O)/completions/culvert.bash $(O)/completions/culvert.zsh $(O)/completions/culvert.fish

$(O)/culvert-man: $(O)/user/man/main.o $(O)/user/man/completion.o $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(LDLIBS_TOP)

$(O)/man/%: docs/man/%.in $(O)/culvert-man
	$(call say,MAN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(O)/culvert-man $< >$@

$(O)/completions/culvert.%: scripts/completions/culvert.% $(O)/culvert-man
	$(call say,SHELL,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(O)/culvert-man $< >$@

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

# Named one by one, so that the objects are no intermediate files: those would be deleted, or, being
# .SECONDARY, not be made again when they are missing.
$(SKELS) $(KSKELS) $(FSKELS): $(O)/%.skel.h: $(O)/%.bpf.o
	$(call say,SKEL,$@)
	$(Q){ echo '// NOLINTBEGIN: generated'; \
		$(BPFTOOL) gen skeleton $< name $(subst -,_,$(basename $(basename $(@F))))_bpf && \
		echo '// NOLINTEND'; } > $@

$(O)/user/datapath/sockmap/sockmap.o $(O)/tests/unit/test_graft_heard.o \
$(patsubst %.c,$(O)/%.o,$(wildcard user/datapath/graft/*.c)): $(SKELS)
$(faults_src:%.c=$(O)/%.o) $(faults_lib): $(FSKELS)
$(kernel_src:%.c=$(O)/%.o) $(kernel_lib): $(KSKELS) $(SKELS)

$(UNIT): $(O)/%: $(O)/%.o $(O)/libbench.a $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(KERNEL): $(O)/%: $(O)/%.o $(kernel_lib) $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(FLOW): $(O)/%: $(O)/%.o $(flow_lib) $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(FUZZ): $(O)/%: $(O)/tests/fuzz/%.o $(fuzz_lib) $(O)/libbench.a $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(LDLIBS)

fuzz-programs: $(FUZZ)

# Everything again, instrumented, below $(O)/fuzz.
fuzz-build:
	$(Q)$(MAKE) --no-print-directory O=$(O)/fuzz CC=$(CLANG) SAN=fuzzer-no-link,address,undefined \
		fuzz-programs

fuzz:
	$(Q)O=$(O) scripts/fuzz --seconds $(FUZZ_SECONDS)

# Several at a time with -j; then -Otarget keeps the output of each test together.
RUN_UNIT := $(UNIT:%=run/%)
.PHONY: $(RUN_UNIT)
unit: $(RUN_UNIT)

# The tests whose code makes threads; a sanitizer of threads finds nothing in the others.
unit-threads: $(UNIT)
	$(Q)$(MAKE) --no-print-directory $$(nm -AuD $^ | sed -n 's|^\([^:]*\):.* pthread_create\(@.*\)*$$|run/\1|p')
$(RUN_UNIT): run/%: %
	$(Q)$<

$(FAULT_TESTS): $(O)/%: $(O)/%.o $(faults_lib) $(flow_lib) $(O)/libculvert.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALLFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Built without sanitizers, as daemons with and without them preload it.
$(O)/tests/faults/libculvert_faults.so: tests/faults/interpose.c tests/faults/page.h
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE $(WARN) $(CFLAGS) -fPIC -shared -o $@ $<

check: unit
	$(Q)$(if $(SAN),,O=$(O) scripts/check)

analyze:
	$(Q)O=$(O) scripts/check

# Each header by itself.
headers:
	$(Q)for h in $(wildcard user/*/*.h user/*/*/*.h include/*.h); do \
		$(CC) $(filter-out $(WARN),$(ALLFLAGS)) -Werror -fsyntax-only -include $$h -x c /dev/null || exit; done
	$(Q)for h in $(wildcard bpf/*.h include/*.h); do \
		$(CLANG) $(BPFFLAGS) -Wno-unused-function -Werror -fsyntax-only -include $$h -x c /dev/null || exit; done

# A change of a file, or of a file that it includes, makes the object and its dependants anew.
objects: $(c_src:%.c=$(O)/%.o)
tidy: $(patsubst %.c,$(O)/%.tidy,$(c_src) $(wildcard tests/fuzz/*.c))

define run_tidy
	$(call say,TIDY,$<)
	$(Q)mkdir -p $(@D)
	$(Q)clang-tidy --quiet $< -- $(TIDYFLAGS) 2>$@.err >$@.out || \
		{ cat $@.out; grep -v 'warnings\? generated' $@.err; exit 1; }
	$(Q)rm -f $@.err $@.out && touch $@
endef

$(O)/tests/fuzz/%.tidy: tests/fuzz/%.c $(wildcard tests/fuzz/*.h) .clang-tidy $(SKELS)
	$(run_tidy)

$(O)/%.tidy: %.c $(O)/%.o .clang-tidy
	$(run_tidy)

EXAMPLES := docs/examples/culvert.conf docs/examples/culvert.logrotate docs/examples/culvert.socket \
            docs/examples/culvert-alerts.yml docs/examples/grafana-dashboard.json \
            docs/examples/keepalived.conf docs/examples/bird-relay.conf docs/examples/bird-router.conf \
            docs/examples/culvert-announce docs/examples/culvert-announce.service \
            docs/examples/culvert-reflect.service docs/examples/culvert-redis.sh
DOCS     := docs/CHANGELOG.md docs/comparison.md docs/control.md docs/operations.md docs/security.md

# Replaces a link to a file that is not installed by the text of the link.
unlink := s|\[\([^]]*\)\](\.\./[^)]*)|\1|g; s|\[\([^]]*\)\](design\.md[^)]*)|\1|g; \
          s|\[\([^]]*\)\]\[[^]]*\]|\1|g; /^\[[^]]*\]: \.\./d

install: $(O)/culvert man completions
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(UNITDIR) $(DESTDIR)$(MANDIR)/man5 \
		$(DESTDIR)$(MANDIR)/man8 $(DESTDIR)$(DOCDIR)/examples $(DESTDIR)$(BASHDIR) \
		$(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR)
	install -m 755 $(O)/culvert $(DESTDIR)$(PREFIX)/sbin/culvert
	for unit in culvert culvert-standby@; do \
		sed 's|/usr/local/sbin|$(PREFIX)/sbin|' scripts/$$unit.service >$(DESTDIR)$(UNITDIR)/$$unit.service && \
		chmod 644 $(DESTDIR)$(UNITDIR)/$$unit.service || exit 1; done
	sed 's|/usr/local/share/doc/culvert|$(DOCDIR)|g' $(O)/man/culvert.8 >$(DESTDIR)$(MANDIR)/man8/culvert.8
	sed 's|/usr/local/share/doc/culvert|$(DOCDIR)|g' $(O)/man/culvert.conf.5 >$(DESTDIR)$(MANDIR)/man5/culvert.conf.5
	chmod 644 $(DESTDIR)$(MANDIR)/man8/culvert.8 $(DESTDIR)$(MANDIR)/man5/culvert.conf.5
	install -m 644 LICENSE $(DOCS) $(DESTDIR)$(DOCDIR)
	for doc in $(DOCS); do \
		sed '$(unlink)' $$doc >$(DESTDIR)$(DOCDIR)/$${doc##*/} || exit 1; done
	sed '$(unlink); s|/usr/local/share/doc/culvert|$(DOCDIR)|g; s|/usr/local|$(PREFIX)|g' \
		docs/operations.md >$(DESTDIR)$(DOCDIR)/operations.md
	install -m 644 $(EXAMPLES) $(DESTDIR)$(DOCDIR)/examples
	sed -i 's|/usr/local|$(PREFIX)|g' $(DESTDIR)$(DOCDIR)/examples/keepalived.conf \
		$(DESTDIR)$(DOCDIR)/examples/culvert-announce.service \
		$(DESTDIR)$(DOCDIR)/examples/culvert-reflect.service
	install -m 644 $(O)/completions/culvert.bash $(DESTDIR)$(BASHDIR)/culvert
	install -m 644 $(O)/completions/culvert.zsh $(DESTDIR)$(ZSHDIR)/_culvert
	install -m 644 $(O)/completions/culvert.fish $(DESTDIR)$(FISHDIR)/culvert.fish

# From a copy of the sources, which needs no git. Variables of this make(1) are not for the copy's.
DEBTREE := $(O)/deb/culvert-$(VERSION)
OWN_TO_DEB := O PREFIX DESTDIR UNITDIR MANDIR DOCDIR BASHDIR ZSHDIR FISHDIR
deb:
	rm -rf $(O)/deb $(O)/culvert_*.deb $(O)/culvert-dbgsym_*.deb
	mkdir -p $(DEBTREE)
	cp -a LICENSE Makefile README.md bpf docs include scripts user vmlinux $(DEBTREE)
	mv $(DEBTREE)/scripts/debian $(DEBTREE)/debian
	commit=$$(scripts/commit) && sed -i "s/^commit=.*/commit=$$commit/" $(DEBTREE)/scripts/commit && \
		printf '%s\n\n%s\n\n%s\n' "culvert ($(VERSION)-1) unstable; urgency=medium" \
		"  * Made of commit $$commit; changelog.gz has what is new." \
		" -- $$(sed -n 's/^Maintainer: //p' scripts/debian/control)  $$(date -Rud \
		"$$(sed -n 's/^## \[$(VERSION)\] - //p' docs/CHANGELOG.md)")" >$(DEBTREE)/debian/changelog
	cd $(DEBTREE) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL $(OWN_TO_DEB:%=-u %) \
		dpkg-buildpackage -b -nc -us -uc -J
	mv $(O)/deb/*.deb $(O)

# Directories that others use as well stay.
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/sbin/culvert $(DESTDIR)$(UNITDIR)/culvert.service \
		$(DESTDIR)$(UNITDIR)/culvert-standby@.service \
		$(DESTDIR)$(MANDIR)/man8/culvert.8 $(DESTDIR)$(MANDIR)/man5/culvert.conf.5 \
		$(DESTDIR)$(BASHDIR)/culvert $(DESTDIR)$(ZSHDIR)/_culvert \
		$(DESTDIR)$(FISHDIR)/culvert.fish $(DESTDIR)$(DOCDIR)/LICENSE \
		$(DOCS:docs/%=$(DESTDIR)$(DOCDIR)/%) \
		$(EXAMPLES:docs/examples/%=$(DESTDIR)$(DOCDIR)/examples/%)
	for dir in $(DESTDIR)$(DOCDIR)/examples $(DESTDIR)$(DOCDIR); do \
		[ ! -d $$dir ] || rmdir --ignore-fail-on-non-empty $$dir; done

clean:
	rm -rf $(O)

-include $(wildcard $(addprefix $(O)/,user/*.d user/*/*.d user/*/*/*.d bpf/*.d tests/*/*.d))
