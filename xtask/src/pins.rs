//! What is built from the Go module proxy, and at which versions. The exact sources are pinned by the `go.mod` and
//! `go.sum` of the folder of the same name in `ground/go/`.

/// The Kubernetes versions that can be chosen, newest first. The range is what kube-rs and k8s-openapi support.
pub(crate) const KUBERNETES: [&str; 2] = ["1.37.1", "1.33.13"];

/// The etcd that the real Kubernetes itself stores its objects in.
pub(crate) const KUBERNETES_ETCD: &str = "3.6.16";

/// The etcd versions that Go builds. Debian's packages add 3.4 and one more 3.5.
pub(crate) const ETCDS: [&str; 5] = ["3.2.13", "3.3.27", "3.5.35", "3.6.16", "3.7.3"];

/// CoreDNS.
pub(crate) const COREDNS: &str = "1.15.0";

/// The commit of the release before, which upgrades of the operator are tested from. Until there is a release: one before the
/// operator gave up the right to change its definitions.
pub(crate) const PREVIOUS: &str = "aa035f9243d54dbce6e1a85732f84cef02c942fc";

/// Helm, which tests the chart.
pub(crate) const HELM: &str = "4.3.1";

/// cert-manager, for tests. The last line whose controller is part of the module that the Go module proxy has.
pub(crate) const CERT_MANAGER: &str = "1.11.5";

/// The Prometheus operator, whose definitions the chart's objects are held against.
pub(crate) const PROMETHEUS_OPERATOR: &str = "0.85.0";

/// An S3 server, for tests. Its releases carry dates.
pub(crate) const MINIO: &str = "2026.02.12";

/// An emulator of Azure Blob Storage, for tests: from npm, pinned in `ground/npm/`.
pub(crate) const AZURITE: &str = "3.37.0";

/// Checks bundles of the Operator Lifecycle Manager.
const OPERATOR_VERIFY: &str = "0.27.0";

/// Checks manifests of kubectl's plugins.
const KREW: &str = "0.4.4";

/// The Prometheus whose parser checks the alert rules.
const PROMETHEUS: &str = "0.300.1";

/// One folder of `ground/go/` and what to build there.
pub(crate) struct Pin {
    /// Also the name of the folder: `NAME-VERSION`.
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// Which Go, where the one at hand cannot compile it.
    pub(crate) toolchain: Option<&'static str>,
    /// Import path and name of each program.
    pub(crate) programs: Vec<(&'static str, &'static str)>,
    /// Linker flags beyond those that strip symbols.
    pub(crate) link: String,
}

/// What images of the catalogue are built from.
pub(crate) fn named(name: &str, version: &str) -> anyhow::Result<Pin> {
    match name {
        "etcd" => Ok(etcd(version)),
        _ => anyhow::bail!("{name} is not among the Go programs of xtask/src/pins.rs"),
    }
}

/// etcd, etcdctl and etcdutl; before 3.4 the server alone, since its repository predates Go modules.
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
        // Its protobuf code is refused at start by what newer compilers make of it.
        toolchain: version.starts_with("3.2.").then_some("go1.21.13"),
        programs: if old { vec![(".", "etcd")] } else { modern.to_vec() },
        link: String::new(),
    }
}

/// Every program of a Kubernetes.
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
    }
}

/// The cluster's DNS server.
pub(crate) fn coredns() -> Pin {
    single("coredns", COREDNS, "github.com/coredns/coredns")
}

/// Helm.
pub(crate) fn helm() -> Pin {
    Pin {
        name: "helm",
        version: HELM.to_owned(),
        toolchain: None,
        programs: vec![("helm.sh/helm/v4/cmd/helm", "helm")],
        link: format!("-X helm.sh/helm/v4/internal/version.version=v{HELM}"),
    }
}

/// OLM's check of a bundle.
pub(crate) fn operator_verify() -> Pin {
    let import = "github.com/operator-framework/api/cmd/operator-verify";
    single("operator-verify", OPERATOR_VERIFY, import)
}

/// krew's check of a plugin's manifest.
pub(crate) fn validate_krew_manifest() -> Pin {
    let import = "sigs.k8s.io/krew/cmd/validate-krew-manifest";
    single("validate-krew-manifest", KREW, import)
}

/// Prometheus' own reading of rules, without the rest of it.
pub(crate) fn rulecheck() -> Pin {
    single("rulecheck", PROMETHEUS, ".")
}

/// One program that needs nothing special.
fn single(name: &'static str, version: &str, import: &'static str) -> Pin {
    Pin {
        name,
        version: version.to_owned(),
        toolchain: None,
        programs: vec![(import, name)],
        link: String::new(),
    }
}

/// An S3 server.
pub(crate) fn minio() -> Pin {
    single("minio", MINIO, "github.com/minio/minio")
}

/// The controller of cert-manager.
pub(crate) fn cert_manager() -> Pin {
    Pin {
        programs: vec![("github.com/cert-manager/cert-manager/cmd/controller", "controller")],
        ..single("cert-manager", CERT_MANAGER, "")
    }
}
