// Package dashboard serves a web page that shows the limiters that Redis keeps, live,
// and changes them if that is allowed; and for programs the API that the page uses.
//
//	mux.Handle("/limits/", http.StripPrefix("/limits", dashboard.Handler(dashboard.Config{
//		Redis:     rdb,
//		Authorize: authorize, // your own login: who asks
//		Write:     true,
//	})))
//
// One goroutine reads from Redis for all open pages, with a bounded number of commands a
// second, and only while a page is open. The page loads nothing from other servers: all its
// files are in the binary.
package dashboard
