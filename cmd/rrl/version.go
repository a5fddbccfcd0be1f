package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release and commit are set by the linker when a release is built, as in
// -ldflags "-X main.release=v1.2.3 -X main.commit=0123abc".
var release, commit string

// build is what rrl was built from.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"` // there were changes beside the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: release, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = cmp.Or(b.Commit, s.Value)
			case "vcs.modified":
				b.Modified = s.Value == "true" && commit == ""
			}
		}
	}
	b.Version, b.Commit = cmp.Or(b.Version, "(unknown)"), cmp.Or(b.Commit, "(unknown)")
	return b
}

func (b build) String() string {
	s := "rrl " + b.Version + ", commit " + b.Commit
	if b.Modified {
		s += " and changes"
	}
	return s + ", " + b.Go + ", " + b.Platform
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and Go version",
		Example: `  rrl version --json`,
		Args:    named(),
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			return a.out.Print(b, b.String())
		},
	}
}
