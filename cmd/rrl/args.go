package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

// named returns the check of a command's arguments, which the usage line calls
// by these names. One in brackets may be missing.
func named(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names) && !strings.HasPrefix(names[len(args)], "["):
			return fmt.Errorf("%s is missing; usage: %s", names[len(args)], cmd.UseLine())
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q; usage: %s", args[len(names)], cmd.UseLine())
		case len(names) > 0 && names[0] == "NAME" && args[0] == "":
			return fmt.Errorf("the name is empty; usage: %s", cmd.UseLine())
		}
		return nil
	}
}

// exclusive fails if the first flag is set and any of the others.
func exclusive(flags *pflag.FlagSet, one string, others ...string) error {
	for _, other := range others {
		if flags.Changed(one) && flags.Changed(other) {
			return fmt.Errorf("--%s and --%s exclude each other", one, other)
		}
	}
	return nil
}

// required fails if one of the flags is not set.
func required(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if !flags.Changed(name) {
			return fmt.Errorf("--%s is missing", name)
		}
	}
	return nil
}

// notEmpty fails if one of the flags got an empty text: a variable, most
// often, that is not set.
func notEmpty(flags, those *pflag.FlagSet) error {
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" && those.Lookup(f.Name) != nil {
			err = errors.Join(err, fmt.Errorf("--%s is empty", f.Name))
		}
	})
	return err
}

// span is the time of a flag, as [words.ParseDuration] reads it.
type span time.Duration

func (s *span) Set(text string) error {
	d, err := words.ParseDuration(text)
	*s = span(d)
	return err
}

func (s *span) String() string {
	if *s == 0 {
		return ""
	}
	return words.Duration(time.Duration(*s))
}

func (*span) Type() string { return "duration" }

// wants is what flags of each type take.
var wants = map[string]string{
	"int":      "a whole number",
	"int64":    "a whole number",
	"intSlice": "whole numbers, with commas between them",
	"duration": "a time, such as 500ms, 10s or 1h",
	"bool":     "true or false",
}

// flagError explains a flag's error, in place of the parsers' texts.
func flagError(_ *cobra.Command, err error) error {
	if value, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := value.GetFlag()
		want, known := wants[flag.Value.Type()]
		switch {
		case errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("--%s %q is out of range", flag.Name, value.GetValue())
		case known:
			return fmt.Errorf("--%s %q: want %s", flag.Name, value.GetValue(), want)
		}
		return fmt.Errorf("--%s: %w", flag.Name, value.Unwrap())
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if short := unknown.GetSpecifiedShortnames(); strings.IndexAny(short, "0123456789.") == 0 {
			return fmt.Errorf("-%s is below 0; write -- before a name that begins with -", short)
		}
	}
	return err
}

// newHelp is cobra's help, except for an unknown command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Explain a command",
		Example: "  rrl help acquire",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names := slices.DeleteFunc(commandNames(about), func(name string) bool { return !strings.HasPrefix(name, toComplete) })
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// strictCompletion makes completion fail for an unknown shell.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	cmd.Example = "  source <(rrl completion bash)"
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		want := strings.Join(commandNames(cmd), ", ")
		if len(args) > 0 {
			return fmt.Errorf("unknown shell %q: want one of %s", args[0], want)
		}
		return fmt.Errorf("SHELL is missing; usage: %s SHELL, with one of %s", cmd.CommandPath(), want)
	}
}

// commandNames returns the names of the commands below cmd, sorted.
func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	slices.Sort(names)
	return names
}
