//! What is built from the Go module proxy, and the versions. The `go.mod` and `go.sum` in the folder of the same name
//! in `pins/go/` pin the exact sources.

/// The Kubernetes versions that can be chosen, newest first. kube-rs and k8s-openapi support this range.
pub(crate) const KUBERNETES: [&str; 2] = ["1.37.1", "1.33.13"];

/// The etcd version that stores the real Kubernetes' own objects.
pub(crate) const KUBERNETES_ETCD: &str = "3.6.16";

/// The etcd versions that are built with Go. Debian's packages add 3.4 and one more 3.5.
pub(crate) const ETCDS: [&str; 5] = ["3.2.13", "3.3.27", "3.5.35", "3.6.16", "3.7.3"];

pub(crate) const COREDNS: &str = "1.15.0";

/// The commit of the previous release, from which upgrades of the operator are tested. Until there is a release: a
/// commit from before the operator lost its permission to change CRDs.
pub(crate) const PREVIOUS: &str = "aa035f9243d54dbce6e1a85732f84cef02c942fc";

/// The kubectl of Debian trixie, for tests and for people without one. Since 1.31, kubectl opens WebSockets.
pub(crate) const KUBECTL: &str = "1.32";

/// Helm, which tests the chart.
pub(crate) const HELM: &str = "4.3.1";

/// cert-manager, for tests. This is the last line whose controller is part of the module on the Go module proxy.
pub(crate) const CERT_MANAGER: &str = "1.11.5";

/// The Prometheus operator. Its CRDs check the chart's objects.
pub(crate) const PROMETHEUS_OPERATOR: &str = "0.85.0";

/// An S3 server, for tests. Its versions are dates.
pub(crate) const MINIO: &str = "2026.02.12";

/// An emulator of Azure Blob Storage, for tests; from npm, pinned in `pins/npm/`.
pub(crate) const AZURITE: &str = "3.37.0";

/// Validates bundles of the Operator Lifecycle Manager.
const OPERATOR_VERIFY: &str = "0.27.0";

/// Validates manifests of kubectl plugins.
const KREW: &str = "0.4.4";

/// The Prometheus version whose parser checks the alert rules.
const PROMETHEUS: &str = "0.300.1";

/// One folder of `pins/go/` and what to build from it.
pub(crate) struct Pin {
    /// Also the first part of the folder's name: `NAME-VERSION`.
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// The Go version, where the installed one cannot compile it.
    pub(crate) toolchain: Option<&'static str>,
    /// Import path and name of each program.
    pub(crate) programs: Vec<(&'static str, &'static str)>,
    /// Linker flags in addition to those that strip symbols.
    pub(crate) link: String,
    /// Build tags.
    pub(crate) tags: &'static str,
    /// Whether it contains C, which the machine's compiler builds and links with the machine's C library.
    pub(crate) cgo: bool,
}

/// For pins that say little.
const PLAIN: Pin = Pin {
    name: "",
    version: String::new(),
    toolchain: None,
    programs: Vec::new(),
    link: String::new(),
    tags: "",
    cgo: false,
};

/// The Go version of TiDB and what belongs to it: their dependencies do not compile with newer ones.
const TIDB_TOOLCHAIN: Option<&str> = Some("go1.21.13");

/// What images of the catalogue are built from.
pub(crate) fn named(name: &str, version: &str) -> anyhow::Result<Pin> {
    match name {
        "etcd" => Ok(etcd(version)),
        "pd" => Ok(Pin {
            toolchain: TIDB_TOOLCHAIN,
            // The dashboard is a web page that is built with tools of its own.
            tags: "without_dashboard",
            cgo: true,
            ..single("pd", version, "github.com/tikv/pd/cmd/pd-server", "pd-server")
        }),
        "tidb" => Ok(Pin {
            toolchain: TIDB_TOOLCHAIN,
            cgo: true,
            ..single("tidb", version, "github.com/pingcap/tidb/tidb-server", "tidb-server")
        }),
        "unistore" => Ok(Pin {
            toolchain: TIDB_TOOLCHAIN,
            cgo: true,
            ..single(
                "unistore",
                version,
                "github.com/ngaut/unistore/cmd/unistore-server",
                "unistore-server",
            )
        }),
        _ => anyhow::bail!("{name} is not among the Go programs of xtask/src/pins.rs"),
    }
}

/// etcd, etcdctl and etcdutl. Before 3.4 only the server, because its repository predates Go modules.
pub(crate) fn etcd(version: &str) -> Pin {
    let old = version.starts_with("3.2.") || version.starts_with("3.3.");
    let modern = [
        ("go.etcd.io/etcd/server/v3", "etcd"),
        ("go.etcd.io/etcd/etcdctl/v3", "etcdctl"),
        ("go.etcd.io/etcd/etcdutl/v3", "etcdutl"),
    ];
    Pin {
        name: "etcd",
        version: version.to_owned(),
        // Compiled with a newer Go, it rejects its own protobuf code at start-up.
        toolchain: version.starts_with("3.2.").then_some("go1.21.13"),
        programs: if old { vec![(".", "etcd")] } else { modern.to_vec() },
        ..PLAIN
    }
}

/// All programs of a Kubernetes.
pub(crate) fn kubernetes(version: &str) -> Pin {
    let minor = version.split('.').nth(1).unwrap_or_default();
    let variable = "-X k8s.io/component-base/version.git";
    Pin {
        name: "kubernetes",
        version: version.to_owned(),
        toolchain: None,
        programs: vec![
            ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
            (
                "k8s.io/kubernetes/cmd/kube-controller-manager",
                "kube-controller-manager",
            ),
            ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
            ("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy"),
            ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
            ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
        ],
        link: format!("{variable}Version=v{version} {variable}Major=1 {variable}Minor={minor}"),
        ..PLAIN
    }
}

pub(crate) fn coredns() -> Pin {
    single("coredns", COREDNS, "github.com/coredns/coredns", "coredns")
}

pub(crate) fn helm() -> Pin {
    Pin {
        name: "helm",
        version: HELM.to_owned(),
        toolchain: None,
        programs: vec![("helm.sh/helm/v4/cmd/helm", "helm")],
        link: format!("-X helm.sh/helm/v4/internal/version.version=v{HELM}"),
        ..PLAIN
    }
}

/// OLM's validator for bundles.
pub(crate) fn operator_verify() -> Pin {
    let import = "github.com/operator-framework/api/cmd/operator-verify";
    single("operator-verify", OPERATOR_VERIFY, import, "operator-verify")
}

/// krew's validator for plugin manifests.
pub(crate) fn validate_krew_manifest() -> Pin {
    let import = "sigs.k8s.io/krew/cmd/validate-krew-manifest";
    single("validate-krew-manifest", KREW, import, "validate-krew-manifest")
}

/// Prometheus' parser for rules, without the rest of it.
pub(crate) fn rulecheck() -> Pin {
    single("rulecheck", PROMETHEUS, ".", "rulecheck")
}

/// A program without special settings.
fn single(name: &'static str, version: &str, import: &'static str, program: &'static str) -> Pin {
    Pin {
        name,
        version: version.to_owned(),
        programs: vec![(import, program)],
        ..PLAIN
    }
}

pub(crate) fn minio() -> Pin {
    single("minio", MINIO, "github.com/minio/minio", "minio")
}

pub(crate) fn cert_manager() -> Pin {
    let import = "github.com/cert-manager/cert-manager/cmd/controller";
    single("cert-manager", CERT_MANAGER, import, "controller")
}
