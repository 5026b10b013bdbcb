//go:build tools

// Package pins names the programs that are built, so that `go mod tidy` keeps what they need.
package pins

import _ "github.com/tikv/pd/cmd/pd-server"
