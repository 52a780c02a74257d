# `make demo` on a fresh Debian or Ubuntu shows what this is; `make test` is what every change must pass.

# Where rustup puts a toolchain that this machine did not have before.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
TARGET := $(or $(CARGO_TARGET_DIR),target)
UNDERPASS := $(TARGET)/release/underpass
DEMO := $(TARGET)/demo

.PHONY: help setup test-tools build demo test lint unit loom instructions fuzz bench soak clean deb book reference screenshots deny

help:
	@echo "make demo    build, send a capture through an L3VPN, build one of hosts and routers, measure"
	@echo "make test    formatting, lints, every test"
	@echo "make lint    formatting and lints alone"
	@echo "make bench   measure every scenario"
	@echo "make instructions  what packets take in instructions, beside what was recorded; RECORD=1 records"
	@echo "make soak    traffic, changes and faults for SOAK_MINUTES (60), attacks for ATTACK_SECONDS (300), then checks; needs root"
	@echo "make fuzz    every parser for FUZZ_SECONDS (60) each; needs a nightly compiler"
	@echo "make deb     a Debian package"
	@echo "make book    the pages of docs/ as a book with a search, $(TARGET)/book/index.html"
	@echo "make reference   docs/reference, from --help and from the reasons for drops"
	@echo "make screenshots docs/pictures; needs root and Chromium"
	@echo "make deny    licences, advisories and sources of all dependencies, by cargo-deny"
	@echo "make build   the optimised program, $(UNDERPASS)"

# What is needed and missing: Debian packages, a Rust toolchain.
setup:
	@scripts/setup.sh

# What some tests need besides, where it can be had: a test says so when it is skipped.
test-tools:
	@scripts/test-tools.sh

build: setup
	cargo build --release --locked -p underpass -p underpass-preload

demo: build
	@echo
	@echo "== captures through the L3VPN of examples/l3vpn/vpn.conf =="
	$(UNDERPASS) replay --config examples/l3vpn/vpn.conf \
		--port core,mac=02:00:00:00:00:01 --port red,mac=02:00:00:00:00:02 --port blue,mac=02:00:00:00:00:03 \
		--rx core=examples/l3vpn/core.pcap --rx red=examples/l3vpn/red.pcap --rx blue=examples/l3vpn/blue.pcap \
		--out $(DEMO) --show 'ip -6 -s route show'
	@echo
	@if [ "$$(id -u)" = 0 ]; then \
		$(UNDERPASS) lab l3vpn; \
	else \
		echo "== left out: hosts and routers in network namespaces need root (underpass lab l3vpn) =="; \
	fi
	@echo
	@echo "== what the path of a packet costs =="
	$(UNDERPASS) bench srv6-end-dx2 srv6-h-encaps-1 ip6

bench: build
	$(UNDERPASS) bench

SOAK_MINUTES ?= 60
ATTACK_SECONDS ?= 300
soak: build
	$(UNDERPASS) lab soak --minutes $(SOAK_MINUTES)
	tests/attack/attack.py --seconds $(ATTACK_SECONDS) $(UNDERPASS)

# Tests wait half of their time. loom and instructions need a processor but no quiet machine: they run beside the tests, at the
# lowest priority, and print their output at the end.
test: lint test-tools
	cargo test --workspace --locked --no-run
	@said=$$(mktemp); \
		nice -n 19 $(MAKE) --no-print-directory loom instructions >$$said 2>&1 & beside=$$!; \
		$(MAKE) --no-print-directory unit; status=$$?; \
		wait $$beside || status=1; cat $$said; rm $$said; exit $$status
	@scripts/book.sh optional

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

unit: setup test-tools
	@scripts/unit.sh

# Publication between threads, in every order that the memory model allows.
loom: setup
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(abspath $(TARGET))/loom \
		cargo test --locked --manifest-path crates/underpass-engine/loom/Cargo.toml --lib

# Instructions of a packet's path, which do not depend on what else the machine does.
instructions: setup test-tools
	@if command -v valgrind >/dev/null; then cargo build --profile counted --locked -p underpass; fi
	RECORD=$(RECORD) scripts/instructions.sh $(TARGET)/counted/underpass

FUZZ_SECONDS ?= 60
fuzz: setup
	crates/underpass-packet/fuzz/run $(FUZZ_SECONDS)
	crates/underpass-netlink/fuzz/run $(FUZZ_SECONDS)
	crates/underpass-engine/fuzz/run $(FUZZ_SECONDS)

# A Debian package: the program, its pages and completions, a systemd unit that is not started.
deb: build
	@scripts/setup.sh deb
	@cargo deb --version >/dev/null 2>&1 || cargo install --locked cargo-deb
	$(UNDERPASS) generate target/generated
	cargo deb -p underpass --no-build --locked --output $(TARGET)/

# The pages of docs/ with a search; mdBook is fetched if it is not there.
book:
	@scripts/book.sh

# A test fails where these pages are of another program.
reference: setup
	cargo build --locked -p underpass
	$(TARGET)/debug/underpass generate $(TARGET)/generated
	cp $(TARGET)/generated/reference/*.md docs/reference/

screenshots: build
	scripts/screenshots.py $(UNDERPASS)

# What deny.toml says, and known advisories, which are fetched. Built from source cargo-deny takes minutes, so that `make test`
# checks licences, sources and duplicates without it: crates/underpass/tests/structure/dependencies.rs.
deny: setup
	@cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	cargo deny check

clean:
	cargo clean
