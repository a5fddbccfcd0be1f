// Package lua holds the scripts that work on limiters, one file a script.
//
// A line
//
//	--- @include "name" "another"
//
// stands for the texts of include/name.lua and include/another.lua. A script has each once, however
// many lines ask for it; includes may include. A script's head names its KEYS, its ARGV and what it returns. Scripts
// read and write only keys passed in KEYS, count in integers, and touch a bounded number of
// rows a call: if more are left they answer {"again", token} and are called once more.
package lua

import "embed"

// Files are the scripts and the folder include.
//
//go:embed *.lua include/*.lua
var Files embed.FS
