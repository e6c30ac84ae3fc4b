# Everything that is built goes here, outside the checkout, so that several checkouts and a fresh clone reuse it.
CARGO_TARGET_DIR ?= $(HOME)/.cache/distributary-target
export CARGO_TARGET_DIR

CARGO ?= cargo
# Seeds of the long simulation.
SEEDS ?= 2000

.PHONY: help test sim lint bench

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(MAKEFILE_LIST)

test: ## all tests, also those against RabbitMQ and Artemis, which are installed first
	@CARGO=$(CARGO) tests/it/brokers/test.sh

sim: ## the simulation with many seeds, in release: make sim SEEDS=2000
	DISTRIBUTARY_SEEDS=$(SEEDS) $(CARGO) test --locked --release --lib simulation -- --nocapture

lint: ## formatting, clippy and the documentation's links, warnings as errors
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

bench: ## the benches, each beside the bare loop that is its limit
	$(CARGO) bench --locked
