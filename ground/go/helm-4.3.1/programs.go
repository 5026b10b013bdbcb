//go:build tools

// Package ground names the programs that are built, so that `go mod tidy` keeps what they need.
package ground

import _ "helm.sh/helm/v4/cmd/helm"
