#!/usr/bin/env bash
# Lints what is in .github: syntax and shell, security, the published schemas. Nothing is fetched; silent where all is well.
set -euo pipefail
cd "$(dirname "$0")/.."

actionlint
zizmor --offline --quiet --no-progress .github >/dev/null || zizmor --offline --no-progress .github
check() { check-jsonschema --quiet --builtin-schema "vendor.github-$1" "${@:2}"; }
check workflows .github/workflows/*.yml
check actions .github/actions/*/action.yml
check issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
check issue-config .github/ISSUE_TEMPLATE/config.yml
