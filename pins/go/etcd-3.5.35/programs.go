//go:build tools

// Package pins names the programs that are built, so that `go mod tidy` keeps what they need.
package pins

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
