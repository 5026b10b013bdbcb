module pins

go 1.16

require (
	github.com/cockroachdb/cmux v0.0.0
	github.com/coreos/etcd v3.3.13+incompatible
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd v0.0.0-20191104093116-d3cd4ed1dbcf // indirect
	github.com/coreos/pkg v0.0.0-20240122114842-bbd7aa9bf6fb // indirect
	github.com/golang/groupcache v0.0.0-20241129210726-2c02b8208cf8 // indirect
	github.com/spf13/cobra v0.0.0-00010101000000-000000000000 // indirect
	github.com/ugorji/go v0.0.0-00010101000000-000000000000 // indirect
	github.com/xiang90/probing v0.0.0-20221125231312-a49e3df8f510 // indirect
)

replace (
	github.com/cockroachdb/cmux => github.com/soheilhy/cmux v0.1.3
	github.com/coreos/bbolt => go.etcd.io/bbolt v1.3.6
	github.com/coreos/etcd => github.com/coreos/etcd v3.2.13+incompatible
	github.com/gogo/protobuf => github.com/gogo/protobuf v1.3.2
	github.com/golang/protobuf => github.com/golang/protobuf v1.3.2
	github.com/google/btree => github.com/google/btree v1.0.1
	github.com/grpc-ecosystem/go-grpc-middleware => github.com/grpc-ecosystem/go-grpc-middleware v1.0.1-0.20190118093823-f849b5445de4
	github.com/grpc-ecosystem/go-grpc-prometheus => github.com/grpc-ecosystem/go-grpc-prometheus v1.2.0
	github.com/grpc-ecosystem/grpc-gateway => github.com/grpc-ecosystem/grpc-gateway v1.9.5
	github.com/jonboulle/clockwork => github.com/jonboulle/clockwork v0.2.2
	github.com/prometheus/client_golang => github.com/prometheus/client_golang v0.9.4
	github.com/prometheus/common => github.com/prometheus/common v0.6.0
	github.com/prometheus/procfs => github.com/prometheus/procfs v0.0.8
	github.com/sirupsen/logrus => github.com/sirupsen/logrus v1.8.1
	github.com/spf13/cobra => github.com/spf13/cobra v1.1.3
	github.com/spf13/pflag => github.com/spf13/pflag v1.0.5
	github.com/tmc/grpc-websocket-proxy => github.com/tmc/grpc-websocket-proxy v0.0.0-20200427203606-3cfed13b9966
	github.com/ugorji/go => github.com/ugorji/go v0.0.0-20170107133203-ded73eae5db7
	golang.org/x/crypto => golang.org/x/crypto v0.14.0
	golang.org/x/net => golang.org/x/net v0.17.0
	golang.org/x/sys => golang.org/x/sys v0.13.0
	golang.org/x/text => golang.org/x/text v0.13.0
	golang.org/x/time => golang.org/x/time v0.3.0
	google.golang.org/genproto => google.golang.org/genproto v0.0.0-20190819201941-24fa4b261c55
	google.golang.org/grpc => google.golang.org/grpc v1.26.0
)
