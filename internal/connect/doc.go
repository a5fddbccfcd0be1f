// Package connect reaches the Redis servers that a command line names: one
// server, a cluster, the master that Sentinels watch, or the shards of a ring;
// by TCP, TLS or a unix socket, with or without a login.
//
// [Options] are the flags. Bind them once, for all commands, and open a
// [Connection] for each command that needs one:
//
//	var o connect.Options
//	o.Bind(root.PersistentFlags())
//	...
//	conn, err := o.Open(ctx)
//	if err != nil {
//		return err // names the address, and says what to do
//	}
//	defer conn.Close()
//
// Open has asked a server before it returns, so that a wrong address, a missing
// password or a Sentinel in place of a server is reported at once, and never later
// than --connect-timeout.
//
// [Connection.Client] is what limiters are made with. What concerns whole servers goes through
// [Connection.ForEachMaster], which visits all masters also if some fail, and says which.
// [Connection.OnNode] goes to the one server that has a key, for what no cluster client can do,
// such as a transaction with TIME. [Connection.Description] names the servers in words, and
// [Connection.Explain] puts a server's errors in words.
package connect
