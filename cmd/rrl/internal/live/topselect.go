package live

import (
	"context"
	"errors"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

// selection is the row that the keys move. It follows its limiter when the order changes.
type selection struct {
	row  int
	name string // "" until the next sample: the row then has one
	new  bool   // other rows are wanted than those of the last sample
}

// move moves the selection by this many limiters, and scrolls as far as needed.
func (ui *topUI) move(by int) {
	at := min(max(ui.view.Offset+ui.chosen.row+by, 0), max(ui.last.Matching-1, 0))
	offset := min(max(ui.view.Offset, at-ui.fits()+1), at)
	ui.chosen = selection{row: at - offset, new: offset != ui.view.Offset}
	ui.view.Offset = offset
	if !ui.chosen.new && ui.chosen.row < len(ui.last.Limiters) {
		ui.chosen.name = ui.last.Limiters[ui.chosen.row].Name
	}
}

// fromTop selects the first of all limiters that match.
func (ui *topUI) fromTop() {
	ui.view.Offset = 0
	ui.chosen = selection{new: true}
}

// follow finds the selected limiter in a new sample.
func (ui *topUI) follow() {
	all := ui.last.Limiters
	c := &ui.chosen
	c.new = false
	if i := slices.IndexFunc(all, func(l look.Limiter) bool { return l.Name == c.name }); c.name != "" && i >= 0 {
		c.row = i
	}
	if c.row = max(min(c.row, len(all)-1), 0); c.row < len(all) {
		c.name = all[c.row].Name
	}
}

// fits is how many limiters there is room for.
func (ui *topUI) fits() int {
	if ui.view.Rows > 0 {
		return ui.view.Rows
	}
	return max(ui.rows-headLines-1, 1)
}

// marked puts a mark before the selected row, and as much room before the other lines.
func (ui *topUI) marked(lines []string) []string {
	for i := range lines {
		mark := "  "
		if i-headLines == ui.chosen.row && len(ui.last.Limiters) > 0 {
			mark = "> "
		}
		lines[i] = cut(mark, ui.columns) + lines[i]
	}
	return lines
}

// open watches the selected limiter until the user comes back, and reports whether that
// was the end of all.
func (t *Top) open(ctx context.Context, ui *topUI) (end bool) {
	if t.Open == nil || ui.chosen.name == "" {
		return false
	}
	w := t.Open(ui.chosen.name)
	w.opened = true
	end, err := w.show(ctx, ui.screen, ui.paint)
	if err != nil && !errors.Is(err, ErrGone) {
		ui.last.Err = err
	}
	ui.silence.broken() // none was taken meanwhile, so none is late
	ui.share()
	return end
}
