//go:build tools

// Package ground names the programs that are built, so that `go mod tidy` keeps what they need.
package ground

import _ "github.com/cert-manager/cert-manager/cmd/controller"
