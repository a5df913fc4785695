# From the log of `cargo test`: what failed, and the first lines of what its panic said.
#
#   awk -f scripts/failed-tests.awk LOG

# Prints a failure and at most 15 lines of its text, from the panic's own on.
function print_failure(name,    i, first, last) {
    first = 1
    for (i = 1; i <= lines; i++)
        if (text[i] ~ /^thread '.*panicked at /) {
            first = i
            break
        }
    last = first + 14 < lines ? first + 14 : lines
    # With RUST_BACKTRACE set; the log has it.
    for (i = first; i <= last; i++)
        if (text[i] == "stack backtrace:")
            last = i - 1
    while (last > first && text[last] == "")
        last--
    printf "\nFAILED %s (%s)\n", name, target
    for (i = first; i <= last; i++)
        print "    " text[i]
    lines = 0
    failures++
}

function end_block() {
    if (block != "")
        print_failure(block)
    block = ""
}

/^ +Running / {
    target = $2 == "unittests" ? $3 : $2
    delete running
}
/^ +Doc-tests / { target = "doc-tests" }

# The test harness shows each failed test's output in a block of its own.
/^---- .* stdout ----$/ {
    end_block()
    block = $0
    sub(/^---- /, "", block)
    sub(/ stdout ----$/, "", block)
    lines = 0
    next
}
block != "" && /^failures:$/ { end_block() }
block != "" {
    text[++lines] = $0
    next
}

# Without the harness (tests/scenarios), or where a test's process ended early, the last panic is the reason.
/^thread '.*panicked at / {
    lines = 0
    panicked = 1
}
panicked && lines < 15 { text[++lines] = $0 }
/^FAILED +scenario:.* \([0-9.]+ s\)$/ {
    name = $2
    lines -= text[lines] == $0
    print_failure(name)
    panicked = 0
}
/^test .* has been running for over / { running[$2] }
/^test .* \.\.\. / { delete running[$2] }
/^test .* ok$/ || /^passed +scenario:/ {
    lines = 0
    panicked = 0
}
# scripts/until-silent.sh ended it (124), or a signal did.
/process didn't exit successfully: .*\((signal: |exit status: 124\))/ {
    text[++lines] = $0
    for (name in running)
        text[++lines] = "it was running " name
    print_failure("the process of the tests")
}
/^error(\[E[0-9]+\])?: / && !/^error: (test failed|doctest failed|[0-9]+ targets? failed)/ {
    printf "\n%s\n", $0
    failures++
}

END {
    end_block()
    if (!failures)
        print "no test is named in the log: its last lines say why it ended"
}
