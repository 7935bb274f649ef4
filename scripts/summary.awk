# Reads Meson's testlog.json of one or more build directories. Prints for every suite how many tests passed, failed and
# were skipped, its budget in minutes and the time that it used; the last line is the total. Fails if a test failed, or
# if a file is missing or empty, because then no test has run.
#
# The tests of a program are counted by what it prints: the line "Checks: ..." of the library Check, or "N passed, M
# failed" (the last such line). A program that prints neither is one test. If a program fails without reporting a failed
# test, because it crashed or hung, one more failure is counted.

BEGIN {
    # Budgets for the sum of the times of a suite's tests, of which two or three run at once.
    minutes["unit"] = 3; minutes["ops"] = 5; minutes["contract"] = 4; minutes["train"] = 8; minutes["misuse"] = 1
    minutes["examples"] = 1; minutes["conventions"] = 4; minutes["comm"] = 8; minutes["placement"] = 2
    minutes["parallel"] = 2; minutes["checkpoint"] = 1; minutes["memory"] = 1; minutes["cuda-emulator"] = 12
    minutes["fuzz"] = 1; minutes["plugins"] = 1; minutes["python"] = 1; minutes["torch"] = 6; minutes["long"] = 120

    for (i = 1; i < ARGC; i++) {
        has_results = (getline line < ARGV[i]) > 0
        close(ARGV[i])
        if (has_results) continue
        print "FAILED  " ARGV[i] " has no results"
        all_failed++
        ARGV[i] = "/dev/null"
    }
}

# Returns the number that follows `mark` in the text: number("Checks: 12, ...", "Checks: ") is 12.
function number(text, mark) {
    return substr(text, index(text, mark) + length(mark)) + 0
}

function count_check(text,    line) {
    while (match(text, /Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/)) {
        line = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        bad += number(line, "Failures: ") + number(line, "Errors: ")
        good += number(line, "Checks: ") - number(line, "Failures: ") - number(line, "Errors: ")
    }
}

function count_table(text,    line) {
    while (match(text, /[0-9]+ passed, [0-9]+ failed/)) {
        line = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
    }
    good += line + 0
    bad += number(line, "passed, ")
}

function suite_of(file, name,    build) {
    build = file
    sub(/\/meson-logs\/.*/, "", build)
    sub(/.*\//, "", build)
    sub(/^[^:]*:/, "", name)
    sub(/ \/ .*/, "", name)
    return build == "build" ? name : name " (" build ")"
}

{
    split_at = index($0, "\", \"result\": \"")
    head = substr($0, 1, split_at)
    tail = substr($0, split_at)
    name = substr(head, index(head, "\"name\": \"") + 9)
    text = substr(name, index(name, "\", \"stdout\": \""))
    name = substr(name, 1, index(name, "\"") - 1)
    match(tail, /"result": "[A-Z]+"/)
    result = substr(tail, RSTART + 11, RLENGTH - 12)

    suite = suite_of(FILENAME, name)
    if (!(suite in used)) order[++suites] = suite
    used[suite] += number(tail, "\"duration\": ") / 60
    if (result == "SKIP") {
        skipped[suite]++
        next
    }
    good = bad = 0
    count_check(text)
    count_table(text)
    if (result != "OK" && !bad) bad = 1
    if (good + bad == 0) good = 1
    if (bad) print "FAILED  " name " (" suite "): " result
    passed[suite] += good
    failed[suite] += bad
}

END {
    printf "\n%-28s %8s %8s %8s %14s %8s\n", "suite", "passed", "failed", "skipped", "budget (min)", "used"
    for (i = 1; i <= suites; i++) {
        s = order[i]
        plain = s
        sub(/ .*/, "", plain)
        late = used[s] > minutes[plain] ? "  over budget" : ""
        printf "%-28s %8d %8d %8d %14d %8.2f%s\n", s, passed[s], failed[s], skipped[s], minutes[plain], used[s], late
        all_passed += passed[s]
        all_failed += failed[s]
    }
    if (!suites) all_failed = 1
    printf "\n%d passed, %d failed\n", all_passed, all_failed
    exit all_failed > 0
}
