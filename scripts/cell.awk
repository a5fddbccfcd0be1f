# Counts the tests in the output of go test -json: "passed failed skipped". What
# a failed test said goes to standard error. A test whose body ran in a synctest
# bubble and skipped there passes, as far as go test knows.

function field(name,    text) {
	if (!match($0, "\"" name "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
	text = substr($0, RSTART + length(name) + 4)
	return substr(text, 1, RLENGTH - length(name) - 5)
}

{
	action = field("Action")
	test = field("Package") " " field("Test")
}

action == "output" || action == "build-output" {
	text = field("Output")
	if (text ~ /runs on miniredis|does not run on the shared servers|moves the clock, which does not go with/) within[test] = 1
	said[test] = said[test] text
}

action == "pass" && field("Test") != "" {
	if (test in within) skipped++
	else passed++
}

action == "skip" && field("Test") != "" { skipped++ }

action == "fail" || action == "build-fail" {
	if (field("Test") != "") failed++
	else packages++
	gsub(/\\n/, "\n", said[test])
	gsub(/\\t/, "    ", said[test])
	gsub(/\\"/, "\"", said[test])
	print "FAILED: " test "\n" said[test] > "/dev/stderr"
}

END { print passed + 0, failed ? failed : packages + 0, skipped + 0 }
