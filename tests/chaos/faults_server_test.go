package chaos_test

var serverFaults = []*fault{}
