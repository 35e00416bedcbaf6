#!/usr/bin/env bash
# Lints what is in .github, and the action: syntax and shell, security, the published schemas. Nothing is fetched; silent where all is well.
set -euo pipefail
cd "$(dirname "$0")/.."

actionlint
zizmor --offline --quiet --no-progress .github action.yml >/dev/null || zizmor --offline --no-progress .github action.yml
check() { check-jsonschema --quiet --builtin-schema "vendor.$1" "${@:2}"; }
check github-workflows .github/workflows/*.yml
check github-actions action.yml .github/actions/*/action.yml
check github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
check github-issue-config .github/ISSUE_TEMPLATE/config.yml
check dependabot .github/dependabot.yml
