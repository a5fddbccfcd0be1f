// Package linear is a model of a limiter that one call at a time happens to, and asks
// porcupine whether what many callers were answered at once has an order that the model
// explains.
//
// A call with an unknown outcome may have happened at any time from its beginning on,
// or never. What a call took whose caller has gone may be given back at any time.
package linear
