package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

// onTerminal reports whether someone sees questions on stderr, and can answer.
func onTerminal(stderr io.Writer) bool {
	_, reads := output.Width(os.Stdin)
	_, sees := output.Width(stderr)
	return reads && sees
}

// canAsk reports whether there is someone to ask. With --json a program waits for the answer.
func (a *app) canAsk() bool { return a.terminal && !a.out.JSON }

// ask asks a question. Unless the answer is yes it says that nothing changed, and returns errNo.
func (a *app) ask(cmd *cobra.Command, question string) error {
	fmt.Fprint(a.stderr, question+"? [y/N] ")
	line, err := interruptible(cmd.Context(), func() (string, error) {
		return bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	})
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "y" || answer == "yes":
		return nil
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(a.stderr)
		return err
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	fmt.Fprintln(a.out, "nothing changed")
	return errNo
}
