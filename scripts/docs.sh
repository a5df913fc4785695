#!/usr/bin/env bash
# Checks that the documents are true: links lead somewhere, the README is short, the guide names every chapter,
# every option of the command line and every route of the HTTP API.
#
#   scripts/docs.sh
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

README_LINES=130

failures=0
fail() {
    printf 'FAILED docs: %s\n' "$*"
    failures=$((failures + 1))
}

documents() { find . -name target -prune -o -name .git -prune -o -name '*.md' -print | sort; }

# The anchors of a document's headings, as code hosts and mdBook make them.
# shellcheck disable=SC2016 # backquotes of Markdown
anchors() {
    sed -n '/^```/,/^```/d; s/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# The targets of a document's links and pictures, without those of code.
# shellcheck disable=SC2016 # backquotes of Markdown
links() {
    sed '/^```/,/^```/d; s/`[^`]*`//g' "$1" | grep -oE '\]\([^)]+\)' | sed 's/^](//; s/)$//'
}

check_links() {
    local document link file anchor
    while read -r document; do
        while read -r link; do
            case $link in
            http://* | https://* | mailto:*) continue ;;
            esac
            file=${link%%#*} anchor=${link#"${link%%#*}"}
            file=${file:+$(dirname "$document")/$file}
            file=${file:-$document}
            if [ ! -e "$file" ]; then
                fail "$document links to $link: there is no such file"
            elif [ -n "$anchor" ] && ! grep -qxF -e "${anchor#\#}" < <(anchors "$file"); then
                fail "$document links to $link: $file has no such heading"
            fi
        done < <(links "$document")
    done < <(documents)
}

check_readme() {
    local lines
    lines=$(wc -l <README.md)
    [ "$lines" -le "$README_LINES" ] || fail "README.md has $lines lines, at most $README_LINES: move text to docs/"
}

check_chapters() {
    local chapter
    for chapter in docs/*.md docs/languages/*.md; do
        chapter=${chapter#docs/}
        [ "$chapter" = SUMMARY.md ] || grep -qF "($chapter)" docs/SUMMARY.md ||
            fail "docs/SUMMARY.md does not list $chapter"
    done
}

# The help of memprof and of each of its subcommands.
all_help() {
    local binary=$1 command
    "$binary" --help
    "$binary" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p' | while read -r command; do
        [ "$command" = help ] || "$binary" "$command" --help
    done
}

# The long options that a help text lists.
options() { grep -oE '^ +(-[a-zA-Z], )?--[a-z][a-z-]+' | grep -oE -e '--[a-z-]+' | sort -u; }

check_options() {
    local target found=0 option
    cargo build -q --bin memprof
    target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    while read -r option; do
        found=$((found + 1))
        # In the first cell of a table's row.
        grep -qE -e "^\| [^|]*\`${option}[ \`]" docs/command-line.md ||
            fail "docs/command-line.md has no row that explains $option"
    done < <(all_help "$target/debug/memprof" | options)
    # A check that looks at nothing would always pass.
    [ "$found" -ge 20 ] || fail "only $found options were found in the help"
}

check_routes() {
    local route found=0
    while read -r route; do
        found=$((found + 1))
        # The description calls it {id}, the guide ID.
        grep -qE "${route%%\{*}([^a-z0-9/]|[A-Z])" docs/http-api.md || fail "docs/http-api.md does not name $route"
    done < <(cat src/http/web/openapi-v1.json src/http/web/openapi-v2.json | grep -oE '^ *"/[^"]+": *\{' | grep -oE '/[^"]+')
    [ "$found" -ge 15 ] || fail "only $found routes were found in src/http/web/openapi-*.json"
}

# Files of this project that the documents name, in backquotes.
# shellcheck disable=SC2016 # backquotes of Markdown
check_files() {
    local document file
    while read -r document; do
        while read -r file; do
            [ -e "$file" ] || fail "$document names $file: there is no such file"
        done < <(grep -oE '`(src|tests|benches|scripts|docs|examples|fuzz|vmlinux)/[A-Za-z0-9_./-]*`' "$document" | tr -d '`')
    done < <(documents)
}

check_links
check_files
check_readme
check_chapters
check_routes
check_options
[ "$failures" -eq 0 ] || die "$failures errors in the documents"
