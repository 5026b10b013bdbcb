// The etcd program as its own repository builds it; that repository predates Go modules.
package main

import "github.com/coreos/etcd/etcdmain"

func main() { etcdmain.Main() }
