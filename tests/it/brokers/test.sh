#!/usr/bin/env bash
# `make test`: all tests. Those against real brokers run when their broker can be had; otherwise they are ignored, by name,
# and the reason is the last thing said. CI=true wants all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
cargo=${CARGO:-cargo}

available=() reasons=()
if said=$(tests/it/brokers/install.sh python); then
    for broker in rabbitmq artemis; do
        if said=$(tests/it/brokers/install.sh "$broker"); then
            available+=("brokers::$broker::")
        else
            reasons+=("brokers::$broker: $said")
        fi
    done
else
    reasons+=("brokers: $said")
fi

if [ ${#reasons[@]} = 0 ]; then
    "$cargo" test --locked
    exec "$cargo" test --locked --test it -- --ignored brokers::
fi
if [ "${CI:-}" = true ]; then
    printf 'CI needs every broker, but cannot have them all: %s\n' "${reasons[@]}" >&2
    exit 1
fi
"$cargo" test --locked
if [ ${#available[@]} -gt 0 ]; then
    "$cargo" test --locked --test it -- --ignored "${available[@]}"
fi
printf 'ignored: %s\n' "${reasons[@]}" >&2
