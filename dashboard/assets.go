package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

//go:embed assets
var assets embed.FS

// asset is a file that the page is made of.
type asset struct {
	text, packed []byte
	kind, tag    string
}

// pack reads the files once for the process.
var pack = sync.OnceValues(func() (map[string]*asset, error) {
	all := map[string]*asset{}
	err := fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		a := &asset{text: text, kind: mime.TypeByExtension(path.Ext(name)), tag: `W/"` + hex.EncodeToString(sum[:8]) + `"`}
		if path.Ext(name) == ".js" {
			a.kind = "text/javascript; charset=utf-8" // whatever the machine calls it
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(text); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		a.packed = packed.Bytes()
		all["/"+name] = a
		return nil
	})
	all["/"] = all["/assets/index.html"]
	delete(all, "/assets/index.html")
	return all, err
})

// asset serves the files of the page.
func (c *call) asset() error {
	all, err := pack()
	if err != nil {
		return fmt.Errorf("the page's own files: %w", err)
	}
	a := all[c.r.URL.Path]
	if a == nil {
		return httpjson.Refuse(http.StatusNotFound, "there is no such page")
	}
	h := c.w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "no-cache") // but ask whether it is still so
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", a.tag)
	if c.r.Header.Get("If-None-Match") == a.tag {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	text := a.text
	if strings.Contains(c.r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		text = a.packed
	}
	_, _ = c.w.Write(text)
	return nil
}
