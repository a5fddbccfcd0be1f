package live

import (
	"io"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

// Screen is a terminal that is drawn on again and again.
type Screen struct {
	tcell.Screen

	events chan tcell.Event
}

// OpenScreen takes over the terminal. It returns nil if out is none, or if the process has
// none to draw on.
func OpenScreen(out io.Writer) *Screen {
	if _, terminal := output.Width(out); !terminal {
		return nil
	}
	// As in all that rrl prints, names are UTF-8, whatever the locale says.
	tcell.RegisterEncoding("us-ascii", tcell.GetEncoding("utf-8"))
	tcell.SetEncodingFallback(tcell.EncodingFallbackUTF8)
	terminal, err := tcell.NewScreen()
	if err != nil { // $TERM is unknown, and most terminals are like this one
		xterm, _ := tcell.LookupTerminfo("xterm")
		terminal, err = tcell.NewTerminfoScreenFromTtyTerminfo(nil, xterm)
	}
	if err != nil || terminal.Init() != nil {
		return nil
	}
	s := &Screen{terminal, make(chan tcell.Event)}
	go s.ChannelEvents(s.events, nil)
	return s
}

// Close restores the terminal. It first reads what is still typed: Fini hangs if that
// fills tcell's queues, and what is left would be the shell's.
func (s *Screen) Close() {
	for {
		select {
		case <-s.events:
		case <-time.After(20 * time.Millisecond):
			s.Fini()
			return
		}
	}
}

// keyOf returns a key by its letter, or by its name in [tcell.KeyNames], and "" for what is
// none. A terminal that is lost ends all, as Ctrl-C does.
func keyOf(event tcell.Event) string {
	switch e := event.(type) {
	case *tcell.EventError:
		return "Ctrl-C"
	case *tcell.EventKey:
		switch {
		case e.Modifiers()&tcell.ModAlt != 0:
			return ""
		case e.Key() == tcell.KeyRune:
			return string(e.Rune())
		case e.Key() == tcell.KeyCtrlJ: // a newline, which scripts type
			return "Enter"
		}
		return tcell.KeyNames[e.Key()]
	}
	return ""
}

// draw shows the lines, from the top.
func (s *Screen) draw(lines []string) {
	s.Clear()
	for y, line := range lines {
		x, style := 0, tcell.StyleDefault
		for i, text := range strings.Split(line, "\x1b") {
			if i > 0 {
				var color string
				color, text, _ = strings.Cut(text, "m")
				style = painted(style, "\x1b"+color+"m")
			}
			for _, r := range text {
				s.Put(x, y, string(r), style)
				x += runeWidth(r)
			}
		}
	}
	s.Show()
}

// painted adds one of output's colours to a style.
func painted(style tcell.Style, color string) tcell.Style {
	switch color {
	case output.Bold:
		return style.Bold(true)
	case output.Faint:
		return style.Dim(true)
	case output.Red:
		return style.Foreground(tcell.PaletteColor(1))
	case output.Green:
		return style.Foreground(tcell.PaletteColor(2))
	case output.Yellow:
		return style.Foreground(tcell.PaletteColor(3))
	}
	return tcell.StyleDefault
}
