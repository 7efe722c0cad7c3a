#!/bin/sh
# Installs what the tests talk to besides Python: Redis, PostgreSQL, and the shells that completion scripts are for. Does
# nothing where they are, and nothing where it may not install (then the tests that need them say so and are skipped).
set -eu

missing=""
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
if ! command -v postgres >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
    missing="$missing postgresql"
fi
for shell in zsh fish; do
    command -v "$shell" >/dev/null 2>&1 || missing="$missing $shell"
done
[ -n "$missing" ] || exit 0

if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "Not installed:$missing. The tests that need them will be skipped."
fi
