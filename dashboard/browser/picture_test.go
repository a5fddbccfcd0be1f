package browser_test

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/chromedp/cdproto/page"
	"github.com/stretchr/testify/require"
)

// png returns what the tab shows.
func (p *tab) png() []byte {
	p.t.Helper()
	return call(p, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}).Data
}

// picture keeps one among the test's artifacts (go test -artifacts), for who looks
// after a failure.
func (p *tab) picture(name string) {
	p.t.Helper()
	path := filepath.Join(p.t.ArtifactDir(), name+".png")
	if err := os.WriteFile(path, p.png(), 0o600); err == nil {
		p.t.Log("a picture:", path)
	}
}

// small returns the picture with few colours, in a quarter of the bytes: a page has
// few, and the rest is the edges of letters.
func (p *tab) small(picture []byte) []byte {
	p.t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	require.NoError(p.t, err)
	counts := map[color.RGBA]int{}
	bounds := full.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	paletted := image.NewPaletted(bounds, paletteOf(counts))
	draw.Draw(paletted, bounds, full, bounds.Min, draw.Src)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	require.NoError(p.t, encoder.Encode(&out, paletted))
	return out.Bytes()
}

// paletteOf returns the most frequent colours, each unlike those before: so one that
// is rare, as of a dot, has its place too.
func paletteOf(counts map[color.RGBA]int) color.Palette {
	const unlike = 24 // as the sum of differences
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	apart := func(a, b uint8) int { return max(int(a)-int(b), int(b)-int(a)) }
	var palette color.Palette
	for i, c := range colours {
		known := slices.ContainsFunc(palette, func(p color.Color) bool {
			o := p.(color.RGBA)
			return apart(c.R, o.R)+apart(c.G, o.G)+apart(c.B, o.B) < unlike
		})
		if i < 16 || !known && len(palette) < 256 { // what the page is drawn with stays as it is
			palette = append(palette, c)
		}
	}
	return palette
}
