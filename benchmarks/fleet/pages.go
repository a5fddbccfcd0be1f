package main

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgsvg" // writes plots as SVG

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// pages writes the tables, and into the folder of scale.md, if there is one.
func pages(w io.Writer, docs string, programs int, rate int64) error {
	table := func(name, _ string) (string, error) {
		switch name {
		case "fleet":
			return fleetTable(programs, rate), nil
		case "sizes":
			return sizesTable(rate), nil
		}
		return "", fmt.Errorf("no table is called %q", name)
	}
	text := "<!-- begin fleet -->\n<!-- end -->\n\n<!-- begin sizes -->\n<!-- end -->\n"
	if docs == "" {
		text, err := page.Fill(text, table)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, text)
		return err
	}
	path := filepath.Join(docs, "scale.md")
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if text, err = page.Fill(string(old), table); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path, []byte(text), 0o644), draw(filepath.Join(docs, "scale.svg"), rate))
}

// fleetTable has the programs by interval and demand, with leases and without.
func fleetTable(programs int, rate int64) string {
	var rows [][]string
	for _, interval := range []time.Duration{time.Second, time.Minute} {
		for _, demand := range []float64{0.5, 1, 2, 10} { // -csv has all
			with, without := simulate(programs, interval, rate, demand, even, true), simulate(programs, interval, rate, demand, even, false)
			asked := demand * float64(rate) / interval.Seconds() // calls, if each decision is one
			rows = append(rows, []string{
				fmt.Sprintf("%s, %v", name(interval), demand), whole(with.calls), share(with.used), fmt.Sprintf("%.3f", with.jain),
				fmt.Sprintf("%.1f", max(0.1, with.newcomer)), whole(without.calls), share(without.used),
				whole(asked), share(min(1, 1/callCost.Seconds()/asked)),
			})
		}
	}
	return page.Table([]string{
		"interval, demand", "calls a second", "used", "fairness", "newcomer", "without leases: calls", "used", "a call a decision: calls", "answered",
	}, rows, true)
}

// sizesTable has fleets of several sizes.
func sizesTable(rate int64) string {
	var rows [][]string
	for _, programs := range []int{10, 100, 1000, 10_000} {
		row := []string{whole(float64(programs))}
		for _, demand := range []float64{0.9, 2} {
			r := simulate(programs, time.Second, rate, demand, even, true)
			row = append(row, whole(r.calls), share(r.used), fmt.Sprintf("%.3f", r.jain), fmt.Sprintf("%.2f", r.life.Seconds()))
		}
		rows = append(rows, row)
	}
	return page.Table([]string{
		"programs", "demand 0.9: calls a second", "used", "fairness", "longest life", "demand 2: calls", "used", "fairness", "longest life",
	}, rows, true)
}

func name(d time.Duration) string {
	if d == time.Minute {
		return "1 min"
	}
	return "1 s"
}

func share(x float64) string { return fmt.Sprintf("%.0f %%", 100*min(1, x)) }

// whole returns a number with commas.
func whole(x float64) string {
	text := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// draw draws the calls over the programs.
func draw(path string, rate int64) error {
	p := plot.New()
	p.Title.Text = "Programs on one limiter of a million permits a second: calls a second at Redis"
	p.X.Label.Text, p.Y.Label.Text = "programs", "calls a second"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Left, p.Legend.Top = true, true
	for _, one := range []struct {
		name   string
		color  color.RGBA
		demand float64
		leases bool
	}{
		{"leases, demand 0.9 of the limit", color.RGBA{0, 0x72, 0xB2, 0xFF}, 0.9, true},
		{"leases, demand 2 of the limit", color.RGBA{0xD5, 0x5E, 0, 0xFF}, 2, true},
		{"without leases, 0.9", color.RGBA{0x80, 0x80, 0x80, 0xFF}, 0.9, false},
	} {
		var points plotter.XYs
		for _, n := range []int{1, 3, 10, 30, 100, 300, 1000, 3000, 10_000} {
			r := simulate(n, time.Second, rate, one.demand, even, one.leases)
			points = append(points, plotter.XY{X: float64(n), Y: r.calls})
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width, dots.Color = one.color, 2, one.color
		p.Add(line, dots)
		p.Legend.Add(one.name, line)
	}
	p.Add(plotter.NewGrid())
	p.Y.Min = 10
	return p.Save(8*vg.Inch, 4.5*vg.Inch, path)
}
