# Prints the share of statements that a coverage profile says were run, for
# each package and in all. A statement is in the profile once for each test
# binary.
NR > 1 {
	package = $1
	sub(/\/[^\/]*$/, "", package)
	if (!($1 in statements)) {
		statements[$1] = $2
		total[package] += $2
		all += $2
	}
	if ($3 > 0 && !($1 in hit)) {
		hit[$1] = 1
		covered[package] += $2
		allCovered += $2
	}
}
END {
	for (package in total)
		printf "%5.1f%%  %s\n", 100 * covered[package] / total[package], package | "sort -k 2"
	close("sort -k 2")
	if (all)
		printf "%5.1f%%  in all\n", 100 * allCovered / all
}
