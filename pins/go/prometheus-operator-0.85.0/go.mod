// Only files are taken from this module, so that `go mod tidy` has nothing to go by: change the version, delete go.sum, and run
// `go mod download github.com/prometheus-operator/prometheus-operator@VERSION`.
module pins

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
