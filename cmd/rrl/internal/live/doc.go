// Package live shows limiters while they are used, in a terminal or as lines:
// [Top] all of them, by use, and [Watch] one, as a graph.
package live
