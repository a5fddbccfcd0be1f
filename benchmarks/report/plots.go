package report

import (
	"errors"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
)

// Colours that people who see fewer of them tell apart, too.
var (
	red    = color.RGBA{0xD5, 0x5E, 0x00, 0xFF}
	blue   = color.RGBA{0x00, 0x72, 0xB2, 0xFF}
	sky    = color.RGBA{0x56, 0xB4, 0xE9, 0xFF}
	green  = color.RGBA{0x00, 0x9E, 0x73, 0xFF}
	orange = color.RGBA{0xE6, 0x9F, 0x00, 0xFF}
	pink   = color.RGBA{0xCC, 0x79, 0xA7, 0xFF}
	gray   = color.RGBA{0x80, 0x80, 0x80, 0xFF}
	black  = color.RGBA{0x20, 0x20, 0x20, 0xFF}
	pale   = color.RGBA{0xFF, 0xF3, 0xC4, 0xFF}
	faint  = color.RGBA{0xDD, 0xDD, 0xDD, 0xFF}
)

// lineStyle is how a peer is drawn among the lines.
type lineStyle struct {
	name   string
	color  color.Color
	dashes []vg.Length
	width  vg.Length
}

// lines are the peers of the plot over callers; the others are in the tables.
var lines = []lineStyle{
	{peer.Ours, red, nil, 3},
	{peer.OursLease, red, []vg.Length{6, 3}, 3},
	{"bucket4j, async", green, []vg.Length{6, 3}, 1.7},
	{"bucket4j", green, nil, 1.7},
	{peer.RedisRatePipeline, sky, []vg.Length{6, 3}, 1.7},
	{peer.RedisRate, sky, nil, 1.7},
	{peer.Redisson, blue, nil, 1.7},
	{"ulule/limiter", orange, nil, 1.7},
	{"sliding log", pink, nil, 1.7},
	{"httprate-redis", black, nil, 1.7},
	{"throttled", gray, nil, 1.7},
	{peer.EVALSHA, gray, []vg.Length{2, 2}, 1.7},
	{"PING", black, []vg.Length{2, 2}, 1.7},
}

// plots writes the plots into the folder.
func plots(r *Results, dir string) error {
	return errors.Join(
		save(byCallers(r, Direct, "One hot limiter, all granted: decisions a second"), filepath.Join(dir, "callers.png"), 5.6),
		save(byCallers(r, Delayed, "The same with 1 ms of network there and back"), filepath.Join(dir, "callers-far.png"), 5.6),
		save(latencyBars(r), filepath.Join(dir, "latency.png"), 6.6),
		save(serverBars(r), filepath.Join(dir, "server.png"), 6.6),
		save(memoryBars(r), filepath.Join(dir, "memory.png"), 2.4),
	)
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = title
	for _, style := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		style.Variant = "Sans"
		style.Size = 11
	}
	p.Title.TextStyle.Font.Size = 14
	p.Title.Padding = 8
	return p
}

// width is the width of all plots, in inches.
const width = 9

// save writes a plot of that height in inches; nil, if nothing was measured, leaves the old
// one.
func save(p *plot.Plot, path string, height vg.Length) error {
	if p == nil {
		return nil
	}
	canvas := vgimg.NewWith(vgimg.UseWH(width*vg.Inch, height*vg.Inch), vgimg.UseDPI(144))
	area := draw.New(canvas)
	p.Draw(draw.Crop(area, 10, -14, 8, -8))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = vgimg.PngCanvas{Canvas: canvas}.WriteTo(f)
	return errors.Join(err, f.Close())
}

// byCallers is a plot of decisions/s over callers.
func byCallers(r *Results, network, title string) *plot.Plot {
	p := newPlot(title)
	p.X.Label.Text = "callers"
	p.Y.Label.Text = "decisions a second"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var ticks []plot.Tick
	var labels endLabels
	for _, style := range lines {
		var points plotter.XYs
		for _, l := range r.loads(Rate, network, Granting) {
			l.Metric, l.Peer, l.Network, l.Mode = Rate, style.name, network, Granting
			s := r.Of(l)
			if l.Limiters != 1 || s.Rounds == 0 || s.Median <= 0 {
				continue
			}
			points = append(points, plotter.XY{X: float64(l.Callers), Y: s.Median})
			ticks = append(ticks, plot.Tick{Value: float64(l.Callers), Label: group(l.Callers)})
		}
		if len(points) < 2 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			continue
		}
		line.Color, line.Dashes, line.Width = style.color, style.dashes, style.width
		dots.Color, dots.Shape, dots.Radius = style.color, draw.CircleGlyph{}, style.width
		p.Add(line, dots)
		labels = append(labels, endLabel{style.name, style.color, points[len(points)-1]})
	}
	if len(labels) == 0 {
		return nil
	}
	p.Y.Min, p.Y.Max = decade(p.Y.Min, math.Floor), decade(p.Y.Max, math.Ceil)
	slices.SortFunc(ticks, func(a, b plot.Tick) int { return int(a.Value - b.Value) })
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(slices.Compact(ticks)), decades{}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = faint, faint
	p.Add(grid, labels)
	return p
}

func decade(v float64, round func(float64) float64) float64 {
	return math.Pow(10, round(math.Log10(v)))
}

// decades ticks powers of ten, with the numbers written out.
type decades struct{}

func (decades) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for v := decade(low, math.Floor); v <= high*1.001; v *= 10 {
		if v >= low*0.999 {
			label := strconv.FormatFloat(v, 'g', 3, 64)
			if v >= 1 {
				label = group(int(math.Round(v)))
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
		for i := 2.0; i < 10; i++ {
			if v*i > low && v*i < high {
				ticks = append(ticks, plot.Tick{Value: v * i})
			}
		}
	}
	return ticks
}

// endLabels name lines at their right ends, moved apart if they would touch.
type endLabels []endLabel

type endLabel struct {
	name  string
	color color.Color
	at    plotter.XY
}

func (labels endLabels) Plot(c draw.Canvas, p *plot.Plot) {
	const apart = 12.5
	x, y := p.Transforms(&c)
	sorted := slices.Clone(labels)
	slices.SortFunc(sorted, func(a, b endLabel) int { return int(math.Copysign(1, b.at.Y-a.at.Y)) })
	places := make([]vg.Length, len(sorted))
	for i, l := range sorted {
		places[i] = y(l.at.Y)
		if i > 0 {
			places[i] = min(places[i], places[i-1]-apart)
		}
	}
	// Those pushed out below push the others up again.
	for i := len(places) - 1; i >= 0; i-- {
		lowest := c.Min.Y + 4
		if i < len(places)-1 {
			lowest = places[i+1] + apart
		}
		places[i] = max(places[i], lowest)
	}
	for i, l := range sorted {
		right := x(l.at.X)
		style := sans(10.5, l.color)
		style.YAlign = draw.YCenter
		c.StrokeLine2(draw.LineStyle{Color: l.color, Width: 0.6}, right+4, y(l.at.Y), right+13, places[i])
		c.FillText(style, vg.Point{X: right + 15, Y: places[i]}, l.name)
	}
}

// GlyphBoxes makes room for the names.
func (labels endLabels) GlyphBoxes(p *plot.Plot) []plot.GlyphBox {
	var boxes []plot.GlyphBox
	for _, l := range labels {
		width := sans(10.5, l.color).Width(l.name)
		boxes = append(boxes, plot.GlyphBox{
			X: p.X.Norm(l.at.X), Y: p.Y.Norm(l.at.Y), Rectangle: vg.Rectangle{Max: vg.Point{X: width + 17}},
		})
	}
	return boxes
}

func sans(size vg.Length, c color.Color) draw.TextStyle {
	return draw.TextStyle{
		Color:   c,
		Font:    font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans", Size: size},
		Handler: plot.DefaultTextHandler,
	}
}

// bars is a plot of horizontal bars, a group for each peer, with their values at
// their ends.
type bars struct {
	groups []string
	series []series
	from   float64 // where bars begin
}

type series struct {
	name   string
	color  color.Color
	values []float64 // of each group; 0 for none
}

func (b *bars) plot(title, unit string, log bool) *plot.Plot {
	if len(b.groups) == 0 {
		return nil
	}
	p := newPlot(title)
	p.X.Label.Text = unit
	highest := 0.0
	lowest := math.MaxFloat64
	for _, s := range b.series {
		for _, v := range s.values {
			highest = max(highest, v)
			if v > 0 {
				lowest = min(lowest, v)
			}
		}
		if len(b.series) > 1 {
			p.Legend.Add(s.name, swatch{s.color})
		}
	}
	p.Legend.Top, p.Legend.Left = false, false
	p.Legend.YOffs, p.Legend.XOffs, p.Legend.Padding = 8, -6, 3
	p.X.Min, p.X.Max = 0, highest*1.15
	if log {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
		p.X.Min, p.X.Max = decade(lowest*0.9, math.Floor), decade(highest, math.Ceil)
		if highest*2.5 > p.X.Max {
			p.X.Max *= 3
		}
	}
	b.from = p.X.Min
	p.Y.Min, p.Y.Max = -0.5, float64(len(b.groups))-0.5
	var ticks []plot.Tick
	for i, name := range b.groups {
		ticks = append(ticks, plot.Tick{Value: float64(len(b.groups) - 1 - i), Label: name})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.Length = 0
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	grid.Vertical.Color = faint
	p.Add(grid, b)
	return p
}

// Plot draws the bars.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	height := (y(1) - y(0)) * 0.8 / vg.Length(len(b.series))
	for i, name := range b.groups {
		if strings.HasPrefix(name, peer.Ours) {
			low, high := y(float64(len(b.groups)-1-i)-0.5), y(float64(len(b.groups)-1-i)+0.5)
			c.FillPolygon(pale, []vg.Point{{X: c.Min.X, Y: low}, {X: c.Max.X, Y: low}, {X: c.Max.X, Y: high}, {X: c.Min.X, Y: high}})
		}
		top := y(float64(len(b.groups)-1-i)) + height*vg.Length(len(b.series))/2
		for j, s := range b.series {
			v := s.values[i]
			if v <= 0 {
				continue
			}
			high, low := top-height*vg.Length(j), top-height*vg.Length(j+1)+0.8
			left, right := x(b.from), x(v)
			c.FillPolygon(s.color, []vg.Point{{X: left, Y: low}, {X: right, Y: low}, {X: right, Y: high}, {X: left, Y: high}})
			style := sans(min(10, height*1.05), black)
			style.YAlign = draw.YCenter
			c.FillText(style, vg.Point{X: right + 3, Y: (low + high) / 2}, number(v))
		}
	}
}

// swatch is a bar's colour in the legend.
type swatch struct{ color color.Color }

func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.color, []vg.Point{
		{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y},
	})
}

// fill takes a value of each peer for each series; peers without any are left
// out, and the lowest of the first series comes first.
func (b *bars) fill(names []string, series []series, value func(name string, series int) float64) *bars {
	slices.SortStableFunc(names, func(a, b string) int {
		return int(math.Copysign(1, value(a, 0)-value(b, 0)))
	})
	b.series = series
	for _, name := range names {
		if value(name, 0) <= 0 {
			continue
		}
		b.groups = append(b.groups, name)
		for i := range b.series {
			b.series[i].values = append(b.series[i].values, value(name, i))
		}
	}
	return b
}

func latencyBars(r *Results) *plot.Plot {
	metrics := []string{P50, P99}
	b := new(bars).fill(r.names(), []series{{name: "p50", color: sky}, {name: "p99", color: blue}},
		func(name string, i int) float64 {
			return r.Of(loadKey(metrics[i], name, Granting, 256, 1)).Median / 1000
		})
	return b.plot("One hot limiter, 256 callers, all granted: how long a caller waits", "ms, logarithmic; less is better", true)
}

func serverBars(r *Results) *plot.Plot {
	callers := []int{1, 256}
	b := new(bars).fill(r.names(), []series{{name: "1 caller", color: orange}, {name: "256 callers", color: red}},
		func(name string, i int) float64 {
			if strings.HasPrefix(name, "PING") {
				return 0
			}
			return r.Of(loadKey(ServerTime, name, Granting, callers[i], 1)).Median
		})
	return b.plot("One limiter, all granted: what a decision costs the server", "µs in commands and scripts, logarithmic; less is better", true)
}

func memoryBars(r *Results) *plot.Plot {
	b := new(bars).fill(r.names(), []series{{name: "bytes a permit", color: green}}, func(name string, _ int) float64 {
		if kind, _ := peer.Find(name); !kind.Log || name == peer.RedissonAsync {
			return 0
		}
		return r.Of(loadKey(BytesPermit, name, Granting, 256, 1)).Median
	})
	return b.plot("256 callers on one limiter: what a permit in use takes, of those that log them", "bytes; less is better", false)
}
