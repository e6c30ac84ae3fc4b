#!/usr/bin/env bash
# Installs what the tests against real brokers need, and says where it is:
#
#     install.sh rabbitmq|artemis|python
#
# prints a folder, or what is missing and fails. What `pins` names is downloaded, checked against its checksum and unpacked below $DISTRIBUTARY_TOOLS
# (default: ~/.cache/distributary-tools), in a folder named after its pins: a folder that is there is what they say, and
# nothing is done. Debian's packages are unpacked, not installed: no service starts, nothing else on the machine changes,
# and nobody needs to be root.
set -euo pipefail

tool=${1:?usage: install.sh rabbitmq|artemis|python}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DISTRIBUTARY_TOOLS:-$HOME/.cache/distributary-tools}
digest=$(grep "^$tool " "$here/pins" | sha256sum)
folder=$cache/$tool-${digest:0:12}

if [ -d "$folder" ]; then
    echo "$folder"
    exit
fi

fail() {
    echo "$*"
    exit 1
}

have() {
    command -v "$1" >/dev/null
}

# The pins of one kind: what, and its checksum.
pinned() {
    awk -v tool="$tool" -v kind="$1" '$1 == tool && $2 == kind { print $3, $4 }' "$here/pins"
}

verify() {
    echo "$2  $1" | sha256sum --check --status || fail "${1##*/} is not what tests/it/brokers/pins says: its checksum differs"
}

# Into $new/usr.
rabbitmq() {
    have apt-get && have dpkg-deb && grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release && [ "$(dpkg --print-architecture)" = amd64 ] ||
        fail "RabbitMQ comes from Debian 12's packages for amd64, and this is another system"
    # Lists and cache of its own: this works without the rights for the system's.
    mkdir -p "$scratch"/{lists,cache/archives}/partial
    local apt=(timeout 600 apt-get -qq -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/cache" -o APT::Sandbox::User=root -o Debug::NoLocking=1)
    "${apt[@]}" update >&2 || fail "apt-get update failed: RabbitMQ comes from Debian's packages"
    local what sum packages=()
    while read -r what sum; do packages+=("$what"); done < <(pinned deb)
    (cd "$scratch" && "${apt[@]}" download "${packages[@]}") >&2 ||
        fail "Debian's packages no longer have what tests/it/brokers/pins names: put there what they have now"
    while read -r what sum; do
        local files=("$scratch/${what%%=*}"_*.deb)
        verify "${files[0]}" "$sum"
        dpkg-deb --extract "${files[0]}" "$new"
    done < <(pinned deb)
    # The one place that knows where Erlang was installed.
    sed -i "s#^\( *\)ROOTDIR=/usr/lib/erlang#\1ROOTDIR='$folder/usr/lib/erlang'#" "$new/usr/lib/erlang/bin/erl"
}

# Into $new itself.
artemis() {
    local java=0 what sum
    have java && java=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${java:-0}" -ge 17 ] || fail "Artemis needs Java 17 or later: apt-get install openjdk-17-jre-headless"
    have mvn || fail "Artemis comes by Maven: apt-get install maven"
    read -r what sum < <(pinned maven)
    timeout 600 mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy -Dartifact="$what" -DoutputDirectory="$scratch" </dev/null 2>&1 |
        sed 's/\x1b\[[0-9;]*m//g' >&2 || fail "Maven cannot get $what"
    local archives=("$scratch"/*.tar.gz)
    verify "${archives[0]}" "$sum"
    tar --extract --gzip --file "${archives[0]}" --directory "$new" --strip-components 1
}

# Into $new/bin/python and its packages.
python() {
    local candidate interpreter= check='
import os, sys, sysconfig, ensurepip, venv
sys.exit(sys.version_info[:2] != (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
    for candidate in python3.11 python3; do
        if "$candidate" -c "$check" 2>/dev/null; then
            interpreter=$candidate
            break
        fi
    done
    [ "$interpreter" ] || fail "the clients need Python 3.11 with venv and headers: apt-get install python3-venv python3-dev"
    "$interpreter" -m venv "$new"
    local pip=(timeout 900 "$new/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-deps --require-hashes)
    pinned wheel | sed 's/ / --hash=sha256:/' >"$scratch/wheels"
    pinned sdist | sed 's/ / --hash=sha256:/' >"$scratch/sdists"
    "${pip[@]}" --only-binary :all: --requirement "$scratch/wheels" >&2 || fail "pip cannot get the wheels of tests/it/brokers/pins"
    # Built with the tools that are pinned too.
    "${pip[@]}" --no-cache-dir --no-binary :all: --no-build-isolation --requirement "$scratch/sdists" >&2 ||
        fail "python-qpid-proton did not build: it needs a C compiler"
}

mkdir -p "$cache"
# Two that install at once: the second waits, and finds it there.
exec 9>"$cache/lock"
flock -w 1800 9 || fail "another installation holds $cache/lock for half an hour"
if [ ! -d "$folder" ]; then
    echo "installing $tool into $folder" >&2
    scratch=$(mktemp -d "$cache/installing-XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    new=$scratch/$tool
    mkdir "$new"
    "$tool"
    mv "$new" "$folder"
fi
echo "$folder"
